"""Scripts that replace the commands of SLURM in tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WITHOUT_OPTIONS = "while [[ $1 == --* ]]; do shift; done"  # leaves out the options of srun, which begin with two dashes


def write_commands(folder: Path, scripts: Mapping[str, str]) -> None:
    """Write each script as an executable file with the name of its command."""
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
