"""Programs: what every rank executes, one stream per global rank.

A stream reads as a tuple of instruction values (`Program.stream`). It is stored as columns, one row per instruction,
rank after rank: the passes over a program of a million instructions are then a few numpy calls each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.instructions import (
    STRICT,
    TASK_CLASS,
    AllReduce,
    Free,
    Fwd,
    Id,
    Ids,
    Instruction,
    Name,
    Op,
    Recv,
    Send,
    Value,
    instruction_text,
)
from chimerac.chimera_ir.partition import Partition

Ints = npt.NDArray[np.int64]

FORMAT = "chimera-program"
VERSION = 1
Machine = Literal["posted", "window", "rendezvous", "paired", "serial"]
LIMITS = ("activations", "receive_buffers", "weight_copies")  # what a header may bound, as compiler/verify/memory.py counts it
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Part = Annotated[int, Field(ge=1, le=limits.RANKS)]
Window = Annotated[int, Field(ge=0, le=limits.RANKS)]
Number = Annotated[int, Field(ge=-limits.MAGNITUDE, le=limits.MAGNITUDE)]
Parameters = Annotated[Mapping[Name, Number], Field(max_length=limits.NAMES)]
StageCosts = Annotated[tuple[Annotated[int, Field(ge=0, le=limits.COST)], ...], Field(min_length=1), FailFast()]

# Bits of the column `flags`.
RECOMPUTE = 1
OVERLAP = 2


@dataclass(frozen=True, slots=True)
class Pipe:
    """One directed copy of the model. placement: stage -> rank (of one replica); micro_batches: their ids, kept ascending."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    placement: Ids
    micro_batches: Annotated[tuple[Id, ...], FailFast()]

    def __post_init__(self) -> None:
        object.__setattr__(self, "micro_batches", tuple(sorted(self.micro_batches)))  # in a file they stand in any order


@dataclass(frozen=True, slots=True)
class Tied:
    """Parameters that several stages share, synchronized as one group. stages: kept ascending."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    stages: Ids

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(sorted(set(self.stages))))  # in a file they stand in any order


@dataclass(frozen=True, slots=True)
class Costs:
    """What a task of one micro-batch costs, stage by stage, and what a transfer between ranks costs: integers in one unit."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    FWD: StageCosts
    BWD: StageCosts
    BWD_INPUT: StageCosts
    BWD_WEIGHT: StageCosts
    hop: Annotated[int, Field(ge=0, le=limits.COST)] = 0

    def total(self, micro_batches: int) -> int:
        """Return a time that no run of a program takes: every task and transfer after another, every forward twice."""
        tasks = sum(2 * sum(self.FWD) + sum(kind) for kind in (self.BWD, self.BWD_INPUT, self.BWD_WEIGHT))
        return (tasks + 2 * len(self.FWD) * self.hop) * micro_batches

    @staticmethod
    def uniform(stages: int, F: int = 1, I: int = 1, W: int = 1, B: int | None = None, hop: int = 0) -> Costs:  # noqa: E741, N803
        """Return the same costs for every stage; B is I + W unless given."""
        b = I + W if B is None else B
        return Costs((F,) * stages, (b,) * stages, (I,) * stages, (W,) * stages, hop)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything a program says besides its streams: what they are verified against.

    width: data-parallel replicas; ranks: of one replica; window: sends of a channel that may be incomplete;
    partition: of the model that the program was compiled for; the digest leaves it out;
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
    costs: Costs
    partition: Partition | None = None
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
        yield "units of time if one task runs after another", self.costs.total(self.micro_batches), limits.TIME

    def _copies(self, stages: Iterable[int]) -> int:
        """Return on how many global ranks any of these stages is; where the text places it nowhere, the verifier says so."""
        return len({r for p in self.pipes for s in stages for r in p.placement[s : s + 1]}) * self.width

    def holders(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Return the global ranks that hold a copy of any of these stages, ascending."""
        wanted = tuple(stages)
        local = {pipe.placement[s] for pipe in self.pipes for s in wanted}
        return tuple(w * self.ranks + r for w in range(self.width) for r in sorted(local))


@dataclass(frozen=True, slots=True)
class Table:
    """Instructions as columns of equal length (int64).

    batch: an index into `Program.batches`, or for ALLREDUCE into `Program.collectives`. A column that an operation
    does not have is 0.
    """

    op: Ints
    value: Ints
    pipe: Ints
    stage: Ints
    batch: Ints
    peer: Ints
    flags: Ints

    @staticmethod
    def of(op: Ints, **columns: Ints) -> Table:
        """Return a table with these columns, the others 0."""
        zero = np.zeros(len(op), np.int64)
        return Table(op, *(columns.get(f.name, zero) for f in fields(Table)[1:]))

    def __len__(self) -> int:
        return len(self.op)

    def columns(self) -> list[Ints]:
        return [self.op, self.value, self.pipe, self.stage, self.batch, self.peer, self.flags]

    def take(self, rows: npt.NDArray[Any]) -> Table:
        """Return the rows selected by an index or a mask."""
        return Table(*(c[rows] for c in self.columns()))

    @staticmethod
    def concatenate(tables: Sequence[Table]) -> Table:
        return Table(*(np.concatenate(c) for c in zip(*(t.columns() for t in tables), strict=True)))


@dataclass(frozen=True)
class Program:
    """A header and its streams. offsets: stream g is rows offsets[g] to offsets[g + 1] of `table`.

    batches: the distinct tuples of micro-batch ids; collectives: the distinct ALLREDUCE instructions.
    """

    header: Header
    table: Table
    offsets: Ints
    batches: tuple[tuple[int, ...], ...]
    collectives: tuple[AllReduce, ...]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def world(self) -> int:
        """Return the number of streams: width x ranks."""
        return len(self.offsets) - 1

    @cached_property
    def rank_of(self) -> Ints:
        """Return the global rank of every row."""
        return np.repeat(np.arange(self.world), np.diff(self.offsets))

    @cached_property
    def pipe_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.header.pipes)

    def instructions(self, rows: Iterable[int]) -> list[Instruction]:
        """Return the instructions at these rows as values."""
        wanted = np.fromiter(rows, np.int64)
        columns = zip(*(c[wanted].tolist() for c in self.table.columns()), strict=True)
        return [self._instruction(*row) for row in columns]

    def _instruction(self, op: int, value: int, pipe: int, stage: int, batch: int, peer: int, flags: int) -> Instruction:
        match op:
            case Op.ALLREDUCE:
                return self.collectives[batch]
            case Op.SEND:
                return Send(Value(value).name, pipe, stage, self.batches[batch], peer)  # type: ignore[arg-type]
            case Op.RECV:
                return Recv(Value(value).name, pipe, stage, self.batches[batch], peer)  # type: ignore[arg-type]
            case Op.FREE:
                return Free(Value(value).name, pipe, stage, self.batches[batch])  # type: ignore[arg-type]
            case Op.FWD:
                overlap = bool(flags & OVERLAP)
                return Fwd(pipe, stage, self.batches[batch], recompute=bool(flags & RECOMPUTE), overlap=overlap)
            case _:
                return TASK_CLASS[Op(op)](pipe, stage, self.batches[batch], overlap=bool(flags & OVERLAP))

    def stream(self, rank: int) -> tuple[Instruction, ...]:
        """Return the instructions of one global rank, in order."""
        return tuple(self.instructions(range(self.offsets[rank], self.offsets[rank + 1])))

    def text(self, row: int) -> str:
        """Return the compact text of one instruction."""
        return instruction_text(self.instructions([row])[0], self.pipe_names)

    def place(self, row: int) -> str:
        """Return where a row stands, for messages: its rank, its number in the stream and its text."""
        rank = int(self.rank_of[row])
        return f"rank {rank}, instruction {row - int(self.offsets[rank])}: {self.text(row)}"

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON form, without the partition. Ranks compare it."""
        from chimerac.chimera_ir.jsonform import program_to_json

        return hashlib.sha256(program_to_json(self.with_header(partition=None)).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def with_header(self, **changes: Any) -> Program:
        """Return this program under a changed header."""
        return replace(self, header=replace(self.header, **changes))


def program_of(header: Header, streams: Iterable[Iterable[Instruction]]) -> Program:
    """Return the program of these streams, one per global rank.

    Ids are stored as they are; whether they exist is for the verifier to say.
    """
    from chimerac.chimera_ir.streams import Streams

    rows = Streams()
    for stream in streams:
        rows.begin()
        for i in stream:
            rows.add(i)
    return rows.program(header)
