"""`python -m chimerac.interpreter.data`: train a tokenizer, and prepare data before a run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse, render
from chimerac.chimera_ir.files import reason, short_path, write_stderr
from chimerac.interpreter.data.names import TEXT, below, name_below
from chimerac.interpreter.data.sources import PREPARED, Source
from chimerac.interpreter.data.tokenizer import KINDS, SPECIAL, load_tokenizer, train_tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except ChimeraError as error:
        write_stderr(render(error.diagnostics))
        return 1
    return 0


def _parser() -> Parser:
    parser = Parser(prog="python -m chimerac.interpreter.data", description=__doc__)
    command = parser.add_subparsers(required=True, metavar="train-tokenizer|prepare")
    training = command.add_parser("train-tokenizer", help="train a tokenizer from texts and write its tokenizer.json")
    training.add_argument(
        "data", nargs="?", default=TEXT, metavar="SOURCE", help="texts, as --data names them (default: the standard library)"
    )
    training.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the tokenizer.json to write")
    training.add_argument("--kind", choices=KINDS, default="bpe", help="bpe as for GPT-2, wordpiece as for BERT (default: bpe)")
    most = "tokens, at most; with wordpiece more, if the characters of the texts are more (default: %(default)s)"
    training.add_argument("--vocabulary", type=int, default=8192, metavar="V", help=most)
    added = "; ".join(f"{kind} has {' '.join(names)}" for kind, names in SPECIAL.items())
    training.add_argument("--special", action="append", default=[], metavar="TOKEN", help=f"one more special token ({added})")
    training.add_argument("--lowercase", action="store_true", help="make all letters lower-case, and drop accents (wordpiece)")
    training.add_argument("--text-column", default="text", metavar="NAME", help="the column of hf:FOLDER with the texts")
    training.set_defaults(run=_train)
    preparing = command.add_parser("prepare", help="write the prepared file of a data set, which a run would write otherwise")
    preparing.add_argument("data", metavar="SOURCE", help="as --data of run.py")
    preparing.add_argument("--tokenizer", type=Path, metavar="PATH", help="a tokenizer.json, or a folder with one")
    preparing.add_argument("--text-column", default="text", metavar="NAME", help="the column of hf:FOLDER with the texts")
    for name in ("data", "work"):
        variable = f"CHIMERAC_{name.upper()}_DIR"
        default = Path(os.environ[variable]) if os.environ.get(variable) else None
        preparing.add_argument(
            f"--{name}-dir", type=Path, default=default, metavar="PATH", help=f"as in run.py (default: ${variable})"
        )
    preparing.set_defaults(run=_prepare)
    return parser


def _train(given: argparse.Namespace) -> None:
    documents = Source(name_below(given.data, None), Path(), Path(PREPARED), column=given.text_column).documents()
    pieces = (piece.text for piece in documents.train())
    output: Path = given.output
    if output == Path("-"):
        raise _unwritable(output, "stdout gets the summary")
    if os.path.isdir(output):
        raise _unwritable(output, "it is a folder")
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        partial.touch()  # fails before the training, which may take long
        partial.write_text(train_tokenizer(pieces, given.kind, given.vocabulary, given.special, given.lowercase), "utf-8")
        os.replace(partial, output)
    except OSError as error:
        raise _unwritable(output, reason(error)) from None
    finally:
        with suppress(OSError):
            partial.unlink()
    encoding = load_tokenizer(output).encoding
    print(f"{short_path(output)}: {encoding.vocabulary} tokens, {encoding.name}")


def _unwritable(output: Path, why: str) -> ChimeraError:
    message = f"the tokenizer cannot be written to {short_path(output)}: {why}"
    return refuse("E861", message, help="give -o another path")


def _prepare(given: argparse.Namespace) -> None:
    data_dir: Path | None = given.data_dir
    tokenizer = None if given.tokenizer is None else below(given.tokenizer, data_dir)
    prepared_dir = below(Path(PREPARED), given.work_dir)
    source = Source(name_below(given.data, data_dir), data_dir or Path(), prepared_dir, tokenizer, given.text_column)
    if source.has_images:
        images = source.images()
        print(f"{images.name}: {len(images.train):,} images, {len(images.held_out):,} held out; {images.identity}")
    else:
        text = source.text()
        print(f"{given.data}: {text.identity(len(text))}")


if __name__ == "__main__":
    sys.exit(main())
