"""Pictures of timelines for papers: SVG, PNG and PDF, with matplotlib (the extra `draw`).

A row for each rank, time to the right, a box for each task with the number of its micro-batch; idle time is white. The
same input gives the same bytes: no date is written, fonts are those of matplotlib and are in the file, and no settings of a
user count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.table import Ints
from chimerac.compiler.draw.extent import BREAK, FONT, LEAST_FONT, MAX_ROWS, Extent, extent, font_size, text_inches
from chimerac.compiler.draw.legend import Entry, Swatch, flowed, legend, notes, wrapped
from chimerac.compiler.draw.panels import Boxes, MemoryCurve, Panel, boxes_of, idle_slots_of, sums_of
from chimerac.compiler.draw.shades import DARK, shade, text_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
DOTS = 200  # of a PNG, per inch
ROW, ROW_WITH_STAGE = 0.22, 0.3  # inches: the height of a box
GAP = 0.05  # between two rows
LANE = 0.09  # below the boxes of a rank, for all-reduces
CURVE = 0.24  # the height of a rank's memory curve
TITLE, SMALL, MARK = 8.0, 6.5, 5.0  # points
LINE = 0.15  # the height of a line of text
TICKS = 0.17  # of the numbers of the time axis
EDGE, FRAME, FAINT = "#333333", "#b5b5b5", "#8a8a8a"
_SETTINGS: Any = {  # by the names of matplotlib's settings
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "svg.hashsalt": "chimerac",
    "svg.fonttype": "path",  # glyphs as outlines: the same everywhere
    "pdf.fonttype": 42,  # TrueType: text can be searched; publishers refuse Type 3
    "hatch.linewidth": 0.5,
    "path.simplify": False,
}
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_is_available() -> None:
    """Raise ChimeraError E002 if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        message = "pictures need a package that is not installed: matplotlib"
        raise refuse("E002", message, help="pip install 'chimerac[draw]'; --emit timeline needs no package")


def draw_picture(
    panels: Sequence[Panel],
    form: str,
    time_label: str,
    ranks: Sequence[int] | None = None,
    inches: float | None = None,
    remarks: Sequence[str] = (),
) -> bytes:
    """Return the picture of timelines, one under the other on one time axis, in one of `FORMATS`.

    time_label: what is written below the time axis, such as its unit. ranks: the global ranks to draw, default all; panels
    leave out those that they do not have. inches: the width of the picture; None for one in which the numbers fit, within
    limits. remarks: sentences that are written below. An iteration that is too long for the width is drawn without its middle,
    and the picture says so.

    Raises ChimeraError E002 without matplotlib, for more than `MAX_ROWS` ranks, and for a width of less than two inches.
    """
    check_is_available()
    chosen = [[r for r in range(p.program.world) if ranks is None or r in ranks] for p in panels]
    if (rows := sum(map(len, chosen))) > MAX_ROWS:
        way_out = "draw some of them: --ranks 0..15" if len(panels) == 1 else "compare fewer schedules, or fewer ranks"
        raise refuse("E002", f"a picture has at most {MAX_ROWS} rows, and this one would have {rows}", help=way_out)
    picture = _Picture(panels, chosen, time_label, inches)
    picture.notes += remarks
    with _settings():
        out = BytesIO()
        picture.figure().savefig(out, format=form, dpi=DOTS, metadata=_METADATA[form])
    return _with_title(out.getvalue(), panels, picture.notes) if form == "svg" else out.getvalue()


@contextmanager
def _settings() -> Iterator[None]:
    """Use matplotlib's own defaults and `_SETTINGS`, whatever a user has set."""
    import matplotlib  # 0.2 s

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def _with_title(svg: bytes, panels: Sequence[Panel], notes: Sequence[str]) -> bytes:
    """Return an SVG with a title and a description, for readers who do not see it."""
    title = "; ".join(p.title for p in panels)
    about = " ".join([*(f"{p.title}: {p.facts}." for p in panels), *notes])
    text = f"<title>{escape(title)}</title>\n <desc>{escape(about)}</desc>"
    return re.sub(rb"(<svg [^>]*)>", lambda m: m[1] + b' role="img">\n ' + text.encode(), svg, count=1)


@dataclass(slots=True)
class _Row:
    """Where the row of a rank is: the upper edges of its boxes and of its lane for all-reduces, in inches from the panel's."""

    rank: int
    top: float
    lane: float


class _Picture:
    """The layout of a picture, in inches from its upper left corner; `figure` draws it."""

    def __init__(self, panels: Sequence[Panel], chosen: Sequence[Sequence[int]], time_label: str, inches: float | None) -> None:
        self.panels, self.chosen, self.time_label = panels, chosen, time_label
        self.boxes = [_of_ranks(boxes_of(p), ranks) for p, ranks in zip(panels, chosen, strict=True)]
        longest = max((len(f"rank {r}") for ranks in chosen for r in ranks), default=0)
        self.left = text_inches("0" * longest, SMALL) + 0.08
        self.right = 0.55 if any(p.memory for p in panels) else 0.1
        if inches is not None and inches < self.left + self.right + 1:
            least = self.left + self.right + 1
            raise refuse("E002", f"a picture {inches:.2f} inches wide has no room for its boxes: at least {least:.2f}")
        self.extent = extent(panels, self.boxes, None if inches is None else inches - self.left - self.right)
        self.axis = sum(self.extent.widths()) + BREAK * (len(self.extent.windows) - 1)
        self.width = self.left + self.axis + self.right
        all_boxes, self.boxes = self.boxes, [_shown(b, self.extent) for b in self.boxes]
        self.font = font_size(self.boxes, self.extent)
        self.row = ROW_WITH_STAGE if any(any(b.stage) for b in self.boxes) else ROW
        self.sums = [sums_of(p) for p in panels]
        self.lane = LANE if any(len(s.rank) for s in self.sums) else 0.0
        self.longest = [_longest_numbers(p, b) for p, b in zip(panels, self.boxes, strict=True)]
        self.entries = legend(panels, self.lane > 0, any(any(b.stage) for b in self.boxes))
        self.notes = notes(panels, all_boxes, self.extent, self._hidden_numbers())

    def figure(self) -> Figure:
        """Return the picture as a figure."""
        from matplotlib.figure import Figure  # 0.2 s

        heights = [self._height(p, ranks) for p, ranks in zip(self.panels, self.chosen, strict=True)]
        label_lines = wrapped(self.time_label, self.width - 0.1, SMALL)
        lines = flowed(self.entries, self.width - 0.1, SMALL)
        below = [line for note in self.notes for line in wrapped(note, self.width - 0.1, SMALL)]
        axis_height = TICKS + LINE * len(label_lines)
        height = 0.04 + sum(heights) + axis_height + 0.04 + LINE * (len(lines) + len(below)) + 0.06
        self.total = height
        figure = Figure(figsize=(self.width, height), facecolor="white")
        top = 0.04
        for number, (panel, panel_height) in enumerate(zip(self.panels, heights, strict=True)):
            self._panel(figure, number, panel, top, top + panel_height, number == len(self.panels) - 1)
            top += panel_height
        top += TICKS
        for line in label_lines:
            self._text(figure, self.width / 2, top, line, ha="center")
            top += LINE
        top += 0.04
        for placed in lines:
            self._legend_line(figure, placed, top)
            top += LINE
        for line in below:
            self._text(figure, 0.06, top, line, style="italic")
            top += LINE
        return figure

    # --- layout -----------------------------------------------------------------------------------------------------

    def _pitch(self) -> float:
        return self.row + self.lane + GAP

    def _head(self, panel: Panel) -> int:
        """Return in how many lines the title and the facts of a panel are."""
        width = text_inches(panel.title, TITLE) + text_inches(panel.facts, SMALL)
        return 1 if width < self.left + self.axis else 1 + len(wrapped(panel.facts, self.width - 0.1, SMALL))

    def _height(self, panel: Panel, ranks: Sequence[int]) -> float:
        curves = 0.04 + LINE + len(ranks) * (CURVE + GAP) if panel.memory else 0.0
        return LINE * self._head(panel) + 0.05 + len(ranks) * self._pitch() + curves + (0.08 if len(self.panels) > 1 else 0.0)

    def _hidden_numbers(self) -> bool:
        return any(not self._has_number(number, k) for number, b in enumerate(self.boxes) for k in range(len(b)))

    def _has_number(self, panel: int, k: int) -> bool:
        """Return whether box k of a panel is wide enough for its number, and for those of most tasks of its kind."""
        b = self.boxes[panel]
        usual = self.longest[panel][int(self.panels[panel].program.table.op[b.row[k]])]
        return self._fits(max(b.number[k], "0" * usual, key=len), float(b.start[k]), float(b.end[k]), self.font)

    def _fits(self, text: str, start: float, end: float, points: float) -> bool:
        return text_inches(text, points) + 0.01 <= (end - start) * self.extent.inches_per_unit

    def _text(self, figure: Figure, x: float, top: float, text: str, size: float = SMALL, **how: Any) -> None:
        """Write a line of text whose upper edge is `top` inches below that of the figure."""
        how = {"ha": "left", "color": DARK, **how}
        figure.text(x / self.width, 1 - (top + 0.65 * LINE) / self.total, text, fontsize=size, va="center", **how)

    def _axes(self, figure: Figure, top: float, height: float) -> list[Axes]:
        """Return the axes of a block, one for each part of the time; their y axis is in inches from the block's upper edge."""
        found, x = [], self.left
        for (start, end), width in zip(self.extent.windows, self.extent.widths(), strict=True):
            box = (x / self.width, 1 - (top + height) / self.total, width / self.width, height / self.total)
            axes = figure.add_axes(box, facecolor="none")
            axes.set_xlim(start, end)
            axes.set_ylim(height, 0)
            axes.set_yticks([])
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
            found.append(axes)
            x += width + BREAK
        return found

    def _time_axis(self, axes: Sequence[Axes]) -> None:
        from matplotlib.ticker import MaxNLocator

        sides = (None,) if len(axes) == 1 else ("upper", "lower")  # where no number is: beside the break
        for part, width, side in zip(axes, self.extent.widths(), sides, strict=True):
            longest = max(len(f"{x:g}") for x in part.get_xlim())
            part.xaxis.set_major_locator(
                MaxNLocator(max(1, int(width / (0.2 + text_inches("0" * longest, SMALL)))), steps=[1, 2, 5, 10], prune=side)
            )
            part.tick_params(axis="x", length=2.5, width=0.6, labelsize=SMALL, pad=1.5, color=EDGE, labelcolor=DARK)
            part.spines["bottom"].set_visible(True)
            part.spines["bottom"].set_linewidth(0.6)
            part.spines["bottom"].set_color(EDGE)
        for part, x in zip(axes, (1.0, 0.0), strict=False):
            if len(axes) > 1:
                mark: dict[str, Any] = {"transform": part.transAxes, "clip_on": False, "color": EDGE, "linestyle": "none"}
                part.plot([x], [0], marker=[(-1, -2), (1, 2)], markersize=6, markeredgewidth=0.7, **mark)

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _panel(self, figure: Figure, number: int, panel: Panel, top: float, bottom: float, is_last: bool) -> None:
        self._text(figure, 0.06, top, panel.title, TITLE, weight="bold")
        if (lines := self._head(panel)) == 1:
            self._text(figure, self.left + self.axis, top, panel.facts, ha="right")
        else:
            for k, line in enumerate(wrapped(panel.facts, self.width - 0.1, SMALL), 1):
                self._text(figure, 0.06, top + k * LINE, line)
        top += LINE * lines + 0.05
        ranks = self.chosen[number]
        height = len(ranks) * self._pitch()
        axes = self._axes(figure, top, height)
        rows = [_Row(r, k * self._pitch(), k * self._pitch() + self.row) for k, r in enumerate(ranks)]
        for row in rows:
            self._text(figure, self.left - 0.05, top + row.top + self.row / 2 - 0.65 * LINE, f"rank {row.rank}", ha="right")
        for part, one in enumerate(axes):
            one.set_gid(f"panel-{number}-part-{part}")
            self._rows(one, number, part, panel, rows)
        if panel.memory:
            axes = self._memory(figure, panel, panel.memory, ranks, top + height + 0.04)
        if is_last:
            self._time_axis(axes)

    def _rows(self, axes: Axes, number: int, part: int, panel: Panel, rows: Sequence[_Row]) -> None:
        from matplotlib.collections import LineCollection

        window = self.extent.windows[part]
        low, high = max(window[0], 0.0), min(window[1], panel.length)
        if low < high:
            edges = [[(low, y), (high, y)] for row in rows for y in (row.top, row.top + self.row)]
            for x in (0.0, panel.length):
                if window[0] <= x <= window[1]:
                    edges += [[(x, row.top), (x, row.top + self.row)] for row in rows]
            axes.add_collection(LineCollection(edges, colors=FRAME, linewidths=0.5, zorder=0.5, clip_on=False))
        self._messages(axes, panel, rows)
        for row in rows:
            self._tasks(axes, f"panel-{number}-part-{part}-rank-{row.rank}", number, row)
        self._sums(axes, number, rows)
        if panel.counts_idle:
            tops = {row.rank: row.top for row in rows}
            for rank, slot, count in idle_slots_of(panel):
                if rank in tops and window[0] <= slot < window[1]:
                    x, y = slot + 0.5, tops[rank] + 0.55 * self.row
                    axes.text(x, y, str(count), fontsize=self.font, color="#b00020", ha="center", va="center", style="italic")

    def _tasks(self, axes: Axes, gid: str, number: int, row: _Row) -> None:
        """Draw the boxes of a rank, in the order of their rows, and their texts."""
        from matplotlib.collections import PolyCollection

        low, high = axes.get_xlim()
        panel, boxes = self.panels[number], self.boxes[number]
        own = np.flatnonzero((boxes.rank == row.rank) & (boxes.start < high) & (boxes.end > low))
        table = panel.program.table
        shapes, colours, hatched = [], [], []
        for k in own.tolist():
            start, end, half = float(boxes.start[k]), float(boxes.end[k]), int(boxes.half[k])
            top = row.top + (self.row / 2 if half == 2 else 0.0)
            bottom = top + (self.row if half == 0 else self.row / 2)
            op, pipe = int(table.op[boxes.row[k]]), int(table.pipe[boxes.row[k]])
            shapes.append([(start, top), (end, top), (end, bottom), (start, bottom)])
            colours.append(shade(pipe, op))
            if op == Op.RECOMPUTE:
                hatched.append(shapes[-1])
            if self._has_number(number, k):
                self._number(axes, boxes, k, (top + bottom) / 2, op)
        axes.add_collection(
            PolyCollection(shapes, facecolors=colours, edgecolors=EDGE, linewidths=self._edge(), gid=gid, zorder=2)
        )
        if hatched:
            axes.add_collection(
                PolyCollection(hatched, facecolors="none", edgecolors=FAINT, linewidths=0, hatch="//////", zorder=2.1)
            )

    def _edge(self) -> float:
        """Return the width of the line around a box in points: thin where boxes are narrow."""
        return 0.5 if self.font > LEAST_FONT else 0.25

    def _number(self, axes: Axes, boxes: Boxes, k: int, middle: float, op: int) -> None:
        """Write the micro-batches of a box, and below them its stage, unless the edge of the axes cuts the box."""
        start, end, number, stage = float(boxes.start[k]), float(boxes.end[k]), boxes.number[k], boxes.stage[k]
        low, high = axes.get_xlim()
        slack = 1e-9 * (high - low)
        if start < low - slack or end > high + slack:
            return
        half, x = int(boxes.half[k]) > 0, (start + end) / 2
        how: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": text_colour(op), "zorder": 3}
        if op == Op.RECOMPUTE:
            how["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        shown = f"{number}.{stage}" if stage and half else number
        shown = shown if self._fits(shown, start, end, self.font) else number
        size = min(self.font, 6.0) if half else self.font
        if stage and not half and self._fits(stage, start, end, MARK):
            axes.text(x, middle - 0.055, shown, fontsize=size, **how)
            axes.text(x, middle + 0.085, stage, fontsize=MARK, **{**how, "bbox": None})
        else:
            axes.text(x, middle, shown, fontsize=size, **how)

    def _messages(self, axes: Axes, panel: Panel, rows: Sequence[_Row]) -> None:
        """Draw a line for each message that takes time, from the sender's row to the receiver's, behind the boxes."""
        from matplotlib.collections import LineCollection

        m = panel.messages
        if m is None:
            return
        tops = {row.rank: row.top for row in rows}
        lines = []
        for sender, receiver, start, end in zip(
            m.sender.tolist(), m.receiver.tolist(), panel.units(m.start).tolist(), panel.units(m.end).tolist(), strict=True
        ):
            if end > start and sender in tops and receiver in tops:
                lines.append([(start, tops[sender] + self.row / 2), (end, tops[receiver] + self.row / 2)])
        if lines:
            axes.add_collection(LineCollection(lines, colors=FAINT, linewidths=0.6, zorder=1))

    def _sums(self, axes: Axes, number: int, rows: Sequence[_Row]) -> None:
        """Draw the all-reduces below the boxes of the ranks that join them: a bar where they take time, else a mark."""
        sums, lanes = self.sums[number], {row.rank: row.lane + 0.045 for row in rows}
        low, high = axes.get_xlim()
        marks: dict[tuple[int, float], list[str]] = {}  # at one time on one rank: one mark with several names
        for rank, start, end, name in zip(sums.rank.tolist(), sums.start.tolist(), sums.end.tolist(), sums.name, strict=True):
            if rank not in lanes or end < low or start > high:
                continue
            if end == start:
                marks.setdefault((rank, end), []).append(name)
                continue
            y = lanes[rank]
            axes.barh(y, end - start, 0.06, start, facecolor="white", edgecolor=DARK, linewidth=0.5, hatch="xxxxxxxx")
            if start >= low and end <= high and self._fits(f" {name} ", start, end, MARK):
                white = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}
                how: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": DARK, "bbox": white}
                axes.text((start + end) / 2, y, name, fontsize=MARK, **how)
        for (rank, time), names in marks.items():
            y, x = lanes[rank], time - 0.035 / self.extent.inches_per_unit
            axes.plot([time], [y], "^", color=DARK, markersize=3.2, markeredgewidth=0, clip_on=False, zorder=4)
            shown = ",".join(sorted(names, key=lambda name: (len(name), name)))
            axes.text(x, y, shown, fontsize=MARK, color=DARK, ha="right", va="center", zorder=4)

    def _memory(self, figure: Figure, panel: Panel, curve: MemoryCurve, ranks: Sequence[int], top: float) -> list[Axes]:
        """Draw what each rank holds over time, all ranks to one scale, and return the axes."""
        self._text(figure, 0.06, top, f"{curve.title}, all ranks to one scale; the numbers are the peaks", style="italic")
        top += LINE
        height = len(ranks) * (CURVE + GAP)
        axes = self._axes(figure, top, height)
        most = float(max((int(x) for x in curve.amount.tolist()), default=0)) or 1.0
        for k, rank in enumerate(ranks):
            base = k * (CURVE + GAP) + CURVE
            own = curve.rank == rank
            times = panel.units(curve.time[own]).tolist()
            amounts = [int(x) for x in curve.amount[own].tolist()]
            peak = max(amounts, default=0)
            self._text(figure, self.left - 0.05, top + base - CURVE / 2 - 0.65 * LINE, f"rank {rank}", ha="right")
            shown = f"{peak / curve.unit:.4g}{curve.suffix}"
            self._text(figure, self.width - self.right + 0.04, top + base - CURVE / 2 - 0.65 * LINE, shown)
            times, amounts = _visible(times, amounts)
            times, amounts = [0.0, *times, panel.length], [0, *amounts, amounts[-1] if amounts else 0]
            heights = [base - 0.94 * CURVE * x / most for x in amounts]
            for part in axes:
                part.fill_between(times, heights, base, step="post", facecolor="#d9d9d9", edgecolor="none")
                part.step(times, heights, where="post", color=EDGE, linewidth=0.7)
                part.axhline(base, color=FRAME, linewidth=0.5)
        return axes

    def _legend_line(self, figure: Figure, placed: Sequence[tuple[float, Entry]], top: float) -> None:
        from matplotlib.patches import Rectangle

        for start, entry in placed:
            x = start + 0.06
            for swatch in entry.swatches:
                y = top + 0.03
                if swatch.mark:
                    self._text(figure, x + 0.07, top, swatch.mark, ha="center")
                else:
                    box = (x / self.width, 1 - (y + 0.09) / self.total), 0.14 / self.width, 0.09 / self.total
                    edge = FAINT if swatch.hatch else EDGE
                    figure.add_artist(
                        Rectangle(*box, facecolor=swatch.colour, edgecolor=edge, hatch=swatch.hatch, linewidth=0.5)
                    )
                x += Swatch.WIDTH
            self._text(figure, x + 0.02, top, entry.text)


def _longest_numbers(panel: Panel, boxes: Boxes) -> dict[int, int]:
    """Return for each kind of task the length of its longer numbers: nine of ten are at most as long."""
    ops = panel.program.table.op[boxes.row].tolist()
    lengths: dict[int, list[int]] = {}
    for op, number in zip(ops, boxes.number, strict=True):
        lengths.setdefault(op, []).append(len(number))
    return {op: sorted(found)[int(0.9 * (len(found) - 1))] for op, found in lengths.items()}


def _visible(times: Sequence[float], amounts: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return the points of a curve without dips that last no time: at each time the largest amount, then the last one."""
    found: list[tuple[float, int]] = []
    k = 0
    while k < len(times):
        end = k
        while end < len(times) and times[end] == times[k]:
            end += 1
        before = found[-1][1] if found else 0
        if (most := max(amounts[k:end])) > max(before, amounts[end - 1]):
            found.append((times[k], most))
        found.append((times[k], amounts[end - 1]))
        k = end
    return [time for time, _ in found], [amount for _, amount in found]


def _of_ranks(boxes: Boxes, ranks: Sequence[int]) -> Boxes:
    """Return the boxes of some ranks."""
    return _taken(boxes, np.flatnonzero(np.isin(boxes.rank, list(ranks))))


def _shown(boxes: Boxes, at: Extent) -> Boxes:
    """Return the boxes of which a part is drawn."""
    return _taken(boxes, np.flatnonzero(sum((boxes.start < b) & (boxes.end > a) for a, b in at.windows)))


def _taken(boxes: Boxes, kept: Ints) -> Boxes:
    columns = (boxes.rank[kept], boxes.row[kept], boxes.start[kept], boxes.end[kept], boxes.half[kept])
    return Boxes(*columns, *(tuple(texts[k] for k in kept.tolist()) for texts in (boxes.number, boxes.stage)))
