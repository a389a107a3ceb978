"""Names of data sources, as `--data` gives them: `text`, `digits`, `cifar10`, `hf:FOLDER`, `text:PATH`, or a path."""

from __future__ import annotations

from pathlib import Path

TEXT, FOLDER, TEXT_AT = "text", "hf:", "text:"
SIZES = {"digits": (8, 1), "cifar10": (32, 3)}  # data sets of images: side and channels


def below(path: Path, root: Path | None) -> Path:
    """Return an absolute path as it is, and a relative one as an absolute path below `root`.

    Args:
        root: None leaves a relative path as it is.

    A `~` at the beginning of `path` or of `root` becomes the home folder.
    """
    path = _expanded(path)
    return path if root is None else _expanded(root).absolute() / path


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # `~NAME` without such a user is the name of a file
        return path


def name_below(name: str, root: Path | None) -> str:
    """Return the name of a source, in which the path, if there is one, is replaced as by `below`."""
    if _is_data_set(name):
        return name
    prefix = next((prefix for prefix in (FOLDER, TEXT_AT) if name.startswith(prefix)), "")
    path = str(below(Path(name.removeprefix(prefix)), root))
    return f"{prefix or TEXT_AT if _is_data_set(path) else prefix}{path}"  # pathlib leaves `digits` of `./digits`


def _is_data_set(name: str) -> bool:
    return name == TEXT or name in SIZES
