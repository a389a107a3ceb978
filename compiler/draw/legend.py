"""The legend of a picture, and the notes about what it leaves out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.chimera_ir.numbers import number_text
from chimerac.compiler.draw.extent import POINTS_PER_INCH, Extent
from chimerac.compiler.draw.panels import Boxes, Panel
from chimerac.compiler.draw.shades import ALL_REDUCE_HATCH, PIPES, RECOMPUTE_HATCH, shade
from chimerac.compiler.draw.timeline import MAX_PIPES, WORDS, ids_text

CHARACTER = 0.57  # about the width of a character of a text, as a part of the font's size
BEFORE_TEXT, AFTER_TEXT = 0.02, 0.14  # inches: the spaces around the text of an entry


@dataclass(frozen=True, slots=True)
class Swatch:
    """A box with a colour and perhaps a hatch, or a mark, which is a character.

    Attributes:
        hatch: in the notation of matplotlib.
    """

    WIDTH: ClassVar[float] = 0.17  # inches, with the space after it

    colour: str = ""
    hatch: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """Swatches, and the text that says what they mean."""

    swatches: tuple[Swatch, ...]
    text: str


def legend(panels: Sequence[Panel], has_all_reduces: bool, has_stages: bool) -> list[list[Entry]]:
    """Return the legend in three groups: the kinds of tasks; the pipes; all-reduces, messages and what the numbers are.

    The group of the pipes is empty if there are several panels, or only one pipe.

    Args:
        has_all_reduces: all-reduces are drawn.
        has_stages: boxes show their stages.
    """
    tables = [p.program.table for p in panels]
    used = [form.op for form in FORMS if form.letter and any((t.op == form.op).any() for t in tables)]
    hues = min(max((len(p.program.header.pipes) for p in panels), default=1), len(PIPES))
    letters = {op: FORMS[op].letter for op in used}
    tasks = [Entry(tuple(_swatch(k, op) for k in range(hues)), f"{letter} {WORDS[letter]}") for op, letter in letters.items()]
    of_pipes, marks = [], []
    pipes = panels[0].program.header.pipes if len(panels) == 1 else ()
    if len(pipes) > 1:
        for k, pipe in enumerate(pipes[:MAX_PIPES]):
            ids = ids_text(pipe.micro_batches) or "none"
            of_pipes.append(Entry(tuple(_swatch(k, op) for op in used), f"pipe {pipe.name}: micro-batches {ids}"))
        if len(pipes) > MAX_PIPES:
            of_pipes.append(Entry((), f"and {count_text(len(pipes) - MAX_PIPES, 'more pipe')}"))
    if has_all_reduces:
        # An all-reduce that takes no time, or of which only the launches are known, is drawn as a mark, and any other as a box.
        has_marks = any(p.all_reduces is None or (p.all_reduces[0] == p.all_reduces[1]).any() for p in panels)
        has_boxes = any(p.all_reduces is not None and (p.all_reduces[0] < p.all_reduces[1]).any() for p in panels)
        swatches = [Swatch(mark="▲")] * has_marks + [Swatch("#ffffff", ALL_REDUCE_HATCH)] * has_boxes
        marks.append(Entry(tuple(swatches), "all-reduce of gradients"))
    if any(p.messages is not None and (p.messages.end > p.messages.start).any() for p in panels):
        marks.append(Entry((Swatch(mark="╲"),), "message on its way"))
    stage = "; the stage is below them, or after a dot" if has_stages else ""
    marks.append(Entry((), f"numbers are micro-batches{stage}"))
    if any(p.counts_idle for p in panels):
        marks.append(Entry((), "numbers in red italics count idle slots"))
    return [tasks, of_pipes, marks]


def _swatch(pipe: int, op: Op) -> Swatch:
    return Swatch(shade(pipe, op), RECOMPUTE_HATCH if op == Op.RECOMPUTE else "")


def notes(
    panels: Sequence[Panel], chosen: Sequence[Sequence[int]], boxes: Sequence[Boxes], drawn: Extent, hides_numbers: bool
) -> list[str]:
    """Return sentences about what is not drawn.

    Args:
        chosen: the ranks of each panel that are drawn.
        boxes: the boxes of these ranks, also at times that are not drawn.
        hides_numbers: some boxes are drawn without their numbers.
    """
    sentences = []
    if drawn.left_out is not None:
        low, high = drawn.left_out
        missing = "" if len(panels) > 1 else _missing(panels[0], boxes[0], drawn)
        sentences.append(f"The time from {number_text(low)} to {number_text(high)} is not drawn{missing}.")
    if any(len(ranks) < p.program.world for p, ranks in zip(panels, chosen, strict=True)):
        shown = [f"{len(ranks)} of {p.program.world}" for p, ranks in zip(panels, chosen, strict=True)]
        sentences.append(f"Ranks drawn: {', '.join(dict.fromkeys(shown))}.")
    if hides_numbers:
        sentences.append("Boxes that are too narrow have no number.")
    return sentences


def _missing(panel: Panel, boxes: Boxes, drawn: Extent) -> str:
    """Return the rest of a sentence: those micro-batches of `boxes` of which no task is drawn; '' if there are none."""
    p = panel.program
    all_ids: set[int] = set()
    shown: set[int] = set()
    for row, start, end in zip(boxes.row.tolist(), boxes.start.tolist(), boxes.end.tolist(), strict=True):
        ids = p.micro_batch_lists[int(p.table.operand[row])]
        all_ids.update(ids)
        if drawn.shows(start, end):
            shown.update(ids)
    missing = sorted(all_ids - shown)
    return f", nor any task of micro-batches {ids_text(missing)}" if missing else ""


def wrapped(text: str, inches: float, points: float) -> list[str]:
    """Return a text as lines of about this width, or of 20 characters if that is more; one empty line for an empty text.

    A longer word is not broken.

    Args:
        points: the size of the font.
    """
    return textwrap.wrap(text, max(20, int(inches / (CHARACTER * points / POINTS_PER_INCH))), break_long_words=False) or [""]


def flowed(groups: Sequence[Sequence[Entry]], inches: float, points: float) -> list[list[tuple[float, Entry]]]:
    """Return the lines of a legend: entries, each with the place where it begins, in inches from the left.

    If not all entries fit into one line, each group begins a line.

    Args:
        inches: the width of a line.
        points: the size of the font.
    """
    whole = _lines([entry for group in groups for entry in group], inches, points)
    return whole if len(whole) == 1 else [line for group in groups if group for line in _lines(group, inches, points)]


def _lines(entries: Sequence[Entry], inches: float, points: float) -> list[list[tuple[float, Entry]]]:
    """Return the lines that entries take one after another: in each line its entries, each with the place where it begins.

    A line is wider than `inches` only if its one entry is.
    """
    lines: list[list[tuple[float, Entry]]] = [[]]
    x = 0.0
    for entry in entries:
        text_width = CHARACTER * points / POINTS_PER_INCH * len(entry.text)
        width = Swatch.WIDTH * len(entry.swatches) + BEFORE_TEXT + text_width + AFTER_TEXT
        if lines[-1] and x + width > inches:
            lines.append([])
            x = 0.0
        lines[-1].append((x, entry))
        x += width
    return lines
