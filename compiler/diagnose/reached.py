"""How far a compilation got: what is known of it when a pass raises."""

from __future__ import annotations

from dataclasses import dataclass

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.syntax.nodes import Schedule


@dataclass(slots=True)
class Reached:
    """What is compiled, and what every pass has made of it: None where that pass has not ended."""

    source: Source
    width: int
    machine: Machine
    arrange: bool
    budget: Budget
    schedule: Schedule | None = None
    spec: Spec | None = None
    ordered: Ordered | None = None
    program: Program | None = None
