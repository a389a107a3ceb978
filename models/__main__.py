"""`python -m chimerac.models describe`: write a model description for the compiler, which has no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import discard_output, write_stdout
from chimerac.chimera_ir.model import model_to_json
from chimerac.models.presets import check_sequence, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = Parser(prog="python -m chimerac.models", description=__doc__)
    command = parser.add_subparsers(required=True, metavar="describe")
    describing = command.add_parser(
        "describe",
        help="print the JSON description of a model",
        epilog=f"models (NAME/BLOCKS has another number of blocks):\n{table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    describing.add_argument("--model", default="gpt-small", help="a preset, or NAME/BLOCKS (default: %(default)s)")
    describing.add_argument("--seq-len", type=int, default=128, help="tokens of a sample (default: %(default)s)")
    describing.add_argument("--micro-batch", type=int, default=4, help="samples of a micro-batch (default: %(default)s)")
    given = parser.parse_args(arguments)
    if min(given.seq_len, given.micro_batch) < 1:
        describing.error("--seq-len and --micro-batch are at least 1")
    try:
        check_sequence(given.model, given.seq_len)
        # torch takes 2 s to import. Errors in options are reported before that.
        from chimerac.interpreter.runtime.describe import describe
        from chimerac.models.families import preset

        description = describe(preset(given.model, given.seq_len), given.micro_batch)
        write_stdout(model_to_json(description))
    except ChimeraError as error:
        print(render(error.diagnostics), end="", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        discard_output(sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
