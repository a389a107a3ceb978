"""A measured iteration beside the predicted one: makespan, bubbles, time of each rank, and how long the kinds of tasks took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.report import table
from chimerac.compiler.analyze.simulate import Simulation

Floats = npt.NDArray[np.float64]
MAX_KINDS = 12  # of tasks, in the table of the largest differences


@dataclass(frozen=True, slots=True)
class IterationFigures:
    """One iteration, predicted or measured. Times are in `Beside.unit`.

    Attributes:
        makespan: until the last task and the last all-reduce have ended.
        busy: of each rank, how long its tasks take together.
    """

    makespan: float
    last_task_end: float
    busy: tuple[float, ...]

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Return the idle share of the makespan, of each rank."""
        return tuple(1 - busy / self.makespan if self.makespan else 0.0 for busy in self.busy)

    @property
    def bubble_ratio(self) -> float:
        """Return the idle share of all ranks' time."""
        return sum(self.bubbles) / len(self.bubbles)


@dataclass(frozen=True, slots=True)
class KindOfTask:
    """The tasks of one operation on one stage.

    Attributes:
        predicted, measured: the mean time of a task, in `Beside.unit`.
    """

    op: Op
    stage: int
    count: int
    predicted: float
    measured: float

    @property
    def difference(self) -> float:
        """Return how much longer all tasks of this kind took than predicted."""
        return self.count * (self.measured - self.predicted)


@dataclass(frozen=True, slots=True)
class Beside:
    """A measured iteration beside the predicted one, in one unit of time.

    Attributes:
        unit: of the measured times.
        unit_of_cost: where the predicted times are costs, or the measured ones are, how long one unit of the predicted times
            is, in `unit`. It is chosen so that all tasks together take as long as measured; it is 1 if no task takes time in
            one of the two. None if predicted and measured times have the same unit, or both have units of time.
        kinds: those with the largest difference first.
    """

    predicted: IterationFigures
    measured: IterationFigures
    unit: str
    unit_of_cost: float | None
    kinds: tuple[KindOfTask, ...]


def beside(s: Simulation, measured: Timeline) -> Beside:
    """Return a measured timeline of a program beside its simulation.

    Args:
        measured: a bar for every row, in the order of rows.
    """
    p = s.program
    is_task = p.table.is_task
    predicted_lengths = np.where(is_task, s.lengths, 0) / s.scale
    measured_lengths = np.where(is_task, measured.end - measured.start, 0) / measured.scale
    factor, unit_of_cost = time_factor(s, measured)
    predicted = _figures(p, s.timeline, predicted_lengths * factor, s.makespan / s.scale * factor, factor)
    of_measured = _figures(p, measured, measured_lengths, measured.makespan / measured.scale, factor=1.0)
    kinds = _kinds(p, predicted_lengths * factor, measured_lengths)
    return Beside(predicted, of_measured, measured.unit, unit_of_cost, kinds)


SECONDS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}  # by unit of time


def time_factor(s: Simulation, measured: Timeline) -> tuple[float, float | None]:
    """Return the factor from predicted times to times in the measured unit, and `Beside.unit_of_cost`."""
    if s.unit == measured.unit:
        return 1.0, None
    if s.unit in SECONDS and measured.unit in SECONDS:
        return float(SECONDS[s.unit] / SECONDS[measured.unit]), None
    is_task = s.program.table.is_task
    predicted_sum = int(s.lengths[is_task].sum()) / s.scale
    measured_sum = int((measured.end - measured.start)[is_task].sum()) / measured.scale
    factor = measured_sum / predicted_sum if measured_sum and predicted_sum else 1.0
    return factor, factor


def _figures(p: Program, timeline: Timeline, lengths: Floats, makespan: float, factor: float) -> IterationFigures:
    """Return the figures of a timeline.

    Args:
        lengths: of its tasks by row, 0 for other rows.
        lengths, makespan: in the measured unit.
        factor: from the timeline's unit to the measured one.
    """
    busy = np.zeros(p.world)
    np.add.at(busy, p.rank_of, lengths)
    last = int(timeline.end[p.table.is_task].max(initial=0)) / timeline.scale * factor
    return IterationFigures(makespan, last, tuple(busy.tolist()))


def _kinds(p: Program, predicted: Floats, measured: Floats) -> tuple[KindOfTask, ...]:
    """Return the kinds of tasks, those with the largest difference first.

    Args:
        predicted, measured: how long each row runs.
    """
    t = p.table
    rows = np.flatnonzero(t.is_task)
    keys, index, counts = np.unique(t.stage[rows] * len(FORMS) + t.op[rows], return_inverse=True, return_counts=True)
    means = (np.bincount(index, x[rows], len(keys)) / counts for x in (predicted, measured))
    columns = zip(keys.tolist(), counts.tolist(), *(mean.tolist() for mean in means), strict=True)
    kinds = (KindOfTask(Op(key % len(FORMS)), key // len(FORMS), *rest) for key, *rest in columns)
    return tuple(sorted(kinds, key=lambda k: (-abs(k.difference), k.stage, k.op)))


def beside_lines(b: Beside) -> Iterator[str]:
    """Yield the figures as tables in text, predicted beside measured."""
    if b.unit_of_cost is not None:
        is_fitted = any(k.predicted for k in b.kinds) and any(k.measured for k in b.kinds)
        why = "all tasks together take as long as measured" if is_fitted else "no task takes time"
        length = f"{number_text(b.unit_of_cost)} {b.unit}".rstrip()
        yield f"1 unit of the predicted times is {length}: {why}"
    p, m = b.predicted, b.measured
    unit = f", in {b.unit}" if b.unit else ""
    rows = [_row("makespan", p.makespan, m.makespan), _row("last task ends", p.last_task_end, m.last_task_end)]
    rows.append(_share_row("bubble ratio", p.bubble_ratio, m.bubble_ratio))
    rows += [_row(f"rank {g} busy", *pair) for g, pair in enumerate(zip(p.busy, m.busy, strict=True))]
    rows += [_share_row(f"rank {g} bubble", *pair) for g, pair in enumerate(zip(p.bubbles, m.bubbles, strict=True))]
    yield from _aligned([f"measured beside predicted{unit}", "predicted", "measured", "difference", ""], rows)
    yield ""
    kinds = [_row(f"{k.op.name} s{k.stage}, {k.count} of them", k.predicted, k.measured) for k in b.kinds[:MAX_KINDS]]
    yield from _aligned([f"mean time of a task{unit}", "predicted", "measured", "difference", ""], kinds)
    if len(b.kinds) > MAX_KINDS:
        yield f"... and {len(b.kinds) - MAX_KINDS} more kinds of tasks, whose differences over all their tasks are no greater"


def _aligned(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table whose first column is aligned to the left."""
    width = max(len(row[0]) for row in [head, *rows])
    return table([f"{head[0]:<{width}}", *head[1:]], [[f"{row[0]:<{width}}", *row[1:]] for row in rows])


def _row(name: str, predicted: float, measured: float) -> list[str]:
    change = f"{100 * (measured / predicted - 1):+.1f} %" if predicted else ""
    return [name, number_text(predicted), number_text(measured), number_text(measured - predicted, flags="+"), change]


def _share_row(name: str, predicted: float, measured: float) -> list[str]:
    return [name, f"{predicted:.4f}", f"{measured:.4f}", f"{measured - predicted:+.4f}", ""]
