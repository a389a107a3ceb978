"""Ctrl-C while packages are loaded: it is kept until this is done, because some packages lose it or fail with another error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let the first Ctrl-C take effect at the end of the context, and a second one at once.

    An error inside the context is raised as it is, and the first Ctrl-C then has no effect. In other threads than the main one,
    this does nothing: only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)
