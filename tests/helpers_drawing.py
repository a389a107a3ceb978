"""Reading an SVG of compiler/draw/picture.py back: the boxes that it has, with their colours and the numbers in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Cell:
    """A box of a task as it is drawn: its edges in points of the picture, its colour, and the texts in it."""

    left: float
    right: float
    top: float
    bottom: float
    colour: str
    texts: tuple[str, ...]


def cells(svg: str, panel: int = 0, part: int = 0) -> dict[int, list[Cell]]:
    """Return the boxes of a panel by rank, from left to right.

    part: 0 and 1 are the parts of a panel that is drawn without its middle.
    """
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=builder))
    texts = list(_texts(root))
    found: dict[int, list[Cell]] = {}
    for group in root.iter(f"{SVG}g"):
        if match := re.fullmatch(rf"panel-{panel}-part-{part}-rank-(\d+)", group.get("id", "")):
            boxes = [_cell(path, texts) for path in group.iter(f"{SVG}path")]
            found[int(match[1])] = sorted(boxes, key=lambda c: (c.left, c.top))
    return found


def _cell(path: ElementTree.Element, texts: list[tuple[str, float, float]]) -> Cell:
    numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", path.get("d", ""))]
    x, y = numbers[0::2], numbers[1::2]
    left, right, top, bottom = min(x), max(x), min(y), max(y)
    inside = tuple(text for text, a, b in texts if left < a < right and top < b <= bottom)
    colour = re.search(r"fill: (#\w+)", path.get("style", ""))
    return Cell(left, right, top, bottom, colour[1] if colour else "", inside)


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
