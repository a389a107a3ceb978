"""Plots of a comparison, as SVG. Groups differ not only in their colours, but also in markers and lines, or in patterns.

From the ninth group on, they are drawn like the first ones again. `plot` needs matplotlib, which the extra `report` has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from chimerac.interpreter.experiments.compare import Compared, Point
from chimerac.interpreter.experiments.figures import FIGURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that the colour-blind, too, can tell apart: those of Okabe and Ito ("Color Universal Design", 2008) without yellow,
# and a grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINE_STYLES = ("-", "--", "-.", ":")
PATTERNS = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")  # of bars
PREDICTED_COLOUR = "#222222"
WIDTH, HEIGHT = 6.4, 3.6  # of a panel, in inches
X_TITLES = {  # of the x axis; another x has its name as title
    "D": "ranks of a pipeline, D",
    "N": "micro-batches of a replica, N",
    "f": "pairs of pipes, f",
    "W": "replicas, W",
    "shape": "replicas W, ranks of a pipeline D",
    "micro_batch": "samples of a micro-batch",
}
MAX_LABELLED_BARS = 12  # of a panel (groups x values); where there are more bars, none has a label
MAX_LETTERS = 45  # of all labels on an x axis of bars together; with more letters, the labels are rotated


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    Attributes:
        svg: its text.
        description: what it shows, for readers who do not see it.
    """

    svg: str
    description: str


def is_available() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def plot(compared: Compared, figure: str) -> Plot:
    """Return the plot of a figure, with its panels side by side."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = compared.panels
    with matplotlib.rc_context({"svg.hashsalt": "chimerac", "font.size": 10, "axes.axisbelow": True}):
        canvas = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
        axes = canvas.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, panel in zip(axes, panels, strict=True):
            draw = _lines if compared.has_lines else _bars
            draw(ax, compared, figure, panel)
            ax.set_xlabel(X_TITLES.get(compared.compare.x, compared.compare.x))
            ax.set_title(panel, fontsize=10)
            ax.grid(axis="y", color="#dddddd")
            ax.spines[["top", "right"]].set_visible(False)
            ax.margins(y=0.1)
            ax.set_ylim(bottom=0)
            ax.yaxis.set_major_formatter("{x:,g}")
        axes[0].set_ylabel(FIGURES[figure].title)
        handles, names = axes[0].get_legend_handles_labels()
        for ax in axes[1:]:
            for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
                if name not in names:
                    handles, names = [*handles, handle], [*names, name]
        if len(names) > 1 or "predicted" in names:
            order = sorted(range(len(names)), key=lambda k: names[k] == "predicted")  # last: it belongs to all groups
            handles, names = [handles[k] for k in order], [names[k] for k in order]
            title = ", ".join(compared.compare.groups)
            canvas.legend(handles, names, title=title, loc="outside right upper", frameon=False, alignment="left")
        out = StringIO()
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    groups = ", ".join(group for group in compared.groups if group)
    by = ", ".join(compared.compare.groups)
    description = f"{FIGURES[figure].title} by {compared.compare.x}" + (f", for {by}: {groups}" if groups else "")
    svg = out.getvalue()
    return Plot(svg[svg.index("<svg") :], description)


def _points(compared: Compared, figure: str, panel: str, group: str) -> list[tuple[Any, Point]]:
    found = ((x, compared.point(figure, panel, group, x)) for x in compared.values)
    return [(x, point) for x, point in found if point is not None]


def _lines(ax: Axes, compared: Compared, figure: str, panel: str) -> None:
    """Draw a line for each group, and its predictions as larger, empty markers."""
    scale, has_prediction = FIGURES[figure].scale, False
    for number, group in enumerate(compared.groups):
        points = _points(compared, figure, panel, group)
        if not points:
            continue
        x, y = [x for x, _ in points], [scale * p.value for _, p in points]
        colour = COLOURS[number % len(COLOURS)]
        ax.errorbar(
            x,
            y,
            _error_bars([p for _, p in points], scale),
            label=group or None,
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINE_STYLES[number % len(LINE_STYLES)],
            capsize=3,
            linewidth=1.8,
            markersize=6,
        )
        predicted = [(x, scale * p.predicted) for x, p in points if p.predicted is not None]
        if predicted:
            ax.plot(
                *zip(*predicted, strict=True),
                MARKERS[number % len(MARKERS)],
                color=colour,
                markerfacecolor="none",
                markersize=10,
                zorder=4,
                clip_on=False,
            )
            has_prediction = True
    if has_prediction:
        ax.plot([], [], "o", color=PREDICTED_COLOUR, markerfacecolor="none", markersize=10, label="predicted")
    ax.set_xticks(compared.values)


def _bars(ax: Axes, compared: Compared, figure: str, panel: str) -> None:
    """Draw a bar for each group at each value of the x axis, and its prediction as a horizontal line."""
    scale, has_prediction = FIGURES[figure].scale, False
    groups = [group for group in compared.groups if _points(compared, figure, panel, group)]
    width = 0.8 / max(1, len(groups))  # the distance between two values on the x axis is 1
    values = [x for x in compared.values if any(compared.point(figure, panel, group, x) for group in groups)]
    for number, group in enumerate(groups):
        points = _points(compared, figure, panel, group)
        centres = [values.index(x) + (number - (len(groups) - 1) / 2) * width for x, _ in points]
        index = compared.groups.index(group)
        ax.bar(
            centres,
            [scale * p.value for _, p in points],
            0.9 * width,
            yerr=_error_bars([p for _, p in points], scale),
            label=group or None,
            color=COLOURS[index % len(COLOURS)],
            hatch=PATTERNS[index % len(PATTERNS)] if len(compared.groups) > 1 else "",
            edgecolor="white",
            linewidth=0.5,
            error_kw={"capsize": 3, "elinewidth": 1, "ecolor": "#444444"},
        )
        for centre, (_, point) in zip(centres, points, strict=True):
            top = scale * max(point.value, point.high, point.predicted or 0.0)
            if len(groups) * len(values) <= MAX_LABELLED_BARS:
                text = FIGURES[figure].text(point.value)
                ax.annotate(text, (centre, top), (0, 3), textcoords="offset points", ha="center", fontsize=8)
            if point.predicted is not None:
                ends, height = (centre - 0.45 * width, centre + 0.45 * width), scale * point.predicted
                ax.hlines(height, *ends, colors=PREDICTED_COLOUR, linewidth=2)
                has_prediction = True
    if has_prediction:
        ax.plot([], [], color=PREDICTED_COLOUR, linewidth=2, label="predicted")
    are_long = sum(len(str(x)) for x in values) > MAX_LETTERS
    rotation: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if are_long else {}
    ax.set_xticks(range(len(values)), [str(x) for x in values], **rotation)


def _error_bars(points: Sequence[Point], scale: float) -> tuple[list[float], list[float]] | None:
    """Return by how much each point's spread goes below and above its value, scaled; None if no point has a spread."""
    below = [scale * max(0.0, p.value - p.low) for p in points]
    above = [scale * max(0.0, p.high - p.value) for p in points]
    return (below, above) if any(below) or any(above) else None
