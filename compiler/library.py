"""The library: the schedule files that come with the project, found by name or by path."""

from __future__ import annotations

import difflib
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from chimerac.chimera_ir.diagnostics import Source, did_you_mean, refuse
from chimerac.chimera_ir.files import read, short_path
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.printer import expression

_SCHEDULES = resources.files("chimerac.schedules")
MIN_COLUMNS = 24  # the narrowest width in which titles are wrapped


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule of the library.

    Attributes:
        title, source: from the comment of its file.
        parameters: as text, with their defaults.
    """

    name: str
    title: str
    source: str
    parameters: str


def names() -> list[str]:
    """Return the names of the library's schedules."""
    return sorted(f.name.removesuffix(".sched") for f in _SCHEDULES.iterdir() if f.name.endswith(".sched"))


def entries() -> Iterator[Entry]:
    """Yield the schedules of the library. Title and source are the first line and the `Source:` line of a file's comment."""
    for name in names():
        text = _library_text(name)
        comment = re.findall(r"^#\s?(.*)$", text, re.MULTILINE)
        source = next((c.removeprefix("Source:").strip() for c in comment if c.startswith("Source:")), "")
        tree = parse(Source(f"{name}.sched", text))
        params = [s for s in tree.statements if isinstance(s, n.Param)]
        values = " ".join(
            f"{p.name.name}={expression(p.default).replace(' ', '')}" if p.default else p.name.name for p in params
        )
        yield Entry(name, comment[0] if comment else "", source, values)


def library_table(columns: int | None = None) -> str:
    """Return the library as a table in text.

    Args:
        columns: its greatest width, but at least MIN_COLUMNS + 2; None for any.

    If one line for each schedule would be too wide, titles and sources are wrapped: beside names and parameters if MIN_COLUMNS
    are left for them, else below the names, and so are the parameters.
    """
    rows = [(e.name, e.parameters, e.title, f"[{e.source}]") for e in entries()]
    names_width, parameters_width, titles_width, sources_width = (max(map(len, column)) for column in zip(*rows, strict=True))
    heads = [f"{name:<{names_width}}  {parameters:<{parameters_width}}  " for name, parameters, _, _ in rows]
    begin = len(heads[0])  # the column of the titles
    if columns is None or begin + titles_width + 2 + sources_width <= columns:
        tails = [f"{title:<{titles_width}}  {source}\n" for _, _, title, source in rows]
        return "".join(head + tail for head, tail in zip(heads, tails, strict=True))
    is_beside = columns >= begin + MIN_COLUMNS
    indent = " " * (begin if is_beside else 2)
    text = ""
    for head, (name, parameters, title, source) in zip(heads, rows, strict=True):
        parts = [title, source] if is_beside else [parameters, title, source]
        available = max(MIN_COLUMNS, columns - len(indent))
        lines = [line for part in parts for line in textwrap.wrap(part, available, break_on_hyphens=False)]
        text += head + lines.pop(0) if is_beside else name
        text += "".join(f"\n{indent}{line}" for line in lines) + "\n"
    return text


def _library_text(name: str) -> str:
    """Return the text of a schedule of the library."""
    return _SCHEDULES.joinpath(f"{name}.sched").read_text(encoding="utf-8")


def _path_of(name: str) -> str:
    """Return the path of a schedule of the library, relative to the current folder if it is below that."""
    file = _SCHEDULES.joinpath(f"{name}.sched")
    if not isinstance(file, Path):
        return f"schedules/{name}.sched"  # the package is in an archive: there is no path
    file = file.resolve()  # chimerac/schedules is a link in a checkout
    with suppress(OSError, ValueError):  # the current folder is gone, or the file is not below it
        return str(file.relative_to(Path.cwd().resolve()))
    return str(file)


def _suggestion(name: str, others: Iterable[str]) -> str:
    """Return help for a name that is unknown.

    Args:
        others: words of the command line that may have been meant.
    """
    near = did_you_mean(name, [*names(), *others])
    return near if near.startswith("did you mean") else did_you_mean(name, names())  # without a similar word: known schedules


def _files_beside(path: Path) -> list[Path]:
    """Return the files in the folder of a path; none if it cannot be read."""
    try:
        return [path.with_name(entry.name) for entry in os.scandir(path.parent) if entry.is_file()]
    except (OSError, ValueError):
        return []


def find(name_or_path: str | os.PathLike[str], others: Iterable[str] = ()) -> Source:
    """Return the text of a file, or of the library's schedule of that name.

    Args:
        others: further words that may have been meant.

    NAME, NAME.sched and schedules/NAME.sched select the library's file if there is no such file, so that commands work outside
    the checkout. Findings then name the path of the library's file.

    Raises ChimeraError E001: no such file or schedule, or a file that cannot be read.
    """
    if not os.fspath(name_or_path):
        raise refuse("E001", "the name of the schedule is empty", help="chimerac --list names the library's schedules")
    path = Path(name_or_path)
    # os.path returns False for a name that no file can have; pathlib raises. What exists but is no regular file, such as a
    # pipe, is read, unless a schedule of the library has its name.
    if not os.path.isfile(path) and (not os.path.exists(path) or str(path) in names()):
        name = path.name.removesuffix(".sched")
        if name in names() and str(path) in (name, f"{name}.sched", f"schedules/{name}.sched"):
            return Source(_path_of(name), _library_text(name))
        by_stem = {file.stem: file for file in _files_beside(path) if file.suffix in (".sched", path.suffix)}
        near = difflib.get_close_matches(path.stem, by_stem, n=1, cutoff=0.7)
        help = f"did you mean '{by_stem[near[0]]}'?" if near else _suggestion(name, others)
        raise refuse("E001", f"there is no file {short_path(path)}, and no schedule of that name", help=help)
    return Source(str(path), read(path))
