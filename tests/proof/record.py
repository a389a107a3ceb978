"""docs/proof.md: every part of the proof rewrites its own block, and nothing else is typed between the marks.

    <!-- recorded: NAME -->
    ...
    <!-- end -->

A part is a script, `python -m tests.proof.NAME`, that runs and ends with `record(NAME, stamp(...) + table(...))`.
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

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proof.md"
PARTS = ("explorer", "kills", "fuzz", "growth")


def block(name: str) -> re.Pattern[str]:
    """Return what finds the block of a part; its body is the second group."""
    return re.compile(rf"(^<!-- recorded: {name} -->\n)(.*?)(^<!-- end -->$)", re.MULTILINE | re.DOTALL)


def recorded(name: str, page: Path = PAGE) -> str:
    """Return what a part has recorded."""
    found = block(name).search(page.read_text(encoding="utf-8"))
    assert found, f"{page} has no block '{name}'"
    return found[2]


def rows(name: str, page: Path = PAGE) -> list[list[dict[str, str]]]:
    """Return the tables that a part has recorded, each row by the names of its columns."""
    found = []
    for lines in re.findall(r"(?:^\|.*\n)+", recorded(name, page), re.MULTILINE):
        head, _, *rest = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
        found.append([dict(zip(head, row, strict=True)) for row in rest])
    return found


def record(name: str, body: str, page: Path = PAGE) -> None:
    """Rewrite the block of a part; others may be doing the same with theirs."""
    with page.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text, count = block(name).subn(lambda m: f"{m[1]}\n{body.strip()}\n\n{m[3]}", file.read())
        assert count == 1, f"{page} has {count} blocks '{name}'"
        file.seek(0)
        file.truncate()
        file.write(text)


def stamp(seconds: float, seed: object, packages: Sequence[str] = ("numpy", "torch", "hypothesis")) -> str:
    """Return the line that says when, with what and for how long a part ran."""
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)])
    line = f"Recorded {datetime.now(UTC):%Y-%m-%d}, in {max(1, round(seconds / 60))} minutes. Seed {seed}. {versions}."
    return textwrap.fill(line, 120) + "\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. Numbers get commas."""
    cells = [head, ["---"] * len(head), *([f"{x:,}" if isinstance(x, int) else str(x) for x in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in cells) + "\n"
