"""The rows of a picture: the tasks of each rank, its messages, its all-reduces and its idle slots, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.compiler.draw.extent import LEAST_FONT
from chimerac.compiler.draw.layout import LANE, Layout
from chimerac.compiler.draw.panels import idle_slots_of
from chimerac.compiler.draw.shades import ALL_REDUCE_HATCH, DARK, RECOMPUTE_HATCH, shade, text_colour
from chimerac.compiler.draw.sheet import EDGE, FAINT, FRAME, MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(slots=True)
class Row:
    """Where the row of a rank is, in inches below the upper edge of the axes.

    Attributes:
        top: the upper edge of its boxes.
        lane: that of the space for its all-reduces.
    """

    rank: int
    top: float
    lane: float


class Rows:
    """The rows of one panel.

    Args:
        index: of the panel in the layout.
    """

    def __init__(self, layout: Layout, index: int, rows: Sequence[Row]) -> None:
        self.layout, self.index, self.rows = layout, index, rows
        self.panel, self.boxes = layout.panels[index], layout.boxes[index]

    def draw(self, axes: Axes, part: int) -> None:
        """Draw what is in one part of the time.

        Args:
            axes: of this part.
            part: its index in `Extent.parts`.
        """
        from matplotlib.collections import LineCollection

        panel, rows = self.panel, self.rows
        begin, end = self.layout.extent.parts[part]
        low, high = max(begin, 0.0), min(end, panel.length)
        if low < high:  # the frames of the rows
            edges = [[(low, y), (high, y)] for row in rows for y in (row.top, row.top + self.layout.row)]
            for x in (0.0, panel.length):
                if begin <= x <= end:
                    edges += [[(x, row.top), (x, row.top + self.layout.row)] for row in rows]
            axes.add_collection(LineCollection(edges, colors=FRAME, linewidths=0.5, zorder=0.5, clip_on=False))
        self._messages(axes)
        for row in rows:
            self._tasks(axes, f"panel-{self.index}-part-{part}-rank-{row.rank}", row)
        self._all_reduces(axes)
        if panel.counts_idle:
            tops = {row.rank: row.top for row in rows}
            for rank, slot, count in idle_slots_of(panel):
                if rank in tops and begin <= slot < end:
                    x, y = slot + 0.5, tops[rank] + 0.55 * self.layout.row
                    axes.text(
                        x, y, str(count), fontsize=self.layout.font, color="#b00020", ha="center", va="center", style="italic"
                    )

    def _tasks(self, axes: Axes, gid: str, row: Row) -> None:
        """Draw the boxes of a rank, in the order of the timeline, and their texts.

        Args:
            gid: the id of their group in an SVG.
        """
        from matplotlib.collections import PolyCollection

        low, high = axes.get_xlim()
        boxes = self.boxes
        own = np.flatnonzero((boxes.rank == row.rank) & (boxes.start < high) & (boxes.end > low))
        table = self.panel.program.table
        shapes, colours, hatched = [], [], []
        for k in own.tolist():
            start, end, half = float(boxes.start[k]), float(boxes.end[k]), int(boxes.half[k])
            top = row.top + (self.layout.row / 2 if half == 2 else 0.0)
            bottom = top + (self.layout.row if half == 0 else self.layout.row / 2)
            op, pipe = int(table.op[boxes.row[k]]), int(table.pipe[boxes.row[k]])
            shapes.append([(start, top), (end, top), (end, bottom), (start, bottom)])
            colours.append(shade(pipe, op))
            if op == Op.RECOMPUTE:
                hatched.append(shapes[-1])
            if self.layout.has_number(self.index, k):
                self._number(axes, k, (top + bottom) / 2, op)
        axes.add_collection(
            PolyCollection(shapes, facecolors=colours, edgecolors=EDGE, linewidths=self._edge(), gid=gid, zorder=2)
        )
        if hatched:
            axes.add_collection(
                PolyCollection(hatched, facecolors="none", edgecolors=FAINT, linewidths=0, hatch=RECOMPUTE_HATCH, zorder=2.1)
            )

    def _edge(self) -> float:
        """Return the width of the line around a box in points: thin where boxes are narrow."""
        return 0.5 if self.layout.font > LEAST_FONT else 0.25

    def _number(self, axes: Axes, k: int, middle: float, op: int) -> None:
        """Write the micro-batches of box k, and its stage if it has one and there is room: below, or after a dot in half a box.

        Nothing is written if the edge of the axes cuts the box.

        Args:
            middle: of the box, in inches below the upper edge of the axes.
            op: of its task.
        """
        boxes = self.boxes
        start, end, number, stage = float(boxes.start[k]), float(boxes.end[k]), boxes.number[k], boxes.stage[k]
        low, high = axes.get_xlim()
        slack = 1e-9 * (high - low)
        if start < low - slack or end > high + slack:
            return
        is_half, x = int(boxes.half[k]) > 0, (start + end) / 2
        how: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": text_colour(op), "zorder": 3}
        if op == Op.RECOMPUTE:
            how["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        shown = f"{number}.{stage}" if stage and is_half else number
        shown = shown if self.layout.fits(shown, start, end, self.layout.font) else number
        size = min(self.layout.font, 6.0) if is_half else self.layout.font
        if stage and not is_half and self.layout.fits(stage, start, end, MARK):
            axes.text(x, middle - 0.055, shown, fontsize=size, **how)
            axes.text(x, middle + 0.085, stage, fontsize=MARK, **{**how, "bbox": None})
        else:
            axes.text(x, middle, shown, fontsize=size, **how)

    def _messages(self, axes: Axes) -> None:
        """Draw a line for each message that takes time, behind the boxes, between the rows of its ranks if both are drawn."""
        from matplotlib.collections import LineCollection

        panel, rows = self.panel, self.rows
        m = panel.messages
        if m is None:
            return
        tops = {row.rank: row.top for row in rows}
        lines = []
        for sender, receiver, start, end in zip(
            m.sender.tolist(), m.receiver.tolist(), panel.units(m.start).tolist(), panel.units(m.end).tolist(), strict=True
        ):
            if end > start and sender in tops and receiver in tops:
                lines.append([(start, tops[sender] + self.layout.row / 2), (end, tops[receiver] + self.layout.row / 2)])
        if lines:
            axes.add_collection(LineCollection(lines, colors=FAINT, linewidths=0.6, zorder=1))

    def _all_reduces(self, axes: Axes) -> None:
        """Draw the all-reduces below the boxes of the ranks that join them: a bar where they take time, else a mark."""
        all_reduces, lanes = self.layout.all_reduces[self.index], {row.rank: row.lane + LANE / 2 for row in self.rows}
        low, high = axes.get_xlim()
        marks: dict[tuple[int, float], list[str]] = {}  # at one time on one rank: one mark with several names
        columns = (all_reduces.rank.tolist(), all_reduces.start.tolist(), all_reduces.end.tolist(), all_reduces.name)
        for rank, start, end, name in zip(*columns, strict=True):
            if rank not in lanes or end < low or start > high:
                continue
            if end == start:
                marks.setdefault((rank, end), []).append(name)
                continue
            y = lanes[rank]
            axes.barh(y, end - start, 0.06, start, facecolor="white", edgecolor=DARK, linewidth=0.5, hatch=ALL_REDUCE_HATCH)
            if start >= low and end <= high and self.layout.fits(f" {name} ", start, end, MARK):
                white = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}
                how: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": DARK, "bbox": white}
                axes.text((start + end) / 2, y, name, fontsize=MARK, **how)
        for (rank, time), names in marks.items():
            y, x = lanes[rank], time - 0.035 / self.layout.extent.inches_per_unit
            axes.plot([time], [y], "^", color=DARK, markersize=3.2, markeredgewidth=0, clip_on=False, zorder=4)
            # Shorter names first, so that the numbers of stages ascend.
            shown = ",".join(sorted(names, key=lambda name: (len(name), name)))
            axes.text(x, y, shown, fontsize=MARK, color=DARK, ha="right", va="center", zorder=4)
