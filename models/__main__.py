"""`python -m chimerac.models describe`: write a model description for the compiler, which has no torch.

The compiler needs such a file for every model that is not a preset. It knows the presets by name (models/descriptions/).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import check_not_overwritten, discard_output, write, write_stderr, write_stdout
from chimerac.chimera_ir.model import ModelDescription, model_to_json
from chimerac.interpreter.adapters.own import LOSS_NAMES, check_own, files_of, is_own, own_model, unread_option
from chimerac.models.presets import check_sequence, table

MODEL_HELP = "a preset, NAME/BLOCKS, FILE.py:FUNCTION, hf:CONFIG.json or hf:FOLDER, as in run.py (default: %(default)s)"
MAX_SIZE = 2**31  # the largest size that a dimension of a tensor may have in a description


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = Parser(prog="python -m chimerac.models", description=__doc__)
    command = parser.add_subparsers(required=True, metavar="describe")
    describe_parser = command.add_parser(
        "describe",
        help="print the JSON description of a model",
        epilog=f"models (NAME/BLOCKS chooses another number of blocks):\n{table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    describe_parser.add_argument("--model", default="gpt-small", metavar="NAME", help=MODEL_HELP)
    describe_parser.add_argument("--layers", metavar="PATHS", help="of a model of your own: its lists of layers, as in run.py")
    describe_parser.add_argument("--head", metavar="CLASS", help="of a Hugging Face model: the class, as in run.py")
    describe_parser.add_argument("--loss", metavar="NAME", choices=LOSS_NAMES, help="of a model of your own, as in run.py")
    describe_parser.add_argument("--seq-len", type=int, default=128, help="tokens of a sample of text (default: %(default)s)")
    describe_parser.add_argument("--micro-batch", type=int, default=4, help="samples of a micro-batch (default: %(default)s)")
    describe_parser.add_argument("-o", metavar="PATH", dest="output", help="write to a file; - is stdout, the default")
    options = parser.parse_args(arguments)
    for option, value in (("--seq-len", options.seq_len), ("--micro-batch", options.micro_batch)):
        if not 1 <= value <= MAX_SIZE:
            describe_parser.error(f"{option} {value}: expected a number from 1 to {MAX_SIZE}")
    if options.output == "":
        describe_parser.error("-o: the path is empty")
    if unread := unread_option(options.model, options.layers, options.head, options.loss):
        describe_parser.error(unread)
    to_stdout = options.output in (None, "-")
    try:
        _check_own_model(options)
        description = _description(options)
        if to_stdout:
            write_stdout(model_to_json(description))
        else:
            write(model_to_json(description), options.output)
        path = "m.json" if to_stdout else options.output
        done = f"write this to {path} with -o {path}" if to_stdout else f"wrote {path}"
        write_stderr(f"{done}; next: chimerac chimera --model {shlex.quote(path)} --emit report\n")
    except ChimeraError as error:
        write_stderr(render(error.diagnostics))
        return 1
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        discard_output(sys.stdout)
    return 0


def _description(options: argparse.Namespace) -> ModelDescription:
    """Return the description of the model that the options name."""
    name, samples, length = options.model, options.micro_batch, options.seq_len
    if not is_own(name):
        check_sequence(name, length)
    # torch takes 2 s to import. Most errors in options are reported before that.
    from chimerac.interpreter.runtime.describe import describe
    from chimerac.models.families import preset

    if not is_own(name):
        return describe(preset(name, length), samples)
    return describe(own_model(name, samples, length, loss=options.loss, layers=options.layers, head=options.head), samples)


def _check_own_model(options: argparse.Namespace) -> None:
    """Check a user's model without torch. A preset has no files, so it is not checked here.

    Raises ChimeraError: E002 if the description would be written over a file of the model, and the errors of `check_own`.
    """
    if is_own(options.model):
        check_own(options.model)
        check_not_overwritten(options.output, (("a file of --model", os.fspath(path)) for path in files_of(options.model)))


if __name__ == "__main__":
    sys.exit(main())
