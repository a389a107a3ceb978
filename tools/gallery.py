"""Draw the pictures for docs/gallery.md and docs/bubbles.md: docs/gallery/*.svg and docs/bubbles/*.svg.

    python -m tools.gallery

`make figures` also does this, and then writes the generated parts of the pages. tests/unit/test_drawing_gallery.py checks that
the pictures show what the compiler makes now.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

from chimerac.compiler.analyze.compare import Compared, Setting, compare
from chimerac.compiler.analyze.panels import simulated_panel, time_label
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.command.main import main
from chimerac.compiler.draw.panels import Panel
from chimerac.compiler.draw.picture import draw_picture
from chimerac.compiler.draw.slots import draw_slots, idle_slots
from chimerac.compiler.library import entries, find
from chimerac.compiler.pipeline import compile_source
from tools import ROOT

GALLERY, BUBBLES = ROOT / "docs/gallery", ROOT / "docs/bubbles"
RANKS = 4
MICRO_BATCHES = (4, 8)  # a schedule is drawn with the first of these numbers with which it can run
UNIT = {"F": Fraction(1), "B": Fraction(1)}  # a forward and a full backward take one slot each
# The pictures in docs/bubbles, SCHEDULE or SCHEDULE_N, and the N of each. docs/bubbles.md shows all of them but 1f1b.
COUNTED = {"gpipe": 4, "1f1b": 4, "dapple": 4, "chimera": 4, "gpipe_8": 8, "chimera_8": 8}


@cache
def compared(name: str) -> tuple[int, Compared]:
    """Return a schedule's number of micro-batches in the gallery, and its row of the comparison, whose figures are not None."""
    for n in MICRO_BATCHES:
        row = compare({name: find(name)}, Setting({"D": RANKS, "N": n}))[0]
        if row.figures is not None:
            return n, row
    raise AssertionError(f"{name} runs at none of the gallery's sizes: {row.reason}")


def command(name: str) -> list[str]:
    """Return the arguments of chimerac that draw a schedule of the gallery. The last one is the path of the picture."""
    n, _ = compared(name)
    return ["compare", name, "-p", f"D={RANKS}", "-p", f"N={n}", "--emit", "svg", "-o", f"{name}.svg"]


def counted_panel(name: str) -> Panel:
    """Return the panel of a picture of COUNTED: tasks of one slot each, idle slots with numbers."""
    schedule, n = name.partition("_")[0], COUNTED[name]
    program = compile_source(find(schedule), {"D": RANKS, "N": n}).program
    simulation = simulate(program, UNIT)
    idle = idle_slots(simulation.timeline, program)
    facts = f"{_span(idle)} idle slots on each rank, {simulation.time(simulation.makespan)} slots in all"
    return simulated_panel(simulation, f"{schedule} D={RANKS} N={n}", counts_idle=True).with_facts(facts)


def counted_label(name: str) -> str:
    """Return the text below the time axis of a picture of COUNTED."""
    return time_label(simulate(counted_panel(name).program, UNIT))


def gallery(_: str) -> str:
    """Return the gallery: a table of all schedules, then a section with the picture of each."""
    lines = ["", "| schedule | N | makespan | bubble ratio | wall bubble | activations | weights | messages |"]
    lines.append("|---" + "|---:" * 7 + "|")
    for e in entries():
        lines.append(f"| [{e.name}](#{e.name}) | " + " | ".join(_cells(e.name)) + " |")
    for e in entries():
        n, row = compared(e.name)
        assert row.figures is not None
        arguments = " ".join(command(e.name))
        lines += ["", f"## {e.name}", "", e.title, ""]
        lines += [f"![Timeline of {e.name} on {RANKS} ranks with {n} micro-batches](gallery/{e.name}.svg)", ""]
        lines += [textwrap.fill(f"Source: {e.source}.", 120, break_on_hyphens=False), ""] if e.source else []
        lines += [f"`chimerac {arguments}`"]
    return "\n".join([*lines, "", ""])


def _cells(name: str) -> Iterator[str]:
    """Yield the cells of a schedule's row in the table, without its name."""
    n, row = compared(name)
    figures = row.figures
    assert figures is not None
    yield from (str(n), _text(figures.makespan), f"{100 * figures.bubble_ratio:.1f} %")
    yield from (_span(x) for x in (figures.wall_bubble, figures.activations, figures.weights))
    yield _text(figures.messages)


def _text(value: Fraction | int) -> str:
    return f"{float(value):g}"


def _span(values: tuple[Fraction | int, ...]) -> str:
    low, high = _text(min(values)), _text(max(values))
    return low if low == high else f"{low} to {high}"


def slots(arguments: str) -> str:
    """Return the drawing of a schedule in slots, as a fenced block.

    Args:
        arguments: name and parameters, such as gpipe D=4 N=4.
    """
    name, *parameters = arguments.split()
    sizes = {key: int(value) for key, _, value in (p.partition("=") for p in parameters)}
    program = compile_source(find(name), sizes).program
    return f"```text\n{draw_slots(program, simulate(program, UNIT).timeline)}```\n"


def write() -> Iterator[Path]:
    """Write all pictures, and yield their paths."""
    for folder in (GALLERY, BUBBLES):
        folder.mkdir(exist_ok=True)
    for e in entries():
        path = GALLERY / f"{e.name}.svg"
        *without_path, _ = command(e.name)
        if main([*without_path, str(path)]):
            raise SystemExit(f"{e.name} could not be drawn")
        yield path
    for name in COUNTED:
        path = BUBBLES / f"{name}.svg"
        path.write_bytes(draw_picture([counted_panel(name)], "svg", counted_label(name)))
        yield path


def run() -> int:
    """Write the pictures; return the exit status."""
    for path in write():
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(run())
