"""The memory curves of a picture: what each rank holds over time, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from chimerac.chimera_ir.numbers import number_text
from chimerac.compiler.draw.layout import BESIDE_NAME, CURVE, GAP, LINE, MARGIN, MIDDLE
from chimerac.compiler.draw.panels import MemoryCurve, Panel
from chimerac.compiler.draw.sheet import EDGE, FRAME, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_curves(sheet: Sheet, panel: Panel, curve: MemoryCurve, ranks: Sequence[int], top: float, right: float) -> list[Axes]:
    """Draw what each of these ranks holds over time, all to one scale, and return the axes, one for each part of the time.

    Args:
        top: the upper edge of the title above the curves, in inches from the upper edge of the sheet.
        right: where the curves end, in inches from the left edge of the sheet.
    """
    sheet.text(MARGIN, top, f"{curve.title}, all ranks to one scale; the numbers are the peaks", style="italic")
    top += LINE
    height = len(ranks) * (CURVE + GAP)
    axes = sheet.axes(top, height)
    most = float(max((int(x) for x in curve.amount.tolist()), default=0)) or 1.0
    for k, rank in enumerate(ranks):
        base = k * (CURVE + GAP) + CURVE
        own = curve.rank == rank
        times = panel.units(curve.time[own]).tolist()
        amounts = [int(x) for x in curve.amount[own].tolist()]
        peak = max(amounts, default=0)
        sheet.text(sheet.left - BESIDE_NAME, top + base - CURVE / 2 - MIDDLE, f"rank {rank}", ha="right")
        shown = f"{number_text(Fraction(peak, curve.unit))}{curve.suffix}"
        sheet.text(right + 0.04, top + base - CURVE / 2 - MIDDLE, shown)
        times, amounts = _visible(times, amounts)
        times, amounts = [0.0, *times, panel.length], [0, *amounts, amounts[-1] if amounts else 0]
        # 0.94: the axes end at the top of the first curve, and would cut the line of a peak of full height.
        heights = [base - 0.94 * CURVE * x / most for x in amounts]
        for part in axes:
            part.fill_between(times, heights, base, step="post", facecolor="#d9d9d9", edgecolor="none")
            part.step(times, heights, where="post", color=EDGE, linewidth=0.7)
            part.axhline(base, color=FRAME, linewidth=0.5)
    return axes


def _visible(times: Sequence[float], amounts: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return at most two points of a curve for each time.

    These are the largest amount at this time, if it is larger than the amounts before and after, and the last amount. So a peak
    that lasts no time is drawn, and a dip that lasts no time is not.
    """
    points: list[tuple[float, int]] = []
    k = 0
    while k < len(times):
        end = k
        while end < len(times) and times[end] == times[k]:
            end += 1
        before = points[-1][1] if points else 0
        if (most := max(amounts[k:end])) > max(before, amounts[end - 1]):
            points.append((times[k], most))
        points.append((times[k], amounts[end - 1]))
        k = end
    return [time for time, _ in points], [amount for _, amount in points]
