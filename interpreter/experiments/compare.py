"""Comparisons: the runs of an experiment as points of its plots, with their spread and their ratios to a baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chimerac.interpreter.experiments.figures import FIGURES
from chimerac.interpreter.experiments.file import Comparison

Row = Mapping[str, Any]  # of the table: the labels and figures of a run, by column
ITERATION_TIME = ("iteration_s", "samples_per_s")  # the figures whose quartiles over the iterations of a run are known


@dataclass(frozen=True, slots=True)
class Point:
    """A figure of the runs of one panel, one group and one value on the x axis. They differ in repetition or seed.

    Attributes:
        value: the median over these runs.
        low, high: the least and the greatest; of a single run the quartiles over its iterations, where they are known.
        predicted: by the simulator, None without a prediction.
        ratio: to the baseline, None without one or if it is 0.
        count: of runs.
    """

    value: float
    low: float
    high: float
    predicted: float | None
    ratio: float | None
    count: int


@dataclass(frozen=True)
class Compared:
    """The rows of an experiment, compared. Names of panels and groups are the values of their labels, joined by commas."""

    compare: Comparison
    rows: Sequence[Row]

    @cached_property
    def panels(self) -> list[str]:
        """Return the names of the panels."""
        return list(dict.fromkeys(self._panel(row) for row in self.rows))

    @cached_property
    def groups(self) -> list[str]:
        """Return the names of the groups."""
        return list(dict.fromkeys(self._group(row) for row in self.rows))

    @cached_property
    def values(self) -> list[Any]:
        """Return the values on the x axis: ascending if all are numbers, otherwise in the order of the rows."""
        found = list(dict.fromkeys(row.get(self.compare.x) for row in self.rows))
        return sorted(found) if self.is_numeric else found

    @cached_property
    def is_numeric(self) -> bool:
        """Return whether all values on the x axis are numbers."""
        values = [row.get(self.compare.x) for row in self.rows]
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)

    @property
    def has_lines(self) -> bool:
        """Return whether a plot has lines: the x axis has several numbers. Otherwise it has bars."""
        return self.is_numeric and len(self.values) > 1

    @property
    def has_repetitions(self) -> bool:
        """Return whether some point has several runs."""
        return any(len(rows) > 1 for rows in self._by_place.values())

    @cached_property
    def _by_place(self) -> Mapping[tuple[str, str, Any], list[Row]]:
        found = dict[tuple[str, str, Any], list[Row]]()
        for row in self.rows:
            found.setdefault((self._panel(row), self._group(row), row.get(self.compare.x)), []).append(row)
        return found

    def point(self, figure: str, panel: str, group: str, x: Any) -> Point | None:
        """Return a point; None if no run is there, or if its runs lack the figure."""
        rows = [row for row in self._by_place.get((panel, group, x), []) if row.get(figure) is not None]
        if not rows:
            return None
        values = [float(row[figure]) for row in rows]
        low, high = min(values), max(values)
        if len(rows) == 1 and figure in ITERATION_TIME and "iteration_q1_s" in rows[0]:
            row = rows[0]
            ends = [row["iteration_q1_s"], row["iteration_q3_s"]]
            if figure == "samples_per_s":
                ends = [values[0] * row["iteration_s"] / end for end in reversed(ends)]  # a longer time is a lower throughput
            low, high = ends
        column = FIGURES[figure].predicted
        predictions = [row[column] for row in rows if row.get(column) is not None]
        value, base = statistics.median(values), self._baseline(figure, panel, x)
        predicted = statistics.median(predictions) if predictions else None
        return Point(value, low, high, predicted, value / base if base else None, len(rows))

    def _baseline(self, figure: str, panel: str, x: Any) -> float | None:
        """Return the figure of the baseline: the median over its runs. None without a baseline, or without such runs.

        The runs of the baseline have the values that `baseline` gives, and have the figure. If it gives no value of the x axis,
        they are at this x. If it gives no value of a name in `panels`, they are in this panel.
        """
        baseline = self.compare.baseline
        if not baseline:
            return None
        values = [
            float(row[figure])
            for row in self.rows
            if row.get(figure) is not None
            and all(row.get(name) == value for name, value in baseline.items())
            and (any(name in baseline for name in self.compare.panels) or self._panel(row) == panel)
            and (self.compare.x in baseline or row.get(self.compare.x) == x)
        ]
        return statistics.median(values) if values else None

    def _panel(self, row: Row) -> str:
        return _name(row, self.compare.panels)

    def _group(self, row: Row) -> str:
        return _name(row, self.compare.groups)


def _name(row: Row, labels: Sequence[str]) -> str:
    """Return the values that a row has for some labels, as one name. A value that is no text has the name of its label: f=2."""
    values = [(name, row[name]) for name in labels if row.get(name) is not None]
    return ", ".join(str(value) if isinstance(value, str) else f"{name}={value}" for name, value in values)
