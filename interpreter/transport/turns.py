"""A scheduler of threads: exactly one runs at a time, and another one continues where it would wait.

The next thread is drawn, with a seed, from those that can continue. The same seed gives the same interleaving. If threads
may also pause in between, every interleaving can be drawn. If no thread can continue, all of them get StuckError at once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from chimerac.interpreter.errors import InterpreterError, PeerLostError, StuckError


def _always() -> bool:
    return True


class Turns:
    """Schedules `count` threads.

    A subclass may choose which thread continues (`choose`, `pause`), or run something else than threads (`start`, `give`,
    `take`, `finish`).
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._may_run = [threading.Semaphore(0) for _ in range(count)]
        self._end = threading.Semaphore(0)
        self._ready: list[Callable[[], bool]] = [_always] * count  # the condition that each waits for
        self._open = list(range(count))  # those that have not finished
        self.stopped_by: type[InterpreterError] | None = None
        self.errors: dict[int, BaseException] = {}  # by thread, in the order in which they were raised

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run these functions and return their results; None for one that raised: its error is in `errors`."""
        results: list[Any] = [None] * len(bodies)

        def run_one(me: int) -> None:
            try:
                if self.stopped_by is None:
                    results[me] = bodies[me]()
            except BaseException as error:
                self.errors[me] = error
                self.stopped_by = self.stopped_by or PeerLostError
            self._open.remove(me)
            self._pass_on()

        self.start([partial(run_one, me) for me in range(len(bodies))])
        self._pass_on()
        self.finish()
        return results

    def wait(self, me: int, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready()` is true; other threads run meanwhile. Raises StuckError if no thread can continue."""
        if not ready():
            self.hand_over(me, ready)
        if self.stopped_by is StuckError:
            raise StuckError(f"deadlock: it waits for {what}")
        if self.stopped_by is not None:
            raise self.stopped_by("another rank has failed")

    def pause(self, me: int) -> None:
        """With probability 1/2, let other threads run first."""
        if self._random.random() < 0.5:
            self.hand_over(me)

    def choose(self, able: Sequence[int]) -> int:
        """Return which thread continues, of those that can."""
        return self._random.choice(able)

    def hand_over(self, me: int, ready: Callable[[], bool] = _always) -> None:
        """Let another thread run. Return when this one is chosen again: when `ready()` is true, or the run has been stopped."""
        self._ready[me] = ready
        self._pass_on()
        self.take(me)
        self._ready[me] = _always

    def _pass_on(self) -> None:
        """Let a thread run that can continue."""
        if not self._open:
            self.give(None)
            return
        able = [k for k in self._open if self._ready[k]()]
        if not able:
            self.stopped_by = self.stopped_by or StuckError
        # When the run has been stopped, each thread runs once more: its `wait` raises.
        self.give(self.choose(able) if self.stopped_by is None else self._open[0])

    # Each thread waits on a semaphore of its own. A subclass may replace the next four methods.

    def start(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Start a thread for each of these functions; it waits until it is chosen."""

        def begin(me: int) -> None:
            self.take(me)
            bodies[me]()

        for me in range(len(bodies)):
            threading.Thread(target=begin, args=(me,), name=f"rank {me}", daemon=True).start()

    def give(self, to: int | None) -> None:
        """Let this thread run once the caller waits or ends. None: all threads have ended."""
        (self._end if to is None else self._may_run[to]).release()

    def take(self, me: int) -> None:
        """Return when this thread may run."""
        self._may_run[me].acquire()

    def finish(self) -> None:
        """Return when all threads have ended."""
        self._end.acquire()
