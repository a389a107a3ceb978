"""Figures of a run: what they are called, their units, and how they follow from the log of the run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a report can show.

    Attributes:
        title: with the unit of the scaled value.
        scale: what a value is multiplied by.
        digits: after the decimal point.
        predicted: the column of the table with the simulator's prediction; empty if there is none.
    """

    title: str
    scale: float = 1.0
    digits: int = 3
    predicted: str = ""

    def text(self, value: float | None) -> str:
        """Return a value as text, in the unit of the title."""
        return "-" if value is None else f"{self.scale * value:,.{self.digits}f}"


FIGURES: Mapping[str, Figure] = {
    "samples_per_s": Figure("throughput (samples/s)", digits=1, predicted="predicted_samples_per_s"),
    "tokens_per_s": Figure("throughput (tokens/s)", digits=0),
    "iteration_s": Figure("iteration time (ms)", scale=1e3, digits=1, predicted="predicted_iteration_s"),
    "utilization": Figure("busy share of the ranks (%)", scale=100, digits=1, predicted="predicted_utilization"),
    "gpu_utilization": Figure("GPU utilization (%)", scale=100, digits=1),
    "bubble": Figure("bubble ratio (%)", scale=100, digits=1, predicted="predicted_bubble"),
    "peak_memory_bytes": Figure("peak memory of the fullest rank (MB)", scale=1e-6, digits=0),
    "recompute_s": Figure("time of recomputation (ms)", scale=1e3, digits=1),
    "value_wait_s": Figure("wait for values (ms)", scale=1e3, digits=2),
    "send_wait_s": Figure("wait for sends (ms)", scale=1e3, digits=2),
    "all_reduce_wait_s": Figure("wait for all-reduces (ms)", scale=1e3, digits=2),
    "loss": Figure("loss at the end", digits=4),
    "held_out_loss": Figure("held-out loss", digits=4),
}
MEANS = ("recompute_s", "value_wait_s", "send_wait_s", "all_reduce_wait_s")  # means over the ranks and the counted iterations


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known about a run before it runs.

    Attributes:
        samples: how many an iteration has.
        bubble: the predicted bubble ratio.
        iteration_s: the predicted time of an iteration, None without --timed.
    """

    samples: int
    bubble: float
    iteration_s: float | None


def figures_of(log: Path, discard: int, expected: Expected) -> dict[str, Any]:
    """Return the figures of a run from its log, by column of the table.

    Args:
        discard: iterations at the start that are not counted; the last iteration is always counted.

    Figures that are not known are left out.

    Raises OSError if the log cannot be read, ValueError if it has no iteration or is not UTF-8, KeyError if its lines lack the
    time, the bubbles or the peak memory.
    """
    lines = _iterations(log)
    if not lines:
        raise ValueError(f"{log} has no iteration")
    counted = lines[min(discard, len(lines) - 1) :]
    times = [line["iteration_s"] for line in counted]
    median = statistics.median(times)
    first, third = quartiles(times)
    busy = [1 - _mean(bubbles) for bubbles in zip(*(line["bubble"] for line in counted), strict=True)]
    peaks = counted[-1]["peak_memory_bytes"]
    figures = {
        "iterations": len(counted),
        "iteration_s": median,
        "iteration_q1_s": first,
        "iteration_q3_s": third,
        "samples_per_s": expected.samples / median,
        "tokens_per_s": _median(counted, "tokens_per_second"),
        "utilization": _mean(busy),
        "bubble": 1 - _mean(busy),
        "predicted_bubble": expected.bubble,
        "predicted_utilization": 1 - expected.bubble,
        "predicted_iteration_s": expected.iteration_s,
        "predicted_samples_per_s": expected.samples / expected.iteration_s if expected.iteration_s else None,
        "peak_memory_bytes": max(peaks),
        **{name: _mean([_mean(line[name]) for line in counted]) for name in MEANS if name in counted[0]},
        "loss": counted[-1].get("loss"),
        "held_out_loss": next((line["held_out_loss"] for line in reversed(counted) if "held_out_loss" in line), None),
        "oversubscribed": any(line.get("oversubscribed") for line in counted),
        "busy_of_ranks": [round(share, 4) for share in busy],
        "peak_memory_bytes_of_ranks": list(peaks),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _iterations(log: Path) -> list[dict[str, Any]]:
    """Return the lines of the iterations of a run's last attempt. Ranks that are started again append a new first line."""
    lines = list[dict[str, Any]]()
    for text in log.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # the run was killed while it wrote the line
            continue
        if "format" in line:
            lines = []
        elif "iteration" in line:
            lines.append(line)
    return lines


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile. A single value is both."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _median(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return statistics.median(values) if values else None
