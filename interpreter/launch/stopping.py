"""Requests to stop: SIGTERM during the training ends it after the current iteration, on all ranks together.

The training loop calls `stop_requested()` on every rank, and the ranks exchange the results with the measurements of the
iteration. A second SIGTERM ends the process at once. Before and after the training, SIGTERM has its default action.
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
    """Return whether this process got SIGTERM inside `accepting_stop_requests`."""
    return _requested.is_set()


@contextmanager
def accepting_stop_requests(notify: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Handle SIGTERM as a request to stop. notify: called at the first one, in another thread, also while this one is in torch.

    Python handles signals only in the main thread. In another thread, as in loopback, this does nothing.
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
    # Python runs the handler only when the main thread is not inside torch. The number of the signal is written at once.
    previous_fd = signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    previous = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.set_wakeup_fd(previous_fd)
        os.close(send)  # the listener then reads no more numbers, and returns
        listener.join()
        os.close(receive)
