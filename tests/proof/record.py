"""Recorded blocks of the documentation: a run that has results rewrites its own block of a page.

    <!-- recorded: NAME -->
    ...
    <!-- end -->

Each part of `make proof` that is recorded is a script, `python -m tests.proof.NAME`. It writes its block of
docs/proof.md with `record(NAME, text)`, where the text begins with `stamp(...)` and has one or more of `table(...)`.
Commands of tools/ write the blocks of other pages.
"""

from __future__ import annotations

import fcntl
import platform
import re
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tools import ROOT

PAGE = ROOT / "docs" / "proof.md"
PARTS = ("explorer", "kills", "fuzz", "growth")  # the blocks of PAGE


def block(name: str) -> re.Pattern[str]:
    """Return the pattern of a block. Its body is the second group of the pattern."""
    return re.compile(rf"(^<!-- recorded: {name} -->\n)(.*?)(^<!-- end -->$)", re.MULTILINE | re.DOTALL)


def recorded(name: str, page: Path = PAGE) -> str:
    """Return the recorded text of a block."""
    found = block(name).search(page.read_text(encoding="utf-8"))
    assert found, f"{page} has no block '{name}'"
    return found[2]


def rows(name: str, page: Path = PAGE) -> list[list[dict[str, str]]]:
    """Return the recorded tables of a block: of each table its rows, and of each row its cells by the name of the column."""
    tables = []
    for lines in re.findall(r"(?:^\|.*\n)+", recorded(name, page), re.MULTILINE):
        head, _, *rest = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
        tables.append([dict(zip(head, row, strict=True)) for row in rest])
    return tables


def record(name: str, body: str, page: Path = PAGE) -> None:
    """Rewrite a block. The file is locked, because other runs may rewrite other blocks of it at the same time."""
    with page.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text, count = block(name).subn(lambda m: f"{m[1]}\n{body.strip()}\n\n{m[3]}", file.read())
        assert count == 1, f"{page} has {count} blocks '{name}'"
        file.seek(0)
        file.truncate()
        file.write(text)


def stamp(seconds: float, seed: object, packages: Sequence[str] = ("numpy", "torch", "hypothesis")) -> str:
    """Return a paragraph with the date, the duration, the seed and the versions of a run.

    The duration is in minutes, at least one.

    Args:
        packages: those whose versions are given.
    """
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)])
    minutes = max(1, round(seconds / 60))
    duration = f"{minutes} minute{'s' * (minutes > 1)}"
    line = f"Recorded {datetime.now(UTC):%Y-%m-%d}, in {duration}. Seed {seed}. {versions}."
    return textwrap.fill(line, 120) + "\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. Integers get thousands separators."""
    cells = [head, ["---"] * len(head), *([f"{x:,}" if isinstance(x, int) else str(x) for x in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in cells) + "\n"
