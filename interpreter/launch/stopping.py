"""Requests to stop: SIGTERM during the training ends it after the current iteration, on all ranks together.

The training loop calls `stop_requested()` on every rank, and each rank sends the result to all others, together with its
measurements of the iteration. A request that comes later counts in the next iteration. In the last iteration a request changes
nothing. A second SIGTERM ends the process at once. Before and after the training, SIGTERM has its default action.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = 128 + signal.SIGTERM  # the exit code after SIGTERM
_requested = threading.Event()
_is_accepting = False


def stop_requested() -> bool:
    """Return whether this process got SIGTERM inside `accepting_stop_requests`."""
    return _requested.is_set()


@contextmanager
def accepting_stop_requests(notify: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Handle SIGTERM as a request to stop, in the context.

    Args:
        notify: called at the first SIGTERM, in a thread of its own, so also while the main thread runs inside torch.

    Python lets only the main thread set handlers of signals. In any other thread, as in loopback, SIGTERM keeps its action.
    """
    global _is_accepting
    _requested.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receive, send = os.pipe()
    os.set_blocking(send, False)

    def listen() -> None:
        while number := os.read(receive, 1)[0]:
            if number == signal.SIGTERM:
                if _requested.is_set():
                    os._exit(STOPPED)
                _requested.set()
                notify()

    listener = threading.Thread(target=listen, name="stop requests", daemon=True)
    listener.start()
    # Python runs a handler only when the main thread is not inside torch, but writes the signal's number to `send` at once.
    previous_fd = signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    previous_handler = signal.signal(signal.SIGTERM, lambda number, frame: None)
    _is_accepting = True
    try:
        yield
    finally:
        _is_accepting = False
        signal.signal(signal.SIGTERM, previous_handler)
        signal.set_wakeup_fd(previous_fd)
        os.write(send, b"\0")  # ends the listener; the end of the pipe would not come while a forked process has it open
        listener.join()
        os.close(send)
        os.close(receive)


# In a forked process, such as a worker of a pool, SIGTERM has its default action and requests no stop. The signal is blocked
# during a fork: until the child has reset its handler, a SIGTERM for the child would be written to the pipe of the parent.


def _before_fork() -> None:
    if _is_accepting:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    if _is_accepting:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _after_fork_in_child() -> None:
    if _is_accepting:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
