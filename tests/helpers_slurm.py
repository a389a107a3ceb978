"""For tests: scripts in the place of the commands of SLURM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# A line for a bash script that replaces srun. It drops the options of srun, which must be of the form --NAME=VALUE or --NAME.
# Then "$@" is the command that srun would start.
WITHOUT_OPTIONS = "while [[ $1 == --* ]]; do shift; done"


def write_commands(folder: Path, scripts: Mapping[str, str]) -> None:
    """Write each script as an executable file with the name of its command."""
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
