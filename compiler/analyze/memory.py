"""What each rank holds, at its peak and over time: the bytes of a model, or the number of activations. It needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.lifetimes import ACTIVATIONS, Amounts, Kind, activations, held, lifetimes, sizes
from chimerac.chimera_ir.model import ModelDescription, StageSum, gradient_bytes
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.program import Header, Ints, Program
from chimerac.chimera_ir.timeline import Timeline


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """How much state an optimizer has.

    Attributes:
        per_gradient: bytes of state for each byte of a gradient.
        zero: the state of a stage is sharded over the holders of the stage, in equal parts (ZeRO, stage 1).
        replicas: how many replicas a run has for each replica of the program; the numbers of holders are multiplied by it.
    """

    per_gradient: Fraction = Fraction(0)
    zero: bool = False
    replicas: int = 1

    def bytes(self, gradient_bytes: int, holders: int) -> int:
        """Return the bytes of state on one holder of parameters with gradients of this size, rounded up.

        Args:
            holders: the number of these holders in the program.
        """
        divisor = self.per_gradient.denominator * self.shares(holders)
        return -(-gradient_bytes * self.per_gradient.numerator // divisor)

    def shares(self, holders: int) -> int:
        """Return into how many shares the state is divided.

        Args:
            holders: as for `bytes`.
        """
        return holders * self.replicas if self.zero else 1


NO_STATE = OptimizerState()


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one global rank, by the rule of docs/semantics.md, "Buffers".

    weights, gradients, optimizer (its state): of all stages of the rank, held from the first instruction to the last.

    The next five change during an iteration. Each number is the most at any instruction, so they may belong to different
    instructions.

    Attributes:
        activations: what forwards keep for their backwards.
        buffers: those of messages, from the RECV on until they are freed.
        values: outputs, until they are read or sent.
        sends: messages until they are complete.
        workspace: what a task needs only while it runs.
        peak: the most that all of these need at once.
    """

    weights: int
    gradients: int
    optimizer: int = field(default=0, kw_only=True)
    activations: int
    buffers: int
    values: int
    sends: int
    workspace: int = field(default=0, kw_only=True)
    peak: int


# The parts of a rank's memory that change during an iteration, and the kinds that each of them sums.
_PARTS = {
    "activations": ACTIVATIONS,
    "buffers": (Kind.RECEIVED,),
    "values": (Kind.OUTPUT, Kind.SENT_UNCOPIED),
    "sends": (Kind.SENT,),
    "workspace": (Kind.WORKSPACE,),
}


class _MemoryParts:
    """The bytes that ranks hold while each instruction runs.

    Attributes:
        lives, amounts: what is held, and the bytes of each entry.
        parts: for each name in `_PARTS` the bytes by row.
        all: the sum of the parts by row.

    Weights, gradients and the optimizer's state are in none of these.

    Raises ChimeraError E705, E706 as `partition_for`.
    """

    def __init__(self, program: Program, model: ModelDescription, state: OptimizerState = NO_STATE) -> None:
        self.program, self.model, self.state = program, model, state
        partition = partition_for(program.partition, model, program.header.stages)
        self.stages = model.stage_sums(partition.layers)
        self.lives = lifetimes(program)
        self.amounts = sizes(self.lives, self.stages)
        self.parts: dict[str, Amounts] = {}
        for name, kinds in _PARTS.items():
            chosen = self.lives.is_of(*kinds)
            self.parts[name] = held(program, self.lives.take(chosen), self.amounts[chosen])
        self.all: Amounts = np.sum(list(self.parts.values()), axis=0)

    def ranks(self) -> tuple[RankMemory, ...]:
        """Return the memory of every global rank."""
        h = self.program.header
        fixed, found = [fixed_bytes(h, self.model, self.stages, self.state, rank) for rank in range(h.ranks)], []
        for rank, (a, b) in enumerate(pairwise(self.program.offsets.tolist())):
            weights, gradients, optimizer = fixed[rank % h.ranks]
            peaks = {name: int(sums[a:b].max(initial=0)) for name, sums in self.parts.items()}
            peak = weights + gradients + optimizer + int(self.all[a:b].max(initial=0))
            found.append(RankMemory(weights, gradients, **peaks, peak=peak, optimizer=optimizer))
        return tuple(found)

    def peak_row(self, rank: int) -> tuple[int, dict[str, int]]:
        """Return the row at which the peak of a rank begins, and the bytes of the parts at this row.

        The rank has at least one instruction.
        """
        a, b = self.program.offsets[rank : rank + 2].tolist()
        row = a + int(self.all[a:b].argmax())
        return row, {name: int(sums[row]) for name, sums in self.parts.items()}


def fixed_bytes(
    h: Header, model: ModelDescription, stages: Sequence[StageSum], state: OptimizerState, rank: int
) -> tuple[int, int, int]:
    """Return the bytes of a local rank's weights, of their gradients and of the optimizer's state.

    The last two are 0 for a program of kind evaluation.

    Args:
        stages: of the partition.
    """
    own = stages_of(h, rank)
    weights, gradients = (sum(getattr(stages[s], f"{name}_bytes") for s in own) for name in ("weight", "gradient"))
    optimizer = sum(state.bytes(stages[s].gradient_bytes, len(h.holders([s]))) for s in own)
    for tied in model.tied:  # a rank has one copy for all of its stages that share the parameters: only the first counts
        for s in [s for s in own if any(k in stages[s].layers for k in tied.layers)][1:]:
            weights, gradients = weights - tied.weight_bytes, gradients - gradient_bytes(tied)
            optimizer -= state.bytes(gradient_bytes(tied), len(h.holders([s])))
    return (weights, gradients, optimizer) if h.kind == "training" else (weights, 0, 0)


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """How many bytes the ranks hold over time.

    Attributes:
        held: for each row of the program, all bytes that its rank holds while it runs, with weights, gradients and the
            optimizer's state.
        ranks: the memory of each global rank.
        peaks: of each rank, the first row at which it holds most; -1 for an empty stream.
    """

    held: Amounts
    ranks: tuple[RankMemory, ...]
    peaks: tuple[int, ...]


def held_bytes(program: Program, model: ModelDescription, state: OptimizerState = NO_STATE) -> HeldBytes:
    """Return the bytes that are held while each instruction runs. Raises ChimeraError E705, E706 as `partition_for`."""
    return _held_bytes(_MemoryParts(program, model, state))


def _held_bytes(memory_parts: _MemoryParts) -> HeldBytes:
    program, ranks = memory_parts.program, memory_parts.ranks()
    fixed = np.array([x.weights + x.gradients + x.optimizer for x in ranks], object)
    bounds = enumerate(pairwise(program.offsets.tolist()))
    peaks = tuple(memory_parts.peak_row(rank)[0] if begin < end else -1 for rank, (begin, end) in bounds)
    return HeldBytes(memory_parts.all + fixed[program.rank_of], ranks, peaks)


@dataclass(frozen=True, slots=True)
class MemoryOverTime:
    """What ranks hold over time, as columns: global rank `rank` holds `amount` from `time` on, until its next entry.

    The entries of a rank are in the order of their times, of which several may be equal. Times are in the integers of the
    timeline.

    Attributes:
        amount: all bytes of a model, with weights, gradients and the optimizer's state; without a model, the number of
            activations that are alive.
    """

    rank: Ints
    time: Ints
    amount: Amounts


def memory_over_time(
    program: Program, timeline: Timeline, model: ModelDescription | None = None, state: OptimizerState = NO_STATE
) -> MemoryOverTime:
    """Return what each rank holds over time.

    Args:
        timeline: predicted or measured, with a bar for every instruction of its ranks.

    There are two entries for each instruction: what is held while it runs, from its start on, and what is left from its end on.
    What is freed at the end of the iteration is still counted in the last entry of its rank. Raises ChimeraError E705, E706 as
    `partition_for`, if a model is given.
    """
    if model is None:
        lives = activations(program)
        lives = lives.take(lives.is_of(Kind.ALIVE))
        amounts: Amounts = np.ones(len(lives.kind), np.int64)
        during = held(program, lives, amounts)
    else:
        parts = _MemoryParts(program, model, state)
        lives, amounts, during = parts.lives, parts.amounts, _held_bytes(parts).held
    freed = np.zeros(len(program) + 1, amounts.dtype)  # by row; the last number is for what is freed at the end
    at_end = lives.freed >= program.offsets[1:][program.rank_of[lives.allocated]]
    np.add.at(freed, np.where(at_end, len(program), lives.freed), amounts)
    after = during - freed[:-1]
    bars = timeline.take(np.lexsort((timeline.row, timeline.rank)))
    pairs = ((bars.start, bars.end), (during[bars.row], after[bars.row]))
    time, amount = (np.stack(pair, axis=1).reshape(-1) for pair in pairs)
    return MemoryOverTime(np.repeat(bars.rank, 2), time, amount)


def stages_of(header: Header, rank: int) -> list[int]:
    """Return the stages of a local rank, ascending, each once."""
    return sorted({s for p in header.pipes for s, r in enumerate(p.placement) if r == rank})


def memory(program: Program, model: ModelDescription, state: OptimizerState = NO_STATE) -> tuple[RankMemory, ...]:
    """Return the memory of every global rank. Raises ChimeraError E705, E706 as `partition_for`."""
    return _MemoryParts(program, model, state).ranks()


def check_memory(
    program: Program,
    model: ModelDescription,
    limit_bytes: int,
    recomputing: Callable[[], Program] | None = None,
    state: OptimizerState = NO_STATE,
) -> None:
    """Raise ChimeraError E461 if a rank needs more bytes than limit_bytes, and E705, E706 as `partition_for`.

    Args:
        recomputing: compiles the same schedule with recomputation on all stages, to test whether that suffices; with None the
            finding does not suggest recomputation.
    """
    memory_parts = _MemoryParts(program, model, state)
    needs = memory_parts.ranks()
    worst = max(needs, key=lambda x: x.peak)
    if worst.peak <= limit_bytes:
        return
    rank = needs.index(worst)
    count = sum(x.peak > limit_bytes for x in needs)
    parts = {"weights": worst.weights, "gradients": worst.gradients, "optimizer": worst.optimizer}
    notes = []
    if program.offsets[rank] < program.offsets[rank + 1]:
        row, parts_at_peak = memory_parts.peak_row(rank)
        parts |= parts_at_peak
        notes.append(f"the peak begins at {program.place(row)}")
    notes.insert(0, ", ".join(f"{name} {size:,}" for name, size in parts.items()))
    notes += [f"{count} of {len(needs)} ranks need more than they have"] if count > 1 else []
    help = f"take smaller micro-batches or more ranks; this program needs {worst.peak:,} bytes"
    recomputed_bytes = None if recomputing is None else _worst_rank_bytes(recomputing, model, state)
    if recomputed_bytes is not None and recomputed_bytes <= limit_bytes:
        help = f"let every stage recompute: --recompute all; tried: it then needs {recomputed_bytes:,} bytes"
    raise refuse(
        "E461",
        f"rank {rank} needs {worst.peak:,} bytes of {model.name} at its peak, and has {limit_bytes:,} bytes",
        notes=tuple(notes),
        help=help,
    )


def _worst_rank_bytes(recomputing: Callable[[], Program], model: ModelDescription, state: OptimizerState) -> int | None:
    """Return the bytes of the rank that needs most; None if compiling or counting fails.

    Args:
        recomputing: compiles the program.
    """
    try:
        return max(x.peak for x in memory(recomputing(), model, state))
    except ChimeraError:
        return None
