"""The header of a program: its sizes, placements and promises, against which its streams are verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.instructions import STRICT, Id, Ids, Name
from chimerac.chimera_ir.machines import Machine

FORMAT = "chimera-program"
VERSION = 1
LIMITS = ("activations", "receive_buffers", "weight_copies")  # what a header may bound, as compiler/verify/memory.py counts it
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Part = Annotated[int, Field(ge=1, le=limits.RANKS)]
Window = Annotated[int, Field(ge=0, le=limits.RANKS)]
Number = Annotated[int, Field(ge=-limits.MAGNITUDE, le=limits.MAGNITUDE)]
Parameters = Annotated[Mapping[Name, Number], Field(max_length=limits.NAMES)]


@dataclass(frozen=True, slots=True)
class Pipe:
    """One directed copy of the model. placement: stage -> rank (of one replica); micro_batches: their ids, kept ascending."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    placement: Ids
    micro_batches: Annotated[tuple[Id, ...], FailFast()]

    def __post_init__(self) -> None:
        object.__setattr__(self, "micro_batches", tuple(sorted(self.micro_batches)))  # a file may list them in any order


@dataclass(frozen=True, slots=True)
class Tied:
    """Parameters that several stages share, synchronized as one group. stages: kept ascending."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    stages: Ids

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(sorted(set(self.stages))))  # a file may list them in any order


@dataclass(frozen=True, slots=True)
class Header:
    """Everything a program says besides its streams: what they are verified against.

    width: data-parallel replicas; ranks: of one replica; window: sends of a channel that may be incomplete;
    machine: the machine (docs/semantics.md) on which the program promises to end; micro_batch_size: numerator and
    denominator of a micro-batch against the one that N counts; limits: rank-wise bounds by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    schedule: Name
    parameters: Parameters
    ranks: Count
    stages: Count
    micro_batches: Count
    pipes: Annotated[tuple[Pipe, ...], Field(min_length=1), FailFast()]
    width: Count = 1
    window: Window = 2
    machine: Machine = "window"
    kind: Literal["training", "evaluation"] = "training"
    micro_batch_size: tuple[Part, Part] = (1, 1)
    tied: Annotated[tuple[Tied, ...], FailFast()] = ()
    limits: Mapping[Name, Id] = field(default_factory=dict)

    def excess(self) -> str:
        """Return which limit a program under this header exceeds, in words; nothing if there is none."""
        for what, count, most in self._sizes():
            if count > most:
                return f"{count} {what}; at most {most}"
        return ""

    def _sizes(self) -> Iterator[tuple[str, int, int]]:
        # In this order: each is computed only where those before it are within bounds.
        held = self.stages + sum(len(tied.stages) for tied in self.tied)
        yield "ranks over all replicas", self.width * self.ranks, limits.RANKS
        yield "stages", self.stages, limits.RANKS
        yield "pipes", len(self.pipes), limits.PIPES
        yield "pipes x stages, tied ones counted again, x replicas", len(self.pipes) * held * self.width, limits.CELLS
        yield "tasks, two for every stage and micro-batch", 2 * self.stages * self.micro_batches * self.width, limits.TASKS
        groups = [*((s,) for s in range(self.stages)), *(tied.stages for tied in self.tied)]
        yield "ranks named by the members of all gradient sums", sum(self._copies(g) ** 2 for g in groups), limits.MEMBERS

    def _copies(self, stages: Iterable[int]) -> int:
        """Return on how many global ranks any of these stages is; where the text places it nowhere, the verifier says so."""
        return len({r for p in self.pipes for s in stages for r in p.placement[s : s + 1]}) * self.width

    def holders(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Return the global ranks that hold a copy of any of these stages, ascending."""
        wanted = tuple(stages)
        local = {pipe.placement[s] for pipe in self.pipes for s in wanted}
        return tuple(w * self.ranks + r for w in range(self.width) for r in sorted(local))
