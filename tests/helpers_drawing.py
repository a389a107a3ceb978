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

    Args:
        panel: its number in the picture.
        part: 0, or 1 for the right part of a panel that is drawn without its middle.
    """
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=builder))
    texts = list(_texts(root))
    by_rank: dict[int, list[DrawnBox]] = {}
    for group in root.iter(f"{SVG}g"):
        if match := re.fullmatch(rf"panel-{panel}-part-{part}-rank-(\d+)", group.get("id", "")):
            boxes = [_drawn_box(path, texts) for path in group.iter(f"{SVG}path")]
            by_rank[int(match[1])] = sorted(boxes, key=lambda box: (box.left, box.top))
    return by_rank


def check_boxes(svg: str, panel: Panel) -> None:
    """Check that a picture has exactly the boxes of its only panel: their ranks, order, times, colours, numbers and stages."""
    boxes, drawn, table = boxes_of(panel), drawn_boxes(svg), panel.program.table
    assert set(drawn) == set(boxes.rank.tolist()), "the ranks in the picture are not those of the panel"
    left = min(of_rank[0].left for of_rank in drawn.values())
    right = max(box.right for of_rank in drawn.values() for box in of_rank)
    begin, end = float(boxes.start.min()), float(boxes.end.max())
    for rank, of_rank in drawn.items():
        # Of two boxes that begin at the same time, the upper one comes first; its `half` is smaller.
        expected = sorted(np.flatnonzero(boxes.rank == rank).tolist(), key=lambda k: (boxes.start[k], boxes.half[k]))
        assert len(of_rank) == len(expected), f"rank {rank} has {len(of_rank)} boxes"
        for k, box in zip(expected, of_rank, strict=True):
            for time, x in ((boxes.start[k], box.left), (boxes.end[k], box.right)):
                assert abs((time - begin) / (end - begin) - (x - left) / (right - left)) < 1e-4
            assert box.colour == shade(int(table.pipe[boxes.row[k]]), int(table.op[boxes.row[k]]))
            number, stage = boxes.number[k], boxes.stage[k]
            allowed = [(number, stage), (f"{number}.{stage}",)] if stage else [(number,)]  # the stage is below, or after a dot
            assert box.texts in allowed


def _drawn_box(path: ElementTree.Element, texts: list[tuple[str, float, float]]) -> DrawnBox:
    numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", path.get("d", ""))]
    xs, ys = numbers[0::2], numbers[1::2]  # x and y alternate in a path
    left, right, top, bottom = min(xs), max(xs), min(ys), max(ys)
    inside = tuple(text for text, x, y in texts if left < x < right and top < y <= bottom)
    colour = re.search(r"fill: (#\w+)", path.get("style", ""))
    return DrawnBox(left, right, top, bottom, colour[1] if colour else "", inside)


def _texts(root: ElementTree.Element) -> list[tuple[str, float, float]]:
    """Return each text with the x and y of the left end of its baseline.

    matplotlib writes a text as a comment, and after it the outlines of its characters.
    """
    found = []
    for group in root.iter(f"{SVG}g"):
        if not group.get("id", "").startswith("text"):
            continue
        children = list(group)  # a white box behind the text may come before the comment
        k = next(k for k, child in enumerate(children) if child.tag is ElementTree.Comment)
        place = re.search(r"translate\(([-\d.]+) ([-\d.]+)\)", children[k + 1].get("transform", ""))
        assert place and children[k].text
        found.append((str(children[k].text).strip(), float(place[1]), float(place[2])))
    return found
