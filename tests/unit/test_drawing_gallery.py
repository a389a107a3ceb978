"""The pictures of docs/gallery.md and docs/bubbles.md show what the compiler makes now: python -m tools.gallery draws them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chimerac.compiler.analyze.panels import simulated_panel
from chimerac.compiler.draw.panels import Panel, boxes_of
from chimerac.compiler.draw.shades import shade
from chimerac.compiler.library import names
from tests.helpers_drawing import cells
from tools.gallery import BUBBLES, COUNTED, GALLERY, compared, counted_panel


def check(path: Path, panel: Panel) -> None:
    """Check every box of a picture: order, place, colour and number."""
    svg = path.read_text(encoding="utf-8")
    assert panel.facts in svg, f"{path.name} is out of date: run python -m tools.gallery"
    boxes, rows, table = boxes_of(panel), cells(svg), panel.program.table
    left = min(row[0].left for row in rows.values())
    right = max(cell.right for row in rows.values() for cell in row)
    low, high = float(boxes.start.min()), float(boxes.end.max())
    for rank, row in rows.items():
        own = sorted(np.flatnonzero(boxes.rank == rank).tolist(), key=lambda k: (boxes.start[k], boxes.half[k]))
        expected = [(shade(int(table.pipe[boxes.row[k]]), int(table.op[boxes.row[k]])), boxes.number[k]) for k in own]
        assert [(cell.colour, cell.texts[0].partition(".")[0]) for cell in row] == expected, f"{path.name}, rank {rank}"
        places = [(cell.left - left) / (right - left) for cell in row]
        assert np.allclose(places, (boxes.start[own] - low) / (high - low), atol=1e-4)


@pytest.mark.parametrize("name", names())
def test_pictures_of_the_gallery(name: str) -> None:
    _, row = compared(name)
    assert row.figures is not None
    check(GALLERY / f"{name}.svg", simulated_panel(row.figures.simulation))


@pytest.mark.parametrize("name", COUNTED)
def test_pictures_with_counted_slots(name: str) -> None:
    panel = counted_panel(name)
    check(BUBBLES / f"{name}.svg", panel)
    idle = {"chimera": 4 - 2}.get(name.partition("_")[0], 2 * (4 - 1))  # D - 2 in two directions, 2(D - 1) in one
    assert panel.facts.startswith(f"{idle} idle slots on each rank")


def test_no_picture_is_left_over() -> None:
    assert {p.stem for p in GALLERY.iterdir()} == set(names())
    assert {p.stem for p in BUBBLES.iterdir()} == set(COUNTED)
