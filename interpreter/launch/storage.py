"""Storage: the folders of a run, and against which of them a relative path of its settings is resolved."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.launch.settings import RunSettings

# Environment variables that give a folder where the command line does not.
VARIABLES = {"work_dir": "CHIMERAC_WORK_DIR", "data_dir": "CHIMERAC_DATA_DIR"}
NO_PATHS = {"resume": {"auto", "no"}, "data": {"text", "digits", "cifar10"}}  # words of settings that may also be paths
PREFIXES = "hf:", "text:"  # of a path in `--data`


def from_environment() -> dict[str, Path]:
    """Return the folders that environment variables give, by field of RunSettings."""
    return {name: Path(os.environ[variable]) for name, variable in VARIABLES.items() if os.environ.get(variable)}


def resolved(settings: RunSettings) -> RunSettings:
    """Return the settings with paths that are relative to --work-dir or --data-dir resolved. The two folders become absolute.

    Without such a folder a path stays as it is: relative to the folder in which the command runs. A path that begins with `~`
    is below the home folder.
    """
    changed: dict[str, Any] = {}
    for field in fields(settings):
        value, folder = getattr(settings, field.name), field.metadata["folder"]
        if field.name in VARIABLES and value is not None:
            changed[field.name] = value.expanduser().absolute()
        elif folder is not None and value is not None and value not in NO_PATHS.get(field.name, ()):
            root = getattr(settings, folder)
            prefix = next((prefix for prefix in PREFIXES if str(value).startswith(prefix)), "")
            path = Path(str(value).removeprefix(prefix)).expanduser()
            path = path if root is None else root.expanduser().absolute() / path
            changed[field.name] = path if isinstance(value, Path) else f"{prefix}{path}"
    return replace(settings, **changed)


def make_work_dir(settings: RunSettings) -> None:
    """Make the folder of --work-dir, if there is none. Raises ChimeraError E811."""
    if settings.work_dir is None:
        return
    try:
        settings.work_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        what = f"the folder {short_path(settings.work_dir)} cannot be made: {reason(error).lower()}"
        raise refuse("E811", what, help=f"give --work-dir, or the variable {VARIABLES['work_dir']}, another folder") from None
