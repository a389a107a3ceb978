"""The results of the passes of a compilation, for the help when a later pass raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler.given import StageChoice
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.syntax.nodes import Schedule


@dataclass(slots=True)
class PassResults:
    """The input of a compilation, and the results of its passes.

    Attributes:
        parameters: those that are given, by name.
        width: the number of replicas.
        machine: the one that the program is for.
        arrange: whether transfers and collectives are arranged for it.
        budget: of the compilation.
        recompute: the stages to recompute, instead of those that the schedule names; None: those of the schedule.
        schedule, spec, ordered, program: what `parse`, `resolve`, `order_tasks` and `lower` returned; None for a pass that has
            not returned. `spec` also has the sets of tied parameters that the caller gave.
    """

    source: Source
    parameters: Mapping[str, int]
    width: int
    machine: Machine
    arrange: bool
    budget: Budget
    recompute: StageChoice | None = None
    schedule: Schedule | None = None
    spec: Spec | None = None
    ordered: Ordered | None = None
    program: Program | None = None
