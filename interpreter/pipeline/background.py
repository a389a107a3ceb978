"""Work that every rank does in a thread of its own, such as writing a file: it ends on all ranks, or all raise one error.

Writing and reading may take longer than the timeout of a wait for another rank. So a rank that has finished does not wait for
the others in one call. All ranks ask each other again and again who is still at work.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import torch

from chimerac.chimera_ir.files import reason
from chimerac.interpreter.transport import Transport

PAUSE_S = 0.5  # how long a rank waits for its own work before it asks the others; shorter than any timeout


class RanksFailedError(Exception):
    """The work of at least one rank failed. rank: the first of them; reason: why."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank, self.reason = rank, reason


class Background:
    """A function that runs in a thread of its own. It returns a text, and does not use the transport."""

    def __init__(self, work: Callable[[], str]) -> None:
        self._work, self._text, self._failure = work, "", ""
        self._thread = threading.Thread(target=self._run, name="checkpoint")
        self._thread.start()

    def has_ended(self, transport: Transport) -> bool:
        """Return whether the work of all ranks has ended; called by all ranks together."""
        running = torch.tensor([float(self._thread.is_alive())])
        transport.all_reduce(running)
        return float(running[0]) == 0

    def results(self, transport: Transport) -> list[str]:
        """Wait for all ranks and return what they returned, by rank; called by all ranks together.

        Raises RanksFailedError on all ranks if the work of one failed.
        """
        self._thread.join(PAUSE_S)
        while not self.has_ended(transport):
            self._thread.join(PAUSE_S)
        by_rank = [json.loads(text) for text in transport.all_gather(json.dumps([self._failure, self._text]))]
        for rank, (failure, _) in enumerate(by_rank):
            if failure:
                raise RanksFailedError(rank, failure)
        return [text for _, text in by_rank]

    def _run(self) -> None:
        try:
            self._text = self._work()
        except Exception as error:
            self._failure = _reason(error)


def _reason(error: Exception) -> str:
    """Return why the work failed, in one line.

    torch's writer of files raises an error of its own while it handles that of the file system, which is the reason.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    error = cause or error
    if isinstance(error, OSError):
        return reason(error).lower() + (f": {error.filename}" if error.filename else "")
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
