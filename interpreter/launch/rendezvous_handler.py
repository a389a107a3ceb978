"""A handler of the launchers' rendezvous that does not block torch's agent while its ranks run, even if the store is lost.

The agent asks the handler again and again whether more hosts are waiting to join. If the host of the store is lost,
torch's handler raises an error at once, or blocks for minutes. After an error the agent would end its ranks before they have
printed which ranks are lost. While the agent is blocked, it would not notice that its ranks have ended. With this handler the
agent goes on monitoring its ranks, and they detect the loss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

SHUTDOWN_S = 3.0  # how long the store has to answer at the end


class NonBlockingHandler(RendezvousHandler):
    """Wraps torch's handler. While ranks run, a thread calls the store, so that the agent is not blocked. At the end a thread
    calls it too, so that the agent is blocked for SHUTDOWN_S at most.
    """

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler = handler
        self._waiting = 0
        self._query: threading.Thread | None = None  # the latest call of the store for the number of waiting hosts

    def num_nodes_waiting(self) -> int:
        """Return how many hosts wait, by the latest answer of the store. Ask it again in a thread, unless a call still runs.

        Return 0 before any answer in this round, and after a call that failed.
        """
        if self._query is None or not self._query.is_alive():
            self._query = _start(self._ask)
        return self._waiting

    def _ask(self) -> None:
        try:
            self._waiting = self._handler.num_nodes_waiting()
        except Exception:  # the store is lost: the ranks report it
            self._waiting = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other launchers. Raises what torch's handler raises, for instance if the others do not join in time."""
        if self._query is not None:
            self._query.join()  # torch's handler must not be called from two threads at the same time
        try:
            return self._handler.next_rendezvous()
        finally:
            self._waiting = 0

    def shutdown(self) -> bool:
        """Close the rendezvous. Return whether torch's handler has done that within SHUTDOWN_S."""
        results: list[bool] = []

        def leave() -> None:
            with suppress(Exception):  # the store is lost
                results.append(self._handler.shutdown())

        _start(leave).join(SHUTDOWN_S)
        return results == [True]

    @property
    def use_agent_store(self) -> bool:
        """Whether the ranks use the store of the launchers."""
        return self._handler.use_agent_store

    def get_backend(self) -> str:
        """Return the name of the kind of rendezvous."""
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        """Return the name of the job (--rdzv-id)."""
        return self._handler.get_run_id()

    def is_closed(self) -> bool:
        """Return whether no launcher can join any more."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Let no launcher join any more."""
        self._handler.set_closed()  # type: ignore[no-untyped-call]


def _start(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, name="rendezvous", daemon=True)
    thread.start()
    return thread
