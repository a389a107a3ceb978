"""How a rank exits after a failure: what it prints, when, and its exit code."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import NoReturn

from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.interpreter.errors import InterpreterError, PeerLostError, RankError

EXIT_DELAY_S = 20  # torchrun ends all ranks as soon as one has failed, so the rank that reports the reason must exit first


def end(code: int, after_s: float = 0) -> NoReturn:
    """End this process at once. A normal exit would wait for transfers whose peers may never post them."""
    time.sleep(after_s)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with(error: Exception, reports: bool) -> NoReturn:
    """Report an error and end this process with code 1. reports: this rank is the first of its machine."""
    if isinstance(error, ChimeraError):
        # Usually all ranks have the same findings, and the first rank reports them. A rank that is still running after the
        # delay has findings that the first one does not have.
        time.sleep(0 if reports else EXIT_DELAY_S)
        print(render(error.diagnostics, sys.stderr.isatty()), end="", file=sys.stderr)
        end(1)
    cause = error.cause if isinstance(error, RankError) else error
    if isinstance(cause, PeerLostError):
        time.sleep(cause.exit_delay_s)
    if not isinstance(cause, InterpreterError):
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    end(1)
