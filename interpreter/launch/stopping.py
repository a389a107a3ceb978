"""Requests to stop: SIGTERM during the training ends it after the current iteration, on all ranks together.

The training loop reads `stop_requested()` on every rank, and the ranks exchange it with the measurements of the iteration. A
second SIGTERM ends the process at once. Before and after the training, SIGTERM has its default action.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = 128 + signal.SIGTERM  # the exit code after SIGTERM
_requested = threading.Event()


def stop_requested() -> bool:
    """Return whether this process has been asked to stop."""
    return _requested.is_set()


@contextmanager
def accepting_stop_requests(notify: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Take SIGTERM as a request to stop. notify: called in another thread when it comes, also while this one is inside torch.

    Only the main thread of a process gets signals: in another one, as in loopback, this does nothing.
    """
    _requested.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receive, send = os.pipe()
    os.set_blocking(send, False)

    def listen() -> None:
        while number := os.read(receive, 1):
            if number[0] == signal.SIGTERM:
                if _requested.is_set():
                    os._exit(STOPPED)
                _requested.set()
                notify()

    listener = threading.Thread(target=listen, name="stop requests", daemon=True)
    listener.start()
    # Python runs its handlers between two instructions of the main thread, but it writes the number of the signal at once.
    previous_fd = signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    previous = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.set_wakeup_fd(previous_fd)
        os.close(send)  # the listener reads the end of the pipe
        listener.join()
        os.close(receive)
