"""Taking turns: threads of which exactly one runs at a time, handing over where it would wait.

The next one is drawn from those that could go on, with a seed: the same seed gives the same interleaving, and every
interleaving has a seed where threads may also pause in between. If nobody could go on, everybody is told at once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any


class StuckError(Exception):
    """Nobody can move."""


class EndedError(Exception):
    """Another rank has failed."""


def _always() -> bool:
    return True


class Turns:
    """The turns of `count` threads."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._batons = [threading.Semaphore(0) for _ in range(count)]
        self._end = threading.Semaphore(0)
        self._ready: list[Callable[[], bool]] = [_always] * count  # what each waits for
        self._open = list(range(count))  # those that have not finished
        self._over: type[Exception] | None = None
        self.errors: dict[int, BaseException] = {}  # by thread, the first first

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run these to their ends and return what they return; None where one raised, which `errors` then has."""
        results: list[Any] = [None] * len(bodies)

        def live(me: int) -> None:
            self._batons[me].acquire()
            try:
                if self._over is None:
                    results[me] = bodies[me]()
            except BaseException as error:
                self.errors[me] = error
                self._over = self._over or EndedError
            self._open.remove(me)
            self._pass_on()

        for me in range(len(bodies)):
            threading.Thread(target=live, args=(me,), name=f"rank {me}", daemon=True).start()
        self._pass_on()
        self._end.acquire()
        return results

    def wait(self, me: int, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready` holds; others run meanwhile. Raises StuckError where it never can."""
        if not ready():
            self._hand_over(me, ready)
        if self._over is StuckError:
            raise StuckError(f"nobody can move: it waits for {what}")
        if self._over is not None:
            raise self._over("another rank has failed")

    def pause(self, me: int) -> None:
        """Let others go first, or not."""
        if self._random.random() < 0.5:
            self._hand_over(me, _always)

    def _hand_over(self, me: int, ready: Callable[[], bool]) -> None:
        self._ready[me] = ready
        self._pass_on()
        self._batons[me].acquire()
        self._ready[me] = _always

    def _pass_on(self) -> None:
        """Give the turn to one that could go on."""
        if not self._open:
            self._end.release()
            return
        able = [k for k in self._open if self._ready[k]()]
        if not able:
            self._over = self._over or StuckError
        # Once it is over, each gets a last turn, to find out.
        self._batons[self._random.choice(able) if self._over is None else self._open[0]].release()
