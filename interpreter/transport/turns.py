"""Taking turns: threads of which exactly one runs at a time, handing over where it would wait.

The next one is drawn from those that could go on, with a seed: the same seed gives the same interleaving, and every
interleaving has a seed where threads may also pause in between. If nobody could go on, everybody is told at once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class StuckError(Exception):
    """Nobody can move."""


class EndedError(Exception):
    """Another rank has failed."""


def _always() -> bool:
    return True


class Turns:
    """The turns of `count` threads.

    Another scheduler overrides who goes on (`choose`, `pause`), and what runs instead of threads (`start` to `finish`).
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._batons = [threading.Semaphore(0) for _ in range(count)]
        self._end = threading.Semaphore(0)
        self._ready: list[Callable[[], bool]] = [_always] * count  # what each waits for
        self._open = list(range(count))  # those that have not finished
        self.over: type[Exception] | None = None
        self.errors: dict[int, BaseException] = {}  # by thread, the first first

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run these to their ends and return what they return; None where one raised, which `errors` then has."""
        results: list[Any] = [None] * len(bodies)

        def live(me: int) -> None:
            try:
                if self.over is None:
                    results[me] = bodies[me]()
            except BaseException as error:
                self.errors[me] = error
                self.over = self.over or EndedError
            self._open.remove(me)
            self._pass_on()

        self.start([partial(live, me) for me in range(len(bodies))])
        self._pass_on()
        self.finish()
        return results

    def wait(self, me: int, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready` holds; others run meanwhile. Raises StuckError where it never can."""
        if not ready():
            self.hand_over(me, ready)
        if self.over is StuckError:
            raise StuckError(f"nobody can move: it waits for {what}")
        if self.over is not None:
            raise self.over("another rank has failed")

    def pause(self, me: int) -> None:
        """Let others go first, or not."""
        if self._random.random() < 0.5:
            self.hand_over(me)

    def choose(self, able: Sequence[int]) -> int:
        """Return who goes on, of those that could."""
        return self._random.choice(able)

    def hand_over(self, me: int, ready: Callable[[], bool] = _always) -> None:
        """Return when it is this one's turn again: not before `ready` holds, unless all is over."""
        self._ready[me] = ready
        self._pass_on()
        self.take(me)
        self._ready[me] = _always

    def _pass_on(self) -> None:
        """Give the turn to one that could go on."""
        if not self._open:
            self.give(None)
            return
        able = [k for k in self._open if self._ready[k]()]
        if not able:
            self.over = self.over or StuckError
        # Once it is over, each gets a last turn, to find out.
        self.give(self.choose(able) if self.over is None else self._open[0])

    # How one at a time runs: threads, each of which waits for its baton.

    def start(self, lives: Sequence[Callable[[], None]]) -> None:
        """Make these ready to run; each begins with its first turn."""

        def begin(me: int) -> None:
            self.take(me)
            lives[me]()

        for me in range(len(lives)):
            threading.Thread(target=begin, args=(me,), name=f"rank {me}", daemon=True).start()

    def give(self, to: int | None) -> None:
        """Let this one run as soon as the caller takes a pause or ends; None: all have ended."""
        (self._end if to is None else self._batons[to]).release()

    def take(self, me: int) -> None:
        """Return when somebody has given this one the turn."""
        self._batons[me].acquire()

    def finish(self) -> None:
        """Return when all have ended."""
        self._end.acquire()
