"""The header of a program: its sizes, placements and limits, against which its streams are verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import STRICT, Id, Ids, Name, check_name
from chimerac.chimera_ir.machines import Machine

FORMAT = "chimera-program"
VERSION = 1
# The names in `Header.limits`; compiler/verify/memory.py counts what they limit.
LIMITS = ("activations", "receive_buffers", "weight_copies")
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Part = Annotated[int, Field(ge=1, le=limits.RANKS)]  # numerator or denominator of `micro_batch_size`
Window = Annotated[int, Field(ge=0, le=limits.RANKS)]
Number = Annotated[int, Field(ge=-limits.MAGNITUDE, le=limits.MAGNITUDE)]
Parameters = Annotated[Mapping[Name, Number], Field(max_length=limits.NAMES)]


@dataclass(frozen=True, slots=True)
class Pipe:
    """One directed copy of the model.

    Attributes:
        placement: stage -> rank (of one replica).
        micro_batches: ids, sorted on creation.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    placement: Ids
    micro_batches: Annotated[tuple[Id, ...], FailFast()]

    def __post_init__(self) -> None:
        check_name("a pipe", self.name)
        object.__setattr__(self, "micro_batches", tuple(sorted(self.micro_batches)))  # a file may list them in any order


@dataclass(frozen=True, slots=True)
class Tied:
    """Parameters that several stages share, synchronized as one group.

    Attributes:
        stages: sorted on creation, each once.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    stages: Ids

    def __post_init__(self) -> None:
        check_name("a set of tied parameters", self.name)
        object.__setattr__(self, "stages", tuple(sorted(set(self.stages))))  # a file may list them in any order


@dataclass(frozen=True, slots=True)
class Header:
    """The sizes, placements and limits of a program, against which its streams are verified.

    Attributes:
        width: the number of data-parallel replicas.
        ranks, micro_batches: of one replica.
        window: sends of a channel that may be incomplete.
        machine: the one for which the program is verified to terminate (docs/semantics.md).
        micro_batch_size: numerator and denominator of the size of a micro-batch, as a fraction of the size that a run is given.
        limits: bounds per rank, by name.

    A header, a pipe and a set of tied parameters raise ValueError for a name that the forms of a program cannot hold.
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

    def __post_init__(self) -> None:
        check_name("a schedule", self.schedule)
        for name in self.parameters:
            check_name("a parameter", name)
        for name in self.limits:
            check_name("a limit", name)

    def samples(self, micro_batch: int) -> int:
        """Return how many samples one micro-batch of the program has.

        Args:
            micro_batch: the --micro-batch that the run is given.

        Raises ChimeraError E804 if the result is not an integer.
        """
        part, whole = self.micro_batch_size
        if micro_batch * part % whole:
            raise refuse(
                "E804",
                f"{part}/{whole} of {count_text(micro_batch, 'sample')} is not a whole number of samples",
                notes=(f"{self.schedule} runs micro-batches of size {part}/{whole}",),
                help=f"give --micro-batch a multiple of {whole}",
            )
        return micro_batch * part // whole

    def excess(self) -> str:
        """Return in words which limit of limits.py a program under this header exceeds first, or an empty string."""
        for what, count, most in self._sizes():
            if count > most:
                return f"{count} {what}; at most {most}"
        return ""

    def _sizes(self) -> Iterator[tuple[str, int, int]]:
        """Yield each limited size that follows from the header: what it counts, how many there are, and the limit."""
        # The order matters: each size is computed only if those before it are within their limits.
        stages_and_tied = self.stages + sum(len(tied.stages) for tied in self.tied)
        yield "ranks over all replicas", self.width * self.ranks, limits.RANKS
        yield "stages", self.stages, limits.RANKS
        yield "pipes", len(self.pipes), limits.PIPES
        yield "pipes x (stages + stages of tied sets) x replicas", len(self.pipes) * stages_and_tied * self.width, limits.CELLS
        yield "tasks, two for every stage and micro-batch", 2 * self.stages * self.micro_batches * self.width, limits.TASKS
        groups = [*((s,) for s in range(self.stages)), *(tied.stages for tied in self.tied)]
        # Each of several ranks that hold a group has an all-reduce that names all of them. A group with one holder counts 1.
        yield "ranks named by all gradient all-reduces", sum(self._rank_count(g) ** 2 for g in groups), limits.MEMBERS

    def _rank_count(self, stages: Iterable[int]) -> int:
        """Return the number of global ranks that hold any of these stages.

        A pipe whose placement lacks a stage adds no rank for this stage; the verifier reports it.
        """
        return len({r for p in self.pipes for s in stages for r in p.placement[s : s + 1]}) * self.width

    def holders(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Return the global ranks that hold a copy of any of these stages, ascending."""
        wanted = tuple(stages)
        local = {pipe.placement[s] for pipe in self.pipes for s in wanted}
        return tuple(w * self.ranks + r for w in range(self.width) for r in sorted(local))


def stages_text(stages: Iterable[int]) -> str:
    """Return ascending numbers of stages as --recompute takes them: '0,2..5'; 'none' if there is none."""
    runs: list[list[int]] = []
    for s in stages:
        if runs and s == runs[-1][-1] + 1:
            runs[-1].append(s)
        else:
            runs.append([s])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs) or "none"
