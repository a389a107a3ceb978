"""Costs: the assumed durations of the tasks and transfers of a program.

Programs that differ only in costs are equal: the digest does not cover costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.instructions import FORMS, STRICT, Op

StageCosts = Annotated[tuple[Annotated[int, Field(ge=0, le=limits.COST)], ...], Field(min_length=1), FailFast()]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a task of one micro-batch costs, stage by stage, and what a transfer between ranks costs: integers in one unit.

    Attributes:
        RECOMPUTE: the cost of running a forward again, by a task or in a backward; empty if that costs as much as the forward.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    FWD: StageCosts
    BWD: StageCosts
    BWD_INPUT: StageCosts
    BWD_WEIGHT: StageCosts
    RECOMPUTE: StageCosts = field(default=(), kw_only=True)
    hop: Annotated[int, Field(ge=0, le=limits.COST)] = 0

    @staticmethod
    def default(stages: int) -> Costs:
        """Return the costs of a program that names none: forward 1, backward 2, each half of a backward 1."""
        one = (1,) * stages
        return Costs(FWD=one, BWD=(2,) * stages, BWD_INPUT=one, BWD_WEIGHT=one)

    def of(self, op: Op) -> tuple[int, ...]:
        """Return what a task of this operation costs, by stage."""
        costs: tuple[int, ...] = getattr(self, op.name)
        return self.FWD if op == Op.RECOMPUTE and not costs else costs

    def given(self) -> dict[str, Any]:
        """Return the costs by name, without RECOMPUTE if it is empty."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "RECOMPUTE" or self.RECOMPUTE}

    def total(self, micro_batches: int) -> int:
        """Return an upper bound of the makespan of one replica: tasks of every kind and all transfers, one after another."""
        tasks = sum(sum(self.of(form.op)) for form in FORMS if form.letter)
        return (tasks + 2 * len(self.FWD) * self.hop) * micro_batches

    def excess(self, micro_batches: int) -> str:
        """Return in words which limit a program with these costs exceeds, or an empty string."""
        total = self.total(micro_batches)
        if total > limits.TIME:
            return f"costs that add up to {total}; at most {limits.TIME}"
        return ""
