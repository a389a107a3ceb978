"""--memory of `chimerac search`: a limit in bytes becomes limits of the search, which are lowered while a result needs more."""

from __future__ import annotations

import argparse
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import write_stderr
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.profile import Profile
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.memory import OptimizerState, check_memory
from chimerac.compiler.command.modelled import model_for
from chimerac.compiler.command.values import number_of_bytes, state_of
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.memory_limits import MemoryLimits, excess, memory_limits


class SearchMemory:
    """The limit of --memory: the most bytes that a rank of a program with a partition of --model may hold.

    most: these bytes; limits: what a search limits instead, lowered after each search whose result needs more bytes.
    """

    def __init__(self, model: ModelDescription, state: OptimizerState, most: int, limits: MemoryLimits) -> None:
        self.model, self.state, self.most, self.limits = model, state, most, limits

    @staticmethod
    def of(program: Program, profile: Profile | None, options: argparse.Namespace, split: bool | None) -> SearchMemory | None:
        """Return the limit of --memory; None without one. Raises ChimeraError as `memory_limits`.

        split: whether every backward is split; None: as in the program.
        """
        if options.memory is None:
            return None
        most, model = number_of_bytes(options.memory), model_for(program, options, profile)
        assert model is not None, "--memory is refused without --model"
        state = state_of(options.optimizer, options.zero, options.precision, profile)
        return SearchMemory(model, state, most, memory_limits(program, model, state, most, split))

    def within(self, given: Given) -> Given:
        """Return what is given with these limits. Raises ChimeraError E002 if limits are given already."""
        if given.activations is not None or given.limits is not None:
            raise refuse("E002", "--memory and the file of --costs both say what a rank may hold: leave one of them out")
        return replace(given, activations=self.limits.activations, limits=self.limits.limits)

    def fits(self, program: Program) -> bool:
        """Return whether no rank of a found program needs more bytes."""
        return not any(excess(program, self.model, self.state, self.most))

    def check(self, program: Program) -> None:
        """Raise ChimeraError E461 if a rank of a found program needs more bytes."""
        check_memory(program, self.model, self.most, state=self.state)

    def lower(self, program: Program) -> None:
        """Lower the limits by what the ranks of a found program need too much."""
        over = excess(program, self.model, self.state, self.most)
        rank = max(range(len(over)), key=lambda r: over[r])
        write_stderr(f"rank {rank} would need {self.most + over[rank]:,} bytes: searching again with lower limits\n")
        self.limits = self.limits.lowered(over)
