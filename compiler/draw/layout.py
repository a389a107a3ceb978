"""The layout of a picture: the sizes of its parts in inches, and which texts fit where. It does not need matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.table import Ints
from chimerac.compiler.draw.extent import BREAK, Extent, extent, font_size, text_inches
from chimerac.compiler.draw.legend import legend, notes, wrapped
from chimerac.compiler.draw.panels import Boxes, Panel, all_reduces_of, boxes_of

# All sizes are in inches, except those of fonts.
ROW, ROW_WITH_STAGE = 0.22, 0.3  # the height of a box
GAP = 0.05  # between two rows
LANE = 0.09  # below the boxes of a rank, for all-reduces
CURVE = 0.24  # the height of a rank's memory curve
TITLE, SMALL = 8.0, 6.5  # points: the font sizes of titles and of most other texts
LINE = 0.15  # the height of a line of text
MIDDLE = 0.65 * LINE  # from the upper edge of a line of text to its middle
MARGIN = 0.06  # from the left edge of the picture to its texts, and below the last line
SPACE = 0.04  # above the first panel, above the curves of a panel, above the legend
BELOW_TITLE = 0.05  # below the title and the facts of a panel
BELOW_PANEL = 0.08  # below each panel, if there are several
BESIDE_NAME = 0.05  # from the name of a rank to its row


class Layout:
    """Where the parts of a picture are, in inches.

    Args:
        chosen: the ranks of each panel that are drawn.
        time_label: what is written below the time axis.
        inches: the width of the picture; None for one in which most numbers fit, within limits.

    Attributes:
        boxes: for each panel the boxes of its chosen ranks, without those at times that are not drawn.
        all_reduces: for each panel.
        usual_digits: for each panel, by Op of a task, how long its numbers usually are.
        extent: which times are drawn, and how wide.
        left, right: the widths of what is beside the time axis.
        axis: the width of the axis.
        width: of the picture.
        row: the height of a box.
        lane: of the space below it for all-reduces, 0 if there are none.
        font: the size of the numbers, in points.
        entries, notes: the legend, and what is written below it.

    Raises ChimeraError E002 for a width without room for the boxes.
    """

    def __init__(self, panels: Sequence[Panel], chosen: Sequence[Sequence[int]], time_label: str, inches: float | None) -> None:
        self.panels, self.chosen, self.time_label = panels, chosen, time_label
        self.boxes = [_of_ranks(boxes_of(p), ranks) for p, ranks in zip(panels, chosen, strict=True)]
        longest = max((len(f"rank {r}") for ranks in chosen for r in ranks), default=0)
        self.left = text_inches("0" * longest, SMALL) + 0.08
        self.right = 0.55 if any(p.memory for p in panels) else 0.1
        if inches is not None and inches < self.left + self.right + 1:
            least = self.left + self.right + 1  # an inch for the boxes
            raise refuse("E002", f"a picture {inches:.2f} inches wide has no room for its boxes: at least {least:.2f}")
        self.extent = extent(panels, self.boxes, None if inches is None else inches - self.left - self.right)
        self.axis = sum(self.extent.widths()) + BREAK * (len(self.extent.parts) - 1)
        self.width = self.left + self.axis + self.right
        all_boxes, self.boxes = self.boxes, [_shown(b, self.extent) for b in self.boxes]
        self.font = font_size(self.boxes, self.extent)
        self.row = ROW_WITH_STAGE if any(any(b.stage) for b in self.boxes) else ROW
        self.all_reduces = [all_reduces_of(p) for p in panels]
        self.lane = LANE if any(len(s.rank) for s in self.all_reduces) else 0.0
        self.usual_digits = [_usual_digits(p, b) for p, b in zip(panels, self.boxes, strict=True)]
        self.entries = legend(panels, self.lane > 0, any(any(b.stage) for b in self.boxes))
        self.notes = notes(panels, chosen, all_boxes, self.extent, self._hides_numbers())

    @property
    def pitch(self) -> float:
        """Return the distance from the row of a rank to that of the next one."""
        return self.row + self.lane + GAP

    @property
    def text_width(self) -> float:
        """Return the width of the texts that are wrapped: the time label, the legend, the notes and the facts of a panel."""
        return self.width - 0.1

    def head_lines(self, panel: Panel) -> int:
        """Return the number of lines of the title and the facts of a panel."""
        width = text_inches(panel.title, TITLE) + text_inches(panel.facts, SMALL)
        return 1 if width < self.left + self.axis else 1 + len(wrapped(panel.facts, self.text_width, SMALL))

    def panel_height(self, panel: Panel, ranks: Sequence[int]) -> float:
        """Return the height of a panel with these ranks, with its title and its memory curves."""
        curves = SPACE + LINE + len(ranks) * (CURVE + GAP) if panel.memory else 0.0
        below = BELOW_PANEL if len(self.panels) > 1 else 0.0
        return LINE * self.head_lines(panel) + BELOW_TITLE + len(ranks) * self.pitch + curves + below

    def has_number(self, panel: int, k: int) -> bool:
        """Return whether box k of a panel is wide enough for its number, and for the usual numbers of its kind of task.

        Args:
            panel: its index.
        """
        b = self.boxes[panel]
        usual = self.usual_digits[panel][int(self.panels[panel].program.table.op[b.row[k]])]
        return self.fits(max(b.number[k], "0" * usual, key=len), float(b.start[k]), float(b.end[k]), self.font)

    def fits(self, text: str, start: float, end: float, points: float) -> bool:
        """Return whether a text is narrower than the time from start to end.

        Args:
            start, end: in units.
            points: the size of the font.
        """
        return text_inches(text, points) + 0.01 <= (end - start) * self.extent.inches_per_unit

    def _hides_numbers(self) -> bool:
        """Return whether a box has no number for lack of room, as `has_number` says."""
        return any(not self.has_number(panel, k) for panel, b in enumerate(self.boxes) for k in range(len(b)))


def _usual_digits(panel: Panel, boxes: Boxes) -> dict[int, int]:
    """Return by Op of a task the length that about nine of ten of its numbers do not exceed."""
    ops = panel.program.table.op[boxes.row].tolist()
    lengths: dict[int, list[int]] = {}
    for op, number in zip(ops, boxes.number, strict=True):
        lengths.setdefault(op, []).append(len(number))
    return {op: sorted(of_op)[int(0.9 * (len(of_op) - 1))] for op, of_op in lengths.items()}


def _of_ranks(boxes: Boxes, ranks: Sequence[int]) -> Boxes:
    """Return the boxes of these ranks."""
    return _taken(boxes, np.flatnonzero(np.isin(boxes.rank, list(ranks))))


def _shown(boxes: Boxes, drawn: Extent) -> Boxes:
    """Return the boxes of which a part is drawn."""
    return _taken(boxes, np.flatnonzero(sum((boxes.start < b) & (boxes.end > a) for a, b in drawn.parts)))


def _taken(boxes: Boxes, kept: Ints) -> Boxes:
    """Return the boxes with these indices."""
    columns = (boxes.rank[kept], boxes.row[kept], boxes.start[kept], boxes.end[kept], boxes.half[kept])
    return Boxes(*columns, *(tuple(texts[k] for k in kept.tolist()) for texts in (boxes.number, boxes.stage)))
