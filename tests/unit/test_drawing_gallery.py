"""The pictures of docs/gallery.md and docs/bubbles.md show what the compiler makes now: python -m tools.gallery draws them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimerac.compiler.analyze.panels import simulated_panel
from chimerac.compiler.draw.panels import Panel
from chimerac.compiler.library import names
from tests.helpers_drawing import check_boxes
from tools.gallery import BUBBLES, COUNTED, GALLERY, compared, counted_panel


def check(path: Path, panel: Panel) -> None:
    """Check the boxes of a picture and its line of facts."""
    svg = path.read_text(encoding="utf-8")
    assert panel.facts in svg, f"{path.name} is out of date: run python -m tools.gallery"
    check_boxes(svg, panel)


@pytest.mark.parametrize("name", names())
def test_pictures_of_the_gallery_are_up_to_date(name: str) -> None:
    _, row = compared(name)
    assert row.figures is not None
    check(GALLERY / f"{name}.svg", simulated_panel(row.figures.simulation))


@pytest.mark.parametrize("name", COUNTED)
def test_pictures_with_counted_slots_are_up_to_date(name: str) -> None:
    panel = counted_panel(name)
    check(BUBBLES / f"{name}.svg", panel)
    is_bidirectional, ranks = name.startswith("chimera"), 4
    idle = ranks - 2 if is_bidirectional else 2 * (ranks - 1)
    assert panel.facts.startswith(f"{idle} idle slots on each rank")


def test_no_picture_is_left_over() -> None:
    assert {p.stem for p in GALLERY.iterdir()} == set(names())
    assert {p.stem for p in BUBBLES.iterdir()} == set(COUNTED)
