"""The errors of a run.

    InterpreterError       any of these, or another failure with a message for the user
      PeerLostError        another rank has failed or ended, cannot be reached, does not answer, or was waited for too long
      StuckError           no rank can continue: all that have not ended wait; only the loopback detects this
      RankError            an instruction or the epilogue of one rank failed; `cause` is the error itself

Errors in the input are findings, as in the compiler: `chimera_ir.diagnostics.ChimeraError`. docs/architecture.md has a table of
when and where each is raised.
"""

from __future__ import annotations

from collections.abc import Sequence

from chimerac.chimera_ir.diagnostics import ChimeraError

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 365 * 24 * 3600.0  # limits of the timeout of a wait for another rank


class InterpreterError(Exception):
    """A run failed. The message is for the user.

    It needs no traceback, unless `RankError.cause` is neither an InterpreterError nor a ChimeraError.
    """


class PeerLostError(InterpreterError):
    """Another rank has failed or ended, cannot be reached, does not answer, or was waited for too long.

    Args:
        peer_ended: the wait has failed and not timed out, most often because a rank has ended. The launcher, or that rank, may
            then report why.
        hanging: the ids of the processes of ranks on this host that do not answer.
    """

    def __init__(self, message: str, peer_ended: bool = False, hanging: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.peer_ended, self.hanging = peer_ended, tuple(hanging)


class StuckError(InterpreterError):
    """A deadlock: no rank can continue, and all that have not ended wait."""


class RankError(InterpreterError):
    """An instruction of one rank failed, or its epilogue.

    Args:
        number: of the instruction in the rank's stream; None in the epilogue.
        text: of the instruction, or `epilogue`.
        name: what the message calls the rank; by default `rank` and its number.
        cause: the error itself; its class decides whether the message has a traceback.

    Attributes:
        place: name, number and text, as one text.
    """

    def __init__(self, rank: int, number: int | None, text: str, cause: Exception, name: str = "") -> None:
        self.rank, self.number, self.text, self.cause = rank, number, text, cause
        self.place = f"{name or f'rank {rank}'}, {text if number is None else f'instruction {number}: {text}'}"
        if isinstance(cause, ChimeraError):
            message = str(cause)
        elif len(cause.args) == 1 and isinstance(cause.args[0], str):
            message = cause.args[0]
        else:
            message = repr(cause)
        super().__init__(f"{self.place}: {message}")
