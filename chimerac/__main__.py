"""The command chimerac, from its first import on: Ctrl-C ends it quietly even before the compiler is loaded."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command and return its exit status."""
    try:
        # Takes 0.2 s, in which Ctrl-C must already end the command quietly.
        from chimerac.compiler.command.main import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
