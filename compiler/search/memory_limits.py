"""A limit in bytes becomes what a search limits: what each stage holds for a micro-batch, and how much of it a rank may hold.

A rank also holds weights, gradients and the optimizer's state, which are the same in every order. For a short time it holds
messages, outputs and workspace, which depend on the order. The limit sets aside as much for these as the given program needs.
An order that was found may need more. So its bytes are counted after it was compiled (`excess`). If a rank needs more than it
has, the search is repeated with lower limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.lifetimes import Kind, activations, held, value_bytes
from chimerac.chimera_ir.model import ModelDescription, StageSum
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.memory import OptimizerState, held_bytes


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What a search limits, in bytes.

    Attributes:
        activations: what each stage holds for a micro-batch from its forward to its last backward, with the message that it has
            received.
        limits: the most that each rank may hold of these activations.
        least: what each rank holds of them if micro-batches run one at a time. No limit is less, so that there always is an
            order.
        aside: what each rank holds besides.
    """

    activations: tuple[int, ...]
    limits: tuple[int, ...]
    least: tuple[int, ...]
    aside: tuple[int, ...]

    def lowered(self, by: Sequence[int]) -> MemoryLimits:
        """Return these limits, each lowered by the bytes of its rank in `by`, but to no less than `least`."""
        limits = tuple(max(a, limit - x) for a, limit, x in zip(self.least, self.limits, by, strict=True))
        return replace(self, limits=limits)


def memory_limits(
    program: Program, model: ModelDescription, state: OptimizerState, most: int, split: bool | None = None
) -> MemoryLimits:
    """Return what a search limits if no rank may need more than `most` bytes. An order within these limits may need more.

    Args:
        program: verified, one replica, with the placement that is searched.
        split: whether the search splits backwards; None: if the program splits any.

    Raises ChimeraError E705, E706 as `partition_for`.
    """
    h = program.header
    partition = partition_for(program.partition, model, h.stages)
    is_split = bool((program.table.op == Op.BWD_INPUT).any()) if split is None else split
    of_stages = _held_by_stages(model.stage_sums(partition.layers), is_split)
    lives = activations(program)
    alive = lives.take(lives.is_of(Kind.ALIVE))
    limited = held(program, alive, np.array(of_stages, object)[alive.stage])
    memory, limits, least, asides = held_bytes(program, model, state), [], [], []
    for rank, (begin, end) in enumerate(pairwise(program.offsets.tolist())):
        fixed = memory.ranks[rank].weights + memory.ranks[rank].gradients + memory.ranks[rank].optimizer
        # What the limit of the search does not count.
        asides.append(int(max(0, (memory.held[begin:end] - limited[begin:end]).max(initial=fixed))))
        of_pipes = (sum(of_stages[s] for s, r in enumerate(p.placement) if r == rank) for p in h.pipes if p.micro_batches)
        least.append(max(of_pipes, default=0))
        limits.append(max(least[-1], most - asides[-1]))
    return MemoryLimits(of_stages, tuple(limits), tuple(least), tuple(asides))


def needed(program: Program, model: ModelDescription, state: OptimizerState) -> int:
    """Return how many bytes the rank of a program that needs most needs."""
    return max(x.peak for x in held_bytes(program, model, state).ranks)


def excess(program: Program, model: ModelDescription, state: OptimizerState, most: int) -> tuple[int, ...]:
    """Return how many bytes each rank of a program needs above `most`."""
    return tuple(max(0, x.peak - most) for x in held_bytes(program, model, state).ranks)


def _held_by_stages(stages: Sequence[StageSum], split: bool) -> tuple[int, ...]:
    """Return what each stage holds for a micro-batch, in bytes. Between the halves of a split backward a stage may hold more or
    less than before the first half: the larger amount counts."""
    kept = [max(x.split_kept_bytes, x.weight_kept_bytes) if split else x.kept_bytes for x in stages]
    received = [0, *(value_bytes(Kind.RECEIVED, Value.act, x.boundary, 1) for x in stages[:-1])]
    return tuple(a + b for a, b in zip(kept, received, strict=True))
