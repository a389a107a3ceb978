"""The command of experiments (interpreter/experiments), which here starts stub_run.py for each run, not interpreter/run.py."""

import sys
from pathlib import Path

from chimerac.interpreter.experiments import __main__, local

local.SCRIPT = Path(__file__).with_name("stub_run.py")
if __name__ == "__main__":
    try:
        sys.exit(__main__.main())
    except KeyboardInterrupt:
        sys.exit(__main__.INTERRUPTED)
