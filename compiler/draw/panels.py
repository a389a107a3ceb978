"""What a picture shows of one program: its timeline, and what is drawn beside the tasks. It does not need matplotlib."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.lifetimes import Amounts
from chimerac.chimera_ir.program import Ints, Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.draw.timeline import fused_bars, has_several_stages, ids_text

Units = npt.NDArray[np.float64]  # times in units


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages on their way, as columns: from global rank `sender` to `receiver`, from time `start` to `end`."""

    sender: Ints
    receiver: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """What each rank holds over time, as columns: global rank `rank` holds `amount` from `time` on, until its next entry.

    The entries of a rank are in the order of their times.

    Attributes:
        title: what the amounts are.
        unit: the amount that is written as 1, such as 1024 bytes.
        suffix: what is written after the number, such as ' KiB'.
    """

    rank: Ints
    time: Ints
    amount: Amounts
    title: str
    unit: int = 1
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A timeline with its program. Times are in the integers of the timeline.

    Attributes:
        title, facts: texts above the timeline.
        end: of the iteration.
        messages, memory: None if they are not drawn.
        all_reduces: when each of `Program.collectives` began and ended; None if only the launches are known, which are then
            drawn as marks.
        counts_idle: whether the idle slots are numbered (see `idle_slots_of`).
    """

    title: str
    facts: str
    program: Program
    timeline: Timeline
    end: int
    messages: Messages | None = None
    all_reduces: tuple[Ints, Ints] | None = None
    memory: MemoryCurve | None = None
    counts_idle: bool = False

    def units(self, times: Ints) -> Units:
        """Return times of the timeline in its units."""
        return times / self.timeline.scale

    def with_facts(self, facts: str) -> Panel:
        """Return this panel with other facts above it."""
        return replace(self, facts=facts)

    @property
    def length(self) -> float:
        """Return the time of the iteration in units."""
        return self.end / self.timeline.scale


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of the tasks that take time, as columns: that of the task in row `row` of the program, on global rank `rank`.

    Attributes:
        half: 0 for a box of full height; of the two tasks of an overlapped pair that run at once, 1 for the first, drawn above,
            and 2 for the second.
        number, stage: the micro-batches and the stage as text; the stage is '' unless a pipe has several stages on a rank.
    """

    rank: Ints
    row: Ints
    start: Units
    end: Units
    half: Ints
    number: tuple[str, ...]
    stage: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.row)


def boxes_of(panel: Panel) -> Boxes:
    """Return the boxes of a panel, in the order of the timeline."""
    p, bars = panel.program, panel.timeline
    fused = fused_bars(p, bars)
    second = set(bars.row[fused].tolist())
    drawn = bars.take(p.table.is_task[bars.row] & ~fused & (bars.end > bars.start))
    entries = []
    for rank, row, start, end in zip(*(c.tolist() for c in (drawn.rank, drawn.row, drawn.start, drawn.end)), strict=True):
        if row + 1 in second:
            entries += [(rank, row, start, end, 1), (rank, row + 1, start, end, 2)]
        else:
            entries.append((rank, row, start, end, 0))
    columns = np.array(entries, np.int64).reshape(-1, 5).T
    rows = columns[1].tolist()
    stages = has_several_stages(p)
    return Boxes(
        columns[0],
        columns[1],
        panel.units(columns[2]),
        panel.units(columns[3]),
        columns[4],
        tuple(ids_text(p.micro_batch_lists[int(p.table.operand[row])]) for row in rows),
        tuple(str(p.table.stage[row]) if stages else "" for row in rows),
    )


@dataclass(frozen=True, slots=True)
class AllReduces:
    """All-reduces as columns, with one entry for each rank that joins one. An all-reduce that takes no time is a mark."""

    rank: Ints
    start: Units
    end: Units
    name: tuple[str, ...]


def all_reduces_of(panel: Panel) -> AllReduces:
    """Return the all-reduces of a panel. The name of one is the number of its stage, or the name of its tied set."""
    p, bars = panel.program, panel.timeline
    launched = bars.take(p.table.op[bars.row] == Op.ALLREDUCE)
    collective = p.table.operand[launched.row]
    start = end = launched.end
    if panel.all_reduces is not None:
        start, end = (times[collective] for times in panel.all_reduces)
    names = tuple(p.collectives[k].group.removeprefix("stage ") for k in collective.tolist())
    return AllReduces(launched.rank, panel.units(start), panel.units(end), names)


def idle_slots_of(panel: Panel) -> list[tuple[int, int, int]]:
    """Return (rank, slot, count) of every idle slot. count: the number that is drawn in it, from 1 on each rank.

    A slot is one unit of time, from time `slot` to `slot` + 1, up to the end of the iteration. In the timeline a unit must be
    the integer 1.
    """
    p, bars = panel.program, panel.timeline
    bars = bars.take(p.table.is_task[bars.row] & (bars.end > bars.start))
    slots = []
    for rank in range(p.world):
        own = bars.take(bars.rank == rank)
        busy = {slot for a, b in zip(own.start.tolist(), own.end.tolist(), strict=True) for slot in range(a, b)}
        idle = [slot for slot in range(panel.end) if slot not in busy]
        slots += [(rank, slot, count) for count, slot in enumerate(idle, 1)]
    return slots
