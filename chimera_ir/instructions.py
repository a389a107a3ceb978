"""Instructions: one frozen class each, joined by the field `op`. Their meaning is docs/semantics.md.

Compact text, one instruction each:

    FWD down[0] s0 m0               BWD_INPUT main s2 m5          SEND act down[0] s1 m0 -> 1
    FWD main s0 m0,1 recompute      BWD_WEIGHT main s2 m5         RECV grad down[0] s0 m0 <- 1
    BWD down[0] s3 m0 overlap       ALLREDUCE s3 over 0,3         ALLREDUCE embedding s0 over 0,3
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir import limits


class Op(IntEnum):
    """The operation of an instruction, as the table of a program stores it."""

    FWD = 0
    BWD = 1
    BWD_INPUT = 2
    BWD_WEIGHT = 3
    SEND = 4
    RECV = 5
    ALLREDUCE = 6
    FREE = 7


class Value(IntEnum):
    """What moves between stages: an activation, or the gradient of one."""

    act = 0
    grad = 1


# What a file from outside may say: pydantic checks it when reading (jsonform.py); internal values are not checked.
MAX_ID = 2**31 - 1
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
# The first wrong entry of a list is told: a finding for each would be a hundred times as large as the file.
Ids = Annotated[tuple[Id, ...], Field(min_length=1, max_length=limits.RANKS), FailFast()]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}(\[[0-9]{1,9}\])?$")]
GroupName = Annotated[str, Field(pattern=r"^(stage [0-9]{1,10}|[A-Za-z_][A-Za-z0-9_]{0,63})$")]
STRICT: ConfigDict = {"extra": "forbid", "strict": True}

COMPUTE = (Op.FWD, Op.BWD, Op.BWD_INPUT, Op.BWD_WEIGHT)


@dataclass(frozen=True, slots=True)
class Task:
    """A computation of one stage for one micro-batch or a group of them; the common shape of the four classes below.

    overlap: a runtime may fuse this task with the next task of the stream (DualPipe's pairs).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    pipe: Id
    stage: Id
    micro_batches: Ids
    overlap: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Fwd(Task):
    """Forward. recompute: keep only the stage's input, run the forward again before the backward."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    op: Literal["FWD"] = field(default="FWD", kw_only=True)
    recompute: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Bwd(Task):
    """Full backward: input gradient and weight gradient."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    op: Literal["BWD"] = field(default="BWD", kw_only=True)


@dataclass(frozen=True, slots=True)
class BwdInput(Task):
    """Input-gradient half of a split backward."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    op: Literal["BWD_INPUT"] = field(default="BWD_INPUT", kw_only=True)


@dataclass(frozen=True, slots=True)
class BwdWeight(Task):
    """Weight-gradient half of a split backward."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    op: Literal["BWD_WEIGHT"] = field(default="BWD_WEIGHT", kw_only=True)


@dataclass(frozen=True, slots=True)
class Send:
    """Post a value to `peer`. stage: the consumer's; peer: a global rank."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    value: Literal["act", "grad"]
    pipe: Id
    stage: Id
    micro_batches: Ids
    peer: Id
    op: Literal["SEND"] = field(default="SEND", kw_only=True)


@dataclass(frozen=True, slots=True)
class Recv:
    """Post a receive of a value from `peer`. stage: the consumer's; peer: a global rank."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    value: Literal["act", "grad"]
    pipe: Id
    stage: Id
    micro_batches: Ids
    peer: Id
    op: Literal["RECV"] = field(default="RECV", kw_only=True)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the gradient of a parameter group over the global ranks that hold it.

    group: "stage S" or the name of a set of tied parameters; stage: S, or the lowest stage of the set.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    group: GroupName
    stage: Id
    ranks: Ids
    op: Literal["ALLREDUCE"] = field(default="ALLREDUCE", kw_only=True)


@dataclass(frozen=True, slots=True)
class Free:
    """Give the buffer of a received value back here, instead of right after its last reader. stage: the consumer's."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    value: Literal["act", "grad"]
    pipe: Id
    stage: Id
    micro_batches: Ids
    op: Literal["FREE"] = field(default="FREE", kw_only=True)


Instruction = Fwd | Bwd | BwdInput | BwdWeight | Send | Recv | AllReduce | Free
TASK_CLASS: dict[Op, type[Fwd] | type[Bwd] | type[BwdInput] | type[BwdWeight]] = {
    Op.FWD: Fwd,
    Op.BWD: Bwd,
    Op.BWD_INPUT: BwdInput,
    Op.BWD_WEIGHT: BwdWeight,
}


def stage_group(stage: int) -> str:
    """Return the name of the parameter group that is one stage."""
    return f"stage {stage}"


def instruction_text(i: Instruction, pipes: tuple[str, ...]) -> str:
    """Return the compact text of one instruction. pipes: the names of the program's pipes, by id."""
    match i:
        case AllReduce():
            name = "" if i.group == stage_group(i.stage) else f"{i.group} "
            return f"ALLREDUCE {name}s{i.stage} over {_ids(i.ranks)}"
        case Send() | Recv() | Free():
            arrow = {"SEND": " -> ", "RECV": " <- "}.get(i.op, "")
            peer = "" if isinstance(i, Free) else str(i.peer)
            return f"{i.op} {i.value} {pipes[i.pipe]} s{i.stage} m{_ids(i.micro_batches)}{arrow}{peer}"
        case Fwd() | Bwd() | BwdInput() | BwdWeight():
            recompute = " recompute" if isinstance(i, Fwd) and i.recompute else ""
            overlap = " overlap" if i.overlap else ""
            return f"{i.op} {pipes[i.pipe]} s{i.stage} m{_ids(i.micro_batches)}{recompute}{overlap}"


def _ids(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
