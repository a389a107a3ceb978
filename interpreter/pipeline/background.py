"""Work that every rank does in a thread, such as writing a file. It succeeds on all ranks, or all raise the same error.

Writing and reading may take longer than the timeout of a wait for another rank. So a rank that has finished does not wait for
the others in one collective. All ranks repeat a short collective that shows whether one of them is still working.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import torch

from chimerac.chimera_ir.files import reason
from chimerac.interpreter.transport import Transport

# The longest wait of a rank for its own thread before each collective. The timeout of waits for other ranks has to be longer.
POLL_INTERVAL_S = 0.5


class RanksFailedError(Exception):
    """The work of at least one rank failed.

    Args:
        rank: the lowest of these ranks.
        reason: why its work failed.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank, self.reason = rank, reason


class BackgroundThread:
    """A thread that calls one function. The function returns a text, and does not use the transport."""

    def __init__(self, work: Callable[[], str]) -> None:
        self._work, self._result, self._failure = work, "", ""
        self._thread = threading.Thread(target=self._run, name="background")
        self._thread.start()

    def has_ended(self, transport: Transport) -> bool:
        """Return whether the threads of all ranks have ended; called by all ranks together."""
        running = torch.tensor([float(self._thread.is_alive())])
        transport.all_reduce(running)
        return float(running[0]) == 0

    def results(self, transport: Transport) -> list[str]:
        """Wait for the threads of all ranks, and return the text of each, by rank; called by all ranks together.

        Raises RanksFailedError on all ranks if the work of one failed.
        """
        self._thread.join(POLL_INTERVAL_S)
        while not self.has_ended(transport):
            self._thread.join(POLL_INTERVAL_S)
        by_rank = [json.loads(text) for text in transport.all_gather(json.dumps([self._failure, self._result]))]
        for rank, (failure, _) in enumerate(by_rank):
            if failure:
                raise RanksFailedError(rank, failure)
        return [result for _, result in by_rank]

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._failure = _reason(error)


def _reason(error: Exception) -> str:
    """Return why the work failed, in one line.

    torch's file writer raises an error of its own while it handles the OSError that is the reason. So an OSError is looked
    for among the causes.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError):
        return reason(cause) + (f": {cause.filename}" if cause.filename else "")
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
