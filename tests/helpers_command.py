"""How tests start the command chimerac as a process of its own."""

from __future__ import annotations

import signal
import sys
import sysconfig
from functools import partial
from pathlib import Path

# The installed script. It does not exist if the package is not installed.
SCRIPT = Path(sysconfig.get_path("scripts")) / "chimerac"
COMMAND = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "chimerac"]

# A process that a shell starts in the background ignores interrupts, and its children inherit that. This resets it.
SIGINT_ON = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
