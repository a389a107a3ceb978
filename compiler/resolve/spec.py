"""A resolved schedule: every number known, every formula bound to its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chimera_ir.diagnostics import Span
from chimera_ir.instructions import Op
from chimera_ir.program import Header
from compiler.resolve.expressions import Env
from compiler.syntax.nodes import Expr, Let, SyncPolicy

KINDS = {"F": Op.FWD, "B": Op.BWD, "I": Op.BWD_INPUT, "W": Op.BWD_WEIGHT}
LETTERS = {op: letter for letter, op in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Formula:
    """When the tasks of one kind in one pipe run. env: every name but those of stage and micro-batch."""

    kind: Op
    pipe: int
    stage: str
    micro_batch: str
    condition: Expr | None
    tick: Expr
    lets: tuple[Let, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class Spec:
    """header: all that the program will say besides its streams; order: formulas; spans: where a setting was made."""

    header: Header
    order: tuple[Formula, ...]
    sync: SyncPolicy
    spans: Mapping[str, Span]
