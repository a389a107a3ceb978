"""Bytes in `chimerac search`: the limit of --memory becomes limits of the search, lowered while a found order needs more."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import write_stderr
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.profile import Profile
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.memory import OptimizerState, fixed_bytes
from chimerac.compiler.command.modelled import model_for
from chimerac.compiler.command.values import number_of_bytes, state_of
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.memory_limits import MemoryLimits, excess, memory_limits, needed

if TYPE_CHECKING:
    from chimerac.compiler.search.problem import Pipe


NO_LIMIT = 2**60  # bytes: more than any rank needs


class SearchMemory:
    """What ranks may need in bytes.

    Args:
        model: the description of --model.
        state: of the optimizer.
        most: the bytes that a rank may need, `NO_LIMIT` without --memory.
        limits: what a search limits instead, lowered after a search whose order needs more bytes.
    """

    def __init__(self, model: ModelDescription, state: OptimizerState, most: int, limits: MemoryLimits) -> None:
        self.model, self.state, self.most, self.limits = model, state, most, limits

    @staticmethod
    def of(program: Program, profile: Profile | None, options: argparse.Namespace, split: bool | None) -> SearchMemory | None:
        """Return what ranks may need: the bytes of --memory or, if bytes are the objective without it, `NO_LIMIT`; else None.

        Args:
            program: with a partition of --model.
            split: whether every backward is split; None: if the program splits any.

        Raises ChimeraError: E002 for a value that --memory or --optimizer cannot have, and for --zero without an optimizer;
        others as `model_for` and `memory_limits`.
        """
        if options.memory is None and (options.objective != "memory" or options.model is None):
            return None
        most = NO_LIMIT if options.memory is None else number_of_bytes(options.memory)
        model = model_for(program, options, profile)
        assert model is not None, "--memory is refused without --model"
        state = state_of(options.optimizer, options.zero, options.precision, profile)
        # If memory is the objective, orders that need more are only refused when their bytes have been counted exactly.
        limit = NO_LIMIT if options.objective == "memory" else most
        return SearchMemory(model, state, most, memory_limits(program, model, state, limit, split))

    def within(self, given: Given) -> Given:
        """Return `given` with these limits added. Raises ChimeraError E002 if `given` has limits or activations already."""
        if given.activations is not None or given.limits is not None:
            option = "--model" if self.most == NO_LIMIT else "--memory"
            message = f"{option} makes the search count bytes, and the file of --costs says what a rank may hold in other units"
            raise refuse("E002", f"{message}: leave one of them out")
        return replace(given, activations=self.limits.activations, limits=self.limits.limits)

    def limits_for(self, program: Program, pipes: Sequence[Pipe]) -> tuple[int, ...]:
        """Return the limits of the ranks for the placements of `pipes`.

        With these placements the ranks hold the weights, gradients and optimizer state of other stages.

        Args:
            program: the one with the placements that `self.limits` are for.
        """
        h = program.header
        moved = tuple(replace(pipe, placement=other.placement) for pipe, other in zip(h.pipes, pipes, strict=True))
        stages = self.model.stage_sums(partition_for(program.partition, self.model, h.stages).layers)
        before, after = (
            [sum(fixed_bytes(header, self.model, stages, self.state, r)) for r in range(h.ranks)]
            for header in (h, replace(h, pipes=moved))
        )
        return tuple(limit + a - b for limit, a, b in zip(self.limits.limits, before, after, strict=True))

    def needed(self, program: Program) -> int:
        """Return how many bytes the rank of a program that needs most needs."""
        return needed(program, self.model, self.state)

    def fits(self, program: Program) -> bool:
        """Return whether every rank of a program needs no more than `most` bytes."""
        return self.needed(program) <= self.most

    def check(self, program: Program) -> None:
        """Raise ChimeraError E002 if a rank needs more than the bytes of --memory.

        Args:
            program: with an order that runs one micro-batch at a time.
        """
        if over := max(excess(program, self.model, self.state, self.most)):
            least = self.most + over
            message = f"no order was found that needs at most {self.most:,} bytes of {self.model.name} on every rank"
            raise refuse("E002", f"{message}: one micro-batch at a time needs {least:,}", help=f"give --memory {least} or more")

    def lower(self, program: Program) -> bool:
        """Lower the limit of each rank by the bytes above --memory that it needs in a found program.

        If a limit is lower now, tell the user and return True. Otherwise return False.
        """
        over = excess(program, self.model, self.state, self.most)
        before, self.limits = self.limits, self.limits.lowered(over)
        if self.limits == before:
            return False
        rank = max(range(len(over)), key=lambda r: over[r])
        write_stderr(f"rank {rank} would need {self.most + over[rank]:,} bytes: searching again with lower limits\n")
        return True
