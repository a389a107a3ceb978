"""Reads an SVG of compiler/draw/picture.py back, and compares its boxes with those of a panel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from chimerac.compiler.draw.panels import Panel, boxes_of
from chimerac.compiler.draw.shades import shade

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class DrawnBox:
    """A box as it is drawn: its edges in points of the picture, its colour, and the texts in it."""

    left: float
    right: float
    top: float
    bottom: float
    colour: str
    texts: tuple[str, ...]


def drawn_boxes(svg: str, panel: int = 0, part: int = 0) -> dict[int, list[DrawnBox]]:
    """Return the boxes of a panel by rank, from left to right.

    part: of a panel that is drawn without its middle, 0 for the left part and 1 for the right one.
    """
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=builder))
    texts = list(_texts(root))
    found: dict[int, list[DrawnBox]] = {}
    for group in root.iter(f"{SVG}g"):
        if match := re.fullmatch(rf"panel-{panel}-part-{part}-rank-(\d+)", group.get("id", "")):
            boxes = [_drawn_box(path, texts) for path in group.iter(f"{SVG}path")]
            found[int(match[1])] = sorted(boxes, key=lambda box: (box.left, box.top))
    return found


def check_boxes(svg: str, panel: Panel) -> None:
    """Check that a picture has exactly the boxes of its only panel: their order, places, colours, numbers and stages."""
    boxes, rows, table = boxes_of(panel), drawn_boxes(svg), panel.program.table
    assert set(rows) == set(boxes.rank.tolist()), "a rank is missing"
    left = min(row[0].left for row in rows.values())
    right = max(box.right for row in rows.values() for box in row)
    low, high = float(boxes.start.min()), float(boxes.end.max())
    for rank, row in rows.items():
        expected = sorted(np.flatnonzero(boxes.rank == rank).tolist(), key=lambda k: (boxes.start[k], boxes.half[k]))
        assert len(row) == len(expected), f"rank {rank} has {len(row)} boxes"
        for k, box in zip(expected, row, strict=True):
            for time, x in ((boxes.start[k], box.left), (boxes.end[k], box.right)):
                assert abs((time - low) / (high - low) - (x - left) / (right - left)) < 1e-4
            assert box.colour == shade(int(table.pipe[boxes.row[k]]), int(table.op[boxes.row[k]]))
            number, stage = boxes.number[k], boxes.stage[k]
            allowed = [(number, stage), (f"{number}.{stage}",)] if stage else [(number,)]  # the stage is below, or after a dot
            assert box.texts in allowed


def _drawn_box(path: ElementTree.Element, texts: list[tuple[str, float, float]]) -> DrawnBox:
    numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", path.get("d", ""))]
    x, y = numbers[0::2], numbers[1::2]
    left, right, top, bottom = min(x), max(x), min(y), max(y)
    inside = tuple(text for text, a, b in texts if left < a < right and top < b <= bottom)
    colour = re.search(r"fill: (#\w+)", path.get("style", ""))
    return DrawnBox(left, right, top, bottom, colour[1] if colour else "", inside)


def _texts(root: ElementTree.Element) -> list[tuple[str, float, float]]:
    """Return each text with the left end of its baseline. matplotlib writes a text as a comment before its outlines."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if not group.get("id", "").startswith("text"):
            continue
        children = list(group)  # the white box behind a text comes before it
        k = next(k for k, child in enumerate(children) if child.tag is ElementTree.Comment)
        place = re.search(r"translate\(([-\d.]+) ([-\d.]+)\)", children[k + 1].get("transform", ""))
        assert place and children[k].text
        found.append((str(children[k].text).strip(), float(place[1]), float(place[2])))
    return found
