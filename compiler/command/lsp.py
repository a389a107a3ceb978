"""`chimerac lsp`: the language server for editors."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.compiler.command.files import print_findings
from chimerac.compiler.command.verbs import lsp_parser


def run(argv: Sequence[str]) -> int:
    """Serve an editor over stdin and stdout, and return the exit status."""
    lsp_parser().parse_args(argv)
    if find_spec("pygls") is None:
        message = "chimerac lsp needs a package that is not installed: pygls"
        return print_findings(refuse("E002", message, help="pip install 'chimerac[lsp]'"))
    from chimerac.compiler.language_server.server import run as serve  # start-up: 400 ms for pygls, for this verb only

    serve()
    return 0
