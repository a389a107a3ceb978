"""How tests start the command chimerac as a process of its own."""

from __future__ import annotations

import signal
import sys
import sysconfig
from functools import partial
from pathlib import Path

# The installed command. If the package is not installed, the script does not exist, and the tests run the module.
SCRIPT = Path(sysconfig.get_path("scripts")) / "chimerac"
COMMAND = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "chimerac"]

# For preexec_fn. A process that a shell starts in the background ignores interrupts, and so do its children. With SIGINT_ON the
# new process does not ignore them.
SIGINT_ON = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
