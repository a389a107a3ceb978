"""A figure of matplotlib on which texts and axes are placed in inches from its upper left corner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chimerac.compiler.draw.extent import BREAK, Extent, text_inches
from chimerac.compiler.draw.layout import MARGIN, MIDDLE, SMALL
from chimerac.compiler.draw.legend import BEFORE_TEXT, Entry, Swatch
from chimerac.compiler.draw.shades import DARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EDGE, FRAME, FAINT = "#333333", "#b5b5b5", "#8a8a8a"  # lines: around boxes, around rows, and of messages and most hatches
MARK = 5.0  # points: the text of all-reduces, and of stages in boxes


class Sheet:
    """A figure of this width and height in inches.

    Args:
        left: where the time axis begins.
        extent: the times that it shows.
    """

    def __init__(self, width: float, height: float, left: float, extent: Extent) -> None:
        from matplotlib.figure import Figure  # 0.2 s

        self.width, self.height, self.left, self.extent = width, height, left, extent
        self.figure: Figure = Figure(figsize=(width, height), facecolor="white")

    def text(self, x: float, top: float, text: str, size: float = SMALL, **how: Any) -> None:
        """Write a line of text whose upper edge is `top` inches below that of the figure.

        Args:
            how: arguments for matplotlib.
        """
        how = {"ha": "left", "color": DARK, **how}
        self.figure.text(x / self.width, 1 - (top + MIDDLE) / self.height, text, fontsize=size, va="center", **how)

    def axes(self, top: float, height: float) -> list[Axes]:
        """Return new axes for a block, one for each part of the time. Their y axis is in inches below the block's upper edge.

        Args:
            top: the upper edge of the block, in inches below that of the figure.
            height: of the block.
        """
        blocks, x = [], self.left
        for (start, end), width in zip(self.extent.parts, self.extent.widths(), strict=True):
            box = (x / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
            axes = self.figure.add_axes(box, facecolor="none")
            axes.set_xlim(start, end)
            axes.set_ylim(height, 0)
            axes.set_yticks([])
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
            blocks.append(axes)
            x += width + BREAK
        return blocks

    def time_axis(self, axes: Sequence[Axes]) -> None:
        """Draw the time axis: its numbers, and a mark at each side of a break.

        Args:
            axes: those above the time axis, as the method `axes` returned them.
        """
        from matplotlib.ticker import MaxNLocator

        # At which end of each part the break is: the number nearest to it is left out.
        sides = (None,) if len(axes) == 1 else ("upper", "lower")
        for part, width, side in zip(axes, self.extent.widths(), sides, strict=True):
            longest = max(len(f"{x:g}") for x in part.get_xlim())
            part.xaxis.set_major_locator(
                MaxNLocator(max(1, int(width / (0.2 + text_inches("0" * longest, SMALL)))), steps=[1, 2, 5, 10], prune=side)
            )
            part.tick_params(axis="x", length=2.5, width=0.6, labelsize=SMALL, pad=1.5, color=EDGE, labelcolor=DARK)
            part.spines["bottom"].set_visible(True)
            part.spines["bottom"].set_linewidth(0.6)
            part.spines["bottom"].set_color(EDGE)
        for part, x in zip(axes, (1.0, 0.0), strict=True) if len(axes) > 1 else ():
            mark: dict[str, Any] = {"transform": part.transAxes, "clip_on": False, "color": EDGE, "linestyle": "none"}
            part.plot([x], [0], marker=[(-1, -2), (1, 2)], markersize=6, markeredgewidth=0.7, **mark)

    def legend_line(self, placed: Sequence[tuple[float, Entry]], top: float) -> None:
        """Draw a line of the legend: entries, each with the place where it begins, in inches from the margin.

        Args:
            top: the upper edge of the line, in inches below that of the figure.
        """
        from matplotlib.patches import Rectangle

        for start, entry in placed:
            x = start + MARGIN
            for swatch in entry.swatches:
                y = top + 0.03
                if swatch.mark:
                    self.text(x + 0.07, top, swatch.mark, ha="center")
                else:
                    box = (x / self.width, 1 - (y + 0.09) / self.height), 0.14 / self.width, 0.09 / self.height
                    edge = FAINT if swatch.hatch else EDGE
                    self.figure.add_artist(
                        Rectangle(*box, facecolor=swatch.colour, edgecolor=edge, hatch=swatch.hatch, linewidth=0.5)
                    )
                x += Swatch.WIDTH
            self.text(x + BEFORE_TEXT, top, entry.text)
