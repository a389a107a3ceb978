"""Write the generated parts of README, docs and schedules, or check that they are up to date.

    python -m tools.figures                   check: print the differences, exit status 1 if there are any
    python -m tools.figures --write           write; `make figures` also writes the saved parser and the pictures
    python -m tools.figures --write --slow    also the output of `make ...`, which takes minutes and varies between runs

What is generated in a Markdown file, and what controls it:

    ```console                                  the output of `$ chimerac ...` commands; `| head -N` and `| tail -N` work.
    $ chimerac chimera --emit timeline          The commands run in the order of the file, in one temporary folder.
    ```
    <!-- file: ring.sched -->                   the fenced block below is written to this file of that folder, for the
                                                commands after it.
    <!-- include: schedules/chimera.sched -->   the body of the fenced block below is the text of this file.
    <!-- generated: slots gpipe D=4 N=4 -->     up to <!-- end -->, what the function GENERATED["slots"] returns for the
                                                rest of the marker, here gpipe D=4 N=4.

In a schedule, the comment lines directly after `# $ chimerac NAME ... --emit timeline` are generated.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path

from tools import ROOT
from tools.console import chimerac, console
from tools.generated import GENERATED

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCHEDULES = sorted((ROOT / "schedules").glob("*.sched"))
COLUMNS = 120  # of a drawing in a schedule's comment

_FENCE = re.compile(r"^(?P<open>```(?P<kind>\w*)\n)(?P<body>.*?)(?P<close>^```$)", re.MULTILINE | re.DOTALL)
# Matches a `file` or `include` marker at the end of the text above a fenced block.
_MARKER = re.compile(r"^<!-- (?P<what>file|include): (?P<rest>[^\n]*?) -->\n+\Z", re.MULTILINE)
_GENERATED = re.compile(
    r"(?P<open>^<!-- generated: (?P<name>\w+)(?P<rest>[^>]*?) -->\n)(?P<body>.*?)(?P<close>^<!-- end -->$)",
    re.MULTILINE | re.DOTALL,
)
_DRAWING = re.compile(r"^# \$ (?P<command>chimerac .*)\n(?P<body>(?:#.*\n)*)", re.MULTILINE)


def fill(text: str, slow: bool = False) -> str:
    """Return the text of a Markdown file with its generated parts up to date.

    Args:
        slow: with the output of `make ...` too.
    """
    text = _GENERATED.sub(lambda m: m["open"] + GENERATED[m["name"]](m["rest"].strip()) + m["close"], text)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):

        def block(m: re.Match[str]) -> str:
            marker = _MARKER.search(text[: m.start()])
            body = m["body"]
            if marker and marker["what"] == "include":
                body = (ROOT / marker["rest"]).read_text(encoding="utf-8")
            elif marker and marker["what"] == "file":
                Path(marker["rest"]).write_text(body, encoding="utf-8")
            elif m["kind"] == "console":
                body = console(body, slow)
            return m["open"] + body + m["close"]

        return _FENCE.sub(block, text)


def draw(text: str) -> str:
    """Return the text of a schedule's file with the drawings in its comments up to date.

    They show the library's schedule of the name in the command, not the schedule in `text`.
    """

    def drawing(m: re.Match[str]) -> str:
        _, *arguments = shlex.split(m["command"])
        lines = chimerac([*arguments, "--columns", str(COLUMNS)]).splitlines()
        return f"# $ {m['command']}\n" + "".join(f"# {line}".rstrip() + "\n" for line in lines)

    return _DRAWING.sub(drawing, text)


def expected(slow: bool = False) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, current text, expected text) of every schedule, README and every page of docs."""
    os.environ["COLUMNS"] = "80"  # argparse wraps the help of commands at this width
    for path in SCHEDULES:
        text = path.read_text(encoding="utf-8")
        yield path, text, draw(text)
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        yield path, text, fill(text, slow)


def differences() -> list[str]:
    """Return a diff for every file that is not up to date."""
    found = []
    for path, text, new in expected():
        if text != new:
            name = str(path.relative_to(ROOT))
            found.append(
                "\n".join(difflib.unified_diff(text.splitlines(), new.splitlines(), name, "as generated", lineterm="", n=1))
            )
    return found


def run(argv: Sequence[str] | None = None) -> int:
    """Write the generated parts, or print the differences; return the exit status."""
    parser = argparse.ArgumentParser(description="Write or check the generated parts of README, docs and schedules.")
    parser.add_argument("--write", action="store_true", help="write; without it, check")
    parser.add_argument("--slow", action="store_true", help="with --write: also the output of `make ...`")
    options = parser.parse_args(argv)
    if not options.write:
        found = differences()
        print("\n\n".join(found) + "\n\nrefresh with: make figures" if found else "all figures are up to date")
        return 1 if found else 0
    for path, text, new in expected(options.slow):
        if text != new:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(run())
