"""Names of data sources, as `--data` gives them: `text`, `digits`, `cifar10`, `hf:FOLDER`, `text:PATH`, or a path."""

from __future__ import annotations

from pathlib import Path

TEXT, FOLDER, TEXT_AT = "text", "hf:", "text:"
SIZES = {"digits": (8, 1), "cifar10": (32, 3)}  # data sets of images: side and channels


def below(path: Path, root: Path | None) -> Path:
    """Return a relative path as a path below `root`, which becomes absolute. Other paths stay as they are.

    root: None leaves all paths as they are. A path that begins with `~` is below the home folder.
    """
    path = _expanded(path)
    return path if root is None else _expanded(root).absolute() / path


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # there is no such user: it is the name of a file
        return path


def name_below(name: str, root: Path | None) -> str:
    """Return the name of a source, in which the path, if there is one, is replaced as by `below`."""
    if name == TEXT or name in SIZES:
        return name
    prefix = next((prefix for prefix in (FOLDER, TEXT_AT) if name.startswith(prefix)), "")
    return f"{prefix}{below(Path(name.removeprefix(prefix)), root)}"
