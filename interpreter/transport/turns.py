"""Threads that take turns: exactly one runs at a time, and hands over where it would wait.

The next thread is drawn, with a seed, from those that can go on. The same seed gives the same interleaving. Where threads
may also pause in between, every interleaving has a seed. If no thread can go on, all of them get StuckError at once.
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
    """The turns of `count` threads.

    A subclass may choose which thread goes on (`choose`, `pause`), and run something else than threads (`start` to `finish`).
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._batons = [threading.Semaphore(0) for _ in range(count)]
        self._end = threading.Semaphore(0)
        self._ready: list[Callable[[], bool]] = [_always] * count  # what each waits for
        self._open = list(range(count))  # those that have not finished
        self.over: type[InterpreterError] | None = None
        self.errors: dict[int, BaseException] = {}  # by thread, in the order in which they were raised

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run these to their ends and return their results; None for one that raised: its error is in `errors`."""
        results: list[Any] = [None] * len(bodies)

        def live(me: int) -> None:
            try:
                if self.over is None:
                    results[me] = bodies[me]()
            except BaseException as error:
                self.errors[me] = error
                self.over = self.over or PeerLostError
            self._open.remove(me)
            self._pass_on()

        self.start([partial(live, me) for me in range(len(bodies))])
        self._pass_on()
        self.finish()
        return results

    def wait(self, me: int, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready` holds; others run meanwhile. Raises StuckError where no thread can go on."""
        if not ready():
            self.hand_over(me, ready)
        if self.over is StuckError:
            raise StuckError(f"deadlock: it waits for {what}")
        if self.over is not None:
            raise self.over("another rank has failed")

    def pause(self, me: int) -> None:
        """Let the others run first, half of the times."""
        if self._random.random() < 0.5:
            self.hand_over(me)

    def choose(self, able: Sequence[int]) -> int:
        """Return which thread goes on, of those that can."""
        return self._random.choice(able)

    def hand_over(self, me: int, ready: Callable[[], bool] = _always) -> None:
        """Return when it is this thread's turn again: when `ready` holds, or the run has ended."""
        self._ready[me] = ready
        self._pass_on()
        self.take(me)
        self._ready[me] = _always

    def _pass_on(self) -> None:
        """Give the turn to a thread that can go on."""
        if not self._open:
            self.give(None)
            return
        able = [k for k in self._open if self._ready[k]()]
        if not able:
            self.over = self.over or StuckError
        # When the run has ended, each thread gets one more turn, in which `wait` raises.
        self.give(self.choose(able) if self.over is None else self._open[0])

    # Each thread waits for its baton, a semaphore. Another scheduler may replace the next four methods.

    def start(self, lives: Sequence[Callable[[], None]]) -> None:
        """Start a thread for each of these; it waits for its first turn."""

        def begin(me: int) -> None:
            self.take(me)
            lives[me]()

        for me in range(len(lives)):
            threading.Thread(target=begin, args=(me,), name=f"rank {me}", daemon=True).start()

    def give(self, to: int | None) -> None:
        """Let this thread run when the caller waits or ends; None: all have ended."""
        (self._end if to is None else self._batons[to]).release()

    def take(self, me: int) -> None:
        """Return when this thread is given the turn."""
        self._batons[me].acquire()

    def finish(self) -> None:
        """Return when all have ended."""
        self._end.acquire()
