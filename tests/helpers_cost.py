"""What a piece of work costs, counted: no clock is read."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(work: Callable[[], Any]) -> int:
    """Return how many lines of Python are executed, every turn of a loop counted; not those of packages, which are theirs."""
    count = 0

    def see(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "call" and "site-packages" in frame.f_code.co_filename:
            return None
        count += event == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes held at once, those of arrays included."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
