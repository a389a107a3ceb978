"""`chimerac explain`: what error codes mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import write_stdout
from chimerac.compiler.command.files import print_findings
from chimerac.compiler.command.verbs import explain_parser


def run(argv: Sequence[str], chimerac: Callable[[Sequence[str]], int]) -> int:
    """Print what error codes mean, and return the exit status.

    Args:
        chimerac: the command itself, which runs the examples.
    """
    from chimerac.compiler.explain.page import explain  # start-up: 11 ms, for this verb only

    try:
        write_stdout(explain(explain_parser().parse_args(argv).codes, chimerac))
    except ChimeraError as error:
        return print_findings(error)
    return 0
