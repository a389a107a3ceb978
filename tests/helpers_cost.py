"""The cost of a call, counted in executed lines and in bytes. No clock is read."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(work: Callable[[], Any]) -> int:
    """Return how many lines of Python a call executes.

    A line in a loop counts once per iteration. Lines of the standard library count, but not those of installed packages.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "call" and "site-packages" in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that a call holds at one time, in Python objects and NumPy arrays."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
