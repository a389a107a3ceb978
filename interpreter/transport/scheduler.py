"""A scheduler of threads: exactly one runs at a time, and another one continues only when this one waits, pauses or ends.

The next thread is drawn, with a seed, from those that can continue. The same seed gives the same interleaving. If threads
may also pause between their waits, every interleaving can be drawn. If no thread can continue, all waiting threads get
StuckError at once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from chimerac.interpreter.errors import InterpreterError, PeerLostError, StuckError


def always() -> bool:
    """Return True: the condition of a thread that waits for nothing."""
    return True


class Scheduler:
    """Schedules `count` threads. A thread is identified by its number, from 0.

    A subclass may choose in another way which thread continues (`choose`, `pause`), or schedule something other than threads
    (`start`, `resume`, `suspend`, `join`).
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._may_run = [threading.Semaphore(0) for _ in range(count)]
        self._all_ended = threading.Semaphore(0)
        self._ready: list[Callable[[], bool]] = [always] * count  # by thread, the condition that it waits for
        self._unfinished = list(range(count))
        self.stopped_by: type[InterpreterError] | None = None  # once it is set, every `wait` raises this error
        self.errors: dict[int, BaseException] = {}  # by thread, in the order in which they were raised

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run each function in a thread and return their results; None for one that raised an error or did not begin.

        A function does not begin once the run has been stopped. Errors are in `errors`.
        """
        results: list[Any] = [None] * len(bodies)

        def run_one(thread: int) -> None:
            try:
                if self.stopped_by is None:
                    results[thread] = bodies[thread]()
            except BaseException as error:
                self.errors[thread] = error
                self.stopped_by = self.stopped_by or PeerLostError
            self._unfinished.remove(thread)
            self._resume_next()

        self.start([partial(run_one, thread) for thread in range(len(bodies))])
        self._resume_next()
        self.join()
        return results

    def wait(self, thread: int, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready()` is true; other threads run meanwhile.

        Args:
            what: what the thread waits for, as text for the error.

        Raises StuckError if no thread can continue, and PeerLostError if another thread has raised an error.
        """
        if not ready():
            self.switch(thread, ready)
        if self.stopped_by is StuckError:
            raise StuckError(f"it waits for {what}")
        if self.stopped_by is not None:
            raise self.stopped_by("another rank has failed")

    def pause(self, thread: int) -> None:
        """With probability 1/2, let `choose` decide which thread continues; it may be this one."""
        if self._random.random() < 0.5:
            self.switch(thread)

    def choose(self, able: Sequence[int]) -> int:
        """Return which thread continues, of those that can."""
        return self._random.choice(able)

    def switch(self, thread: int, ready: Callable[[], bool] = always) -> None:
        """Let a thread run that can continue; it may be this one, if `ready()` is true.

        Return when `ready()` is true and this thread is chosen, or when the run has been stopped.
        """
        self._ready[thread] = ready
        self._resume_next()
        self.suspend(thread)
        self._ready[thread] = always

    def _resume_next(self) -> None:
        """Resume one of the threads that can continue, or `join` if all have ended."""
        if not self._unfinished:
            self.resume(None)
            return
        able = [thread for thread in self._unfinished if self._ready[thread]()]
        if not able:
            self.stopped_by = self.stopped_by or StuckError
        # After the run has been stopped, the threads continue one after another. In each, `wait` raises, so that it ends.
        self.resume(self.choose(able) if self.stopped_by is None else self._unfinished[0])

    # In this class a suspended thread waits for its semaphore. A subclass may override the next four methods.

    def start(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Start a thread for each of these functions; it waits until it is chosen."""

        def begin(thread: int) -> None:
            self.suspend(thread)
            bodies[thread]()

        for thread in range(len(bodies)):
            threading.Thread(target=begin, args=(thread,), name=f"rank {thread}", daemon=True).start()

    def resume(self, thread: int | None) -> None:
        """Let this thread run; after this call the caller suspends itself, ends or joins. None: all threads have ended."""
        (self._all_ended if thread is None else self._may_run[thread]).release()

    def suspend(self, thread: int) -> None:
        """Return when this thread, the calling one, may run."""
        self._may_run[thread].acquire()

    def join(self) -> None:
        """Return when all threads have ended."""
        self._all_ended.acquire()
