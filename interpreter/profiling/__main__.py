"""`python -m chimerac.interpreter.profiling`: measure how fast a model and the links are here, for --profile of the compiler.

It starts as many ranks as --ranks says, which all compute at the same time, as in a run.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before all other imports: from here on Ctrl-C ends this process without a traceback, and a rank ends when its parent ends.
    from chimerac.interpreter.launch.startup import begin_process

    begin_process()

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import write_stderr
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.interpreter.adapters.own import LOSS_NAMES, check_own, is_own, unread_option
from chimerac.interpreter.launch.failures import end_with
from chimerac.interpreter.launch.record import check_output
from chimerac.models.presets import check_sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, or one of its ranks, and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given)
    if min(options.seq_len, options.repeats) < 1:
        parser.error("--seq-len and --repeats are at least 1")
    if options.ranks < 2:
        parser.error("--ranks is at least 2: links are measured between ranks")
    if options.output == "-":
        parser.error("-o -: a profile is not written to stdout: give the path of a file")
    if unread := unread_option(options.model, options.layers, options.head, options.loss):
        parser.error(unread)
    samples = _samples(parser, options.micro_batch)
    try:
        check_output(Path(options.output), "-o")
        if is_own(options.model):
            check_own(options.model)
        else:
            check_sequence(options.model, options.seq_len)
    except ChimeraError as error:
        write_stderr(render(error.diagnostics))
        return 1
    # torch and the modules that use it take 2.6 s to import. The errors above are reported before that.
    if "RANK" not in os.environ:
        return _launch(parser, options.ranks, options.device, options.output, given)
    from chimerac.interpreter.profiling.measure import Choice, measure  # imports torch: 2.6 s
    from chimerac.interpreter.transport.rendezvous import rendezvous

    try:
        choice = Choice(
            options.model,
            samples,
            options.seq_len,
            options.repeats,
            options.device,
            options.optimizer,
            options.precision,
            options.layers,
            options.head,
            options.loss,
        )
        measure(choice, options.output)
    except Exception as error:
        end_with(error, is_first_here=os.environ["LOCAL_RANK"] == "0", job=rendezvous().liveness)
    return 0


def _launch(parser: Parser, ranks: int, device: str, output: str, given: Sequence[str]) -> int:
    """Start the ranks, and return the exit status."""
    import torch

    from chimerac.interpreter.launch.launcher import launch  # imports torch: 2.6 s

    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU, and torch finds none")
    arguments = ["--standalone", f"--nproc-per-node={ranks}", "-m", "chimerac.interpreter.profiling", *given]
    status = launch(arguments)
    if status == 0:
        write_stderr(f"wrote {output}; next: chimerac SCHEDULE --model NAME --profile {shlex.quote(output)} --emit report\n")
    return status


def _samples(parser: Parser, text: str) -> list[int]:
    """Return the sizes of micro-batches.

    Args:
        text: the value of --micro-batch.
    """
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,10}", word) and 1 <= int(word) <= 2**31 for word in words):
        parser.error(f"--micro-batch {text}: expected numbers of samples, for instance 1,2,4")
    return [int(word) for word in words]


def _parser() -> Parser:
    parser = Parser(prog="python -m chimerac.interpreter.profiling", description=__doc__)
    parser.add_argument("--model", default="gpt-small", metavar="NAME", help="a model as in run.py (default: %(default)s)")
    parser.add_argument("--layers", metavar="PATHS", help="of a model of your own: its lists of layers, as in run.py")
    parser.add_argument("--head", metavar="CLASS", help="of a Hugging Face model: the class, as in run.py")
    parser.add_argument("--loss", metavar="NAME", choices=LOSS_NAMES, help="of a model of your own, as in run.py")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of a sample of text (default: %(default)s)")
    parser.add_argument(
        "--micro-batch", default="4", metavar="b,b,...", help="samples of a micro-batch, one size or several (default: 4)"
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes that compute at the same time (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where layers compute (default: %(default)s)")
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="in which layers compute; bfloat16 is --dtype bf16 of run.py (default: %(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=20, help="iterations of each measurement (default: %(default)s)")
    parser.add_argument(
        "--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="the one whose state is counted (default: %(default)s)"
    )
    parser.add_argument("-o", metavar="PATH", dest="output", required=True, help="the file of the profile")
    return parser


if __name__ == "__main__":
    sys.exit(main())
