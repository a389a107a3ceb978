"""What a search is given besides the placement: costs, links, activations and limits, from options or from a file.

A file is one JSON object, for instance

    {"format": "chimera-search-costs", "version": 1,
     "F": [1, 1.5], "B": [2, 3], "links": [[0, 0.1], [0.3, 0]], "activations": [800, 600], "limits": [3200, 2400]}

Every field but the first two may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import STRICT, Op
from chimerac.chimera_ir.json_checks import Kind
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.reading import VersionOne, read_json
from chimerac.compiler.analyze.durations import Durations

FORMAT = "chimera-search-costs"
Number = Annotated[Decimal, Field(ge=0, le=limits.COST, max_digits=24, decimal_places=12)]
Row = Annotated[tuple[Number, ...], Field(min_length=1, max_length=limits.RANKS)]
Amounts = Annotated[tuple[Annotated[int, Field(ge=0, le=2**50)], ...], Field(min_length=1, max_length=limits.RANKS)]

_KIND = Kind("file of costs for a search", FORMAT, 1, ("E002", "E002", "E002"), "docs/search.md shows one")


@dataclass(frozen=True, slots=True)
class Given:
    """What a search is given besides the placement. Times are exact fractions in the unit of the costs.

    Attributes:
        costs: of F, B, I and W, for each stage.
        uniform: costs that are the same on all stages, which replace those of `costs`.
        hop: the time of every message.
        links: the time of a message from one rank to another, [from][to], which replaces `hop`; if both are None, the
            schedule's hop.
        activations: what each stage holds for a micro-batch; None: 1.
        limits: the most that each rank may hold, in the same unit, or one number for all ranks; None, which is refused if
            activations are given: on every rank as much as the schedule holds on the rank where it holds most.
        split: whether backwards are split; None: as in the schedule.

    A cost that is neither in `costs` nor in `uniform` is the schedule's, unless it follows from the given ones
    (from_program.py, `_costs`).
    """

    costs: Mapping[str, Sequence[Fraction]] = field(default_factory=dict)
    uniform: Mapping[str, Fraction] = field(default_factory=dict)
    hop: Fraction | None = None
    links: Sequence[Sequence[Fraction]] | None = None
    activations: Sequence[int] | None = None
    limits: int | Sequence[int] | None = None
    split: bool | None = None


@dataclass(frozen=True, slots=True)
class _File:
    """The fields of a file of costs."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    format: Literal["chimera-search-costs"]
    version: VersionOne
    F: Row | None = None
    B: Row | None = None
    I: Row | None = None  # noqa: E741
    W: Row | None = None
    hop: Number | None = None
    links: Annotated[tuple[Row, ...], Field(max_length=4096)] | None = None
    activations: Amounts | None = None
    limits: Amounts | None = None


@cache
def _adapter() -> TypeAdapter[_File]:
    return TypeAdapter(_File)


def given_from_json(text: str, name: str) -> Given:
    """Return what a file of costs gives.

    Args:
        name: of the file, for messages.

    Raises ChimeraError E002 if it is not valid.
    """
    file = read_json(_adapter(), _KIND, text, name)
    if file.hop is not None and file.links is not None:
        raise refuse("E002", f"{name}: hop and links both give the time of a message", help="leave one of them out")
    costs = {k: tuple(map(Fraction, v)) for k in "FBIW" if (v := getattr(file, k)) is not None}
    return Given(
        costs,
        hop=None if file.hop is None else Fraction(file.hop),
        links=None if file.links is None else [list(map(Fraction, row)) for row in file.links],
        activations=file.activations,
        limits=file.limits,
    )


def given_from_durations(program: Program, durations: Durations) -> Given:
    """Return the costs and links that follow from the durations of a program, in `durations.unit`.

    A link takes the time of its longest message: latency plus transfer. A link without messages takes the time of the slowest
    link.
    """
    c, t, scale = durations.costs, program.table, durations.scale
    costs = {
        name: [Fraction(x, scale) for x in column]
        for name, column in (("F", c.FWD), ("B", c.BWD), ("I", c.BWD_INPUT), ("W", c.BWD_WEIGHT))
    }
    rows = np.flatnonzero(t.op == Op.SEND)
    times = durations.latency[rows] + durations.occupied[rows]
    longest = np.full((program.header.ranks, program.header.ranks), -1, np.int64)
    np.maximum.at(longest, (program.rank_of[rows], t.peer[rows]), times)
    longest[longest < 0] = times.max(initial=0)
    return Given(costs, links=[[Fraction(x, scale) for x in row] for row in longest.tolist()])
