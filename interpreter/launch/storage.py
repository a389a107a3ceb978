"""Storage: the folders --data-dir and --work-dir of a run, from which relative paths of some of its other settings start."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.data.names import below, name_below
from chimerac.interpreter.launch.settings import RunSettings

# Field of RunSettings -> the environment variable that gives this folder where the command line does not.
VARIABLES = {"work_dir": "CHIMERAC_WORK_DIR", "data_dir": "CHIMERAC_DATA_DIR"}


def from_environment() -> dict[str, Path]:
    """Return the folders that environment variables give, by field of RunSettings."""
    return {name: Path(os.environ[variable]) for name, variable in VARIABLES.items() if os.environ.get(variable)}


def resolved(settings: RunSettings) -> RunSettings:
    """Return the settings with resolved paths: those of --work-dir, --data-dir, and the fields with one of them as `folder`.

    The two folders become absolute. A relative path of another field is put below its folder. If this folder is not given, the
    path stays relative to the folder in which the command runs. In each path, a `~` at the beginning is the home folder.
    """
    changed: dict[str, Any] = {}
    for field in fields(settings):
        value, folder = getattr(settings, field.name), field.metadata["folder"]
        if value is None or (folder is None and field.name not in VARIABLES):
            continue
        root = Path() if folder is None else getattr(settings, folder)
        match value:
            case Path():
                changed[field.name] = below(value, root)
            case "auto" | "no" if field.name == "resume":  # no path
                pass
            case str() if field.name == "data":
                changed[field.name] = name_below(value, root)
            case str():
                changed[field.name] = str(below(Path(value), root))
    return replace(settings, **changed)


def make_work_dir(settings: RunSettings) -> None:
    """Make the folder of --work-dir, if there is none. Raises ChimeraError E811."""
    if settings.work_dir is None:
        return
    try:
        settings.work_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        what = f"the folder {short_path(settings.work_dir)} cannot be made: {reason(error)}"
        raise refuse("E811", what, help=f"give --work-dir, or the variable {VARIABLES['work_dir']}, another folder") from None
