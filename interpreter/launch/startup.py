"""What a process of a run does first: from then on it ends at once at Ctrl-C, and a rank ends when its launcher ends.

Both must hold before torch is imported. So this module imports nothing that takes time. It also raises the limit of open files,
and limits what torch's C++ code prints.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG = 1  # option of prctl (Linux) that sets which signal this process gets when its parent ends
POLL_INTERVAL_S = 1.0  # how often a process checks whether its parent has ended, where the kernel does not kill it then
ENDS_WITH_PARENT = "CHIMERAC_ENDS_WITH_PARENT"  # in the environment of a run that ends when the process that started it ends
CONNECT_S = 5.0  # how long the store of torchrun has to accept a connection
LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"  # in the environment: which lines of torch's C++ code are printed
RANK_LEVEL = "ERROR"  # only errors: warnings about closed connections have long C++ stacks
LAUNCHER_LEVEL = "3"  # no errors either: those of a failed rendezvous are also exceptions, which the launcher reports
INTERRUPTED = 128 + signal.SIGINT  # the exit code after Ctrl-C


def begin_process() -> None:
    """Set up this process: a rank if the environment has RANK, otherwise one that a user or a runner of experiments started."""
    os.environ.setdefault(LOG_LEVEL, RANK_LEVEL if "RANK" in os.environ else LAUNCHER_LEVEL)
    allow_open_files()
    if "RANK" in os.environ:
        # Ctrl-C ends a rank at once and without a message, even while it waits inside gloo.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        end_with_parent()
    else:
        signal.signal(signal.SIGINT, _end_interrupted)
        if ENDS_WITH_PARENT in os.environ:
            end_with_parent()


def allow_open_files() -> None:
    """Raise the limit of files that this process may have open at a time, as far as the system allows it.

    The usual limit is 1024. Each file of data that is mapped into memory stays open, and so does each connection.
    """
    try:
        import resource  # not on Windows
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a further limit, which getrlimit does not return
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def end_with_parent() -> None:
    """Make this process end when the process that started it ends."""
    parent = os.getppid()
    # The kernel kills this process when the thread that started it ends. torchrun starts ranks in its main thread, but another
    # parent may use a thread that ends earlier. So only ranks of torchrun ask the kernel.
    if "TORCHELASTIC_RUN_ID" in os.environ and _kill_with_parent():
        # The parent may have ended before the kernel was asked. If it hosted the store, the store accepts no connections then.
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not _store_accepts():
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_INTERVAL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _kill_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent ends; return whether it will."""
    if sys.platform != "linux":
        return False
    import ctypes  # takes 10 ms, and only Linux needs it

    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _store_accepts() -> bool:
    """Return False if the store of torchrun refuses connections: then the process that hosted it has ended."""
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(address, CONNECT_S).close()
    except ConnectionRefusedError:
        return False
    except (OSError, KeyError, ValueError):
        return True  # the rendezvous reports it
    return True


def _end_interrupted(signum: int, frame: FrameType | None) -> None:
    """End this process with one line: the handler of SIGINT."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
