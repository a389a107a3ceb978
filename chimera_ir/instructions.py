"""Instructions: one frozen class per operation, identified by the field `op`. docs/semantics.md defines them.

The fields of an operation are defined only here. The parsers and writers of JSON, text and tables use `FORMS`, which lists
them. docs/architecture.md explains how to add an instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir import limits


class Op(IntEnum):
    """The operation of an instruction, as the table of a program stores it."""

    FWD = 0
    BWD = 1
    BWD_INPUT = 2
    BWD_WEIGHT = 3
    RECOMPUTE = 4
    SEND = 5
    RECV = 6
    ALLREDUCE = 7
    FREE = 8


class Value(IntEnum):
    """What moves between stages: an activation, or the gradient of one."""

    act = 0
    grad = 1


ValueName = Literal["act", "grad"]

# Bounds of the fields: pydantic checks them when a file is read. Of the instructions, it checks only those that streams.py has
# not accepted by the same bounds. When a program is made in Python, only the names in its header are checked (`check_name`).
MAX_ID = 2**31 - 1
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
# FailFast: only the first wrong entry of a list is reported. Findings about all of them could be a hundred times as long as
# the file.
Ids = Annotated[tuple[Id, ...], Field(min_length=1, max_length=limits.RANKS), FailFast()]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}(\[[0-9]{1,9}\])?")
# The pattern in words.
NAME_FORM = "1 to 64 ASCII letters, digits or _, not starting with a digit; a number of at most 9 digits in brackets may follow"
GROUP = re.compile(rf"(stage [0-9]{{1,10}}|{NAME.pattern})")
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
GroupName = Annotated[str, Field(pattern=f"^{GROUP.pattern}$")]
STRICT: ConfigDict = {"extra": "forbid", "strict": True}


def check_name(of: str, name: str) -> None:
    """Raise ValueError for a name that the forms of a program cannot hold.

    Args:
        of: what it names, for the message.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"the name of {of} is {name!r}; expected {NAME_FORM}")


@dataclass(frozen=True, slots=True)
class Task:
    """A computation of one stage for one micro-batch or a group of them; the common fields of the five classes below.

    Attributes:
        overlap: a runtime may fuse this task with the next task of the stream (DualPipe's pairs).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    pipe: Id
    stage: Id
    micro_batches: Ids
    overlap: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Fwd(Task):
    """Forward.

    Attributes:
        recompute: keep only the stage's input; a `Recompute` or the backward runs the forward again.
    """

    letter: ClassVar[str] = "F"
    op: Literal["FWD"] = field(default="FWD", kw_only=True)
    recompute: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Bwd(Task):
    """Full backward: input gradient and weight gradient."""

    letter: ClassVar[str] = "B"
    op: Literal["BWD"] = field(default="BWD", kw_only=True)


@dataclass(frozen=True, slots=True)
class BwdInput(Task):
    """Input-gradient half of a split backward."""

    letter: ClassVar[str] = "I"
    op: Literal["BWD_INPUT"] = field(default="BWD_INPUT", kw_only=True)


@dataclass(frozen=True, slots=True)
class BwdWeight(Task):
    """Weight-gradient half of a split backward."""

    letter: ClassVar[str] = "W"
    op: Literal["BWD_WEIGHT"] = field(default="BWD_WEIGHT", kw_only=True)


@dataclass(frozen=True, slots=True)
class Recompute(Task):
    """The forward once more, after a `Fwd` with recompute. The backward that follows does not run the forward again."""

    letter: ClassVar[str] = "R"
    op: Literal["RECOMPUTE"] = field(default="RECOMPUTE", kw_only=True)


@dataclass(frozen=True, slots=True)
class Send:
    """Post a value to `peer`.

    Attributes:
        stage: the consumer's.
        peer: a global rank.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    arrow: ClassVar[str] = "->"
    value: ValueName
    pipe: Id
    stage: Id
    micro_batches: Ids
    peer: Id
    op: Literal["SEND"] = field(default="SEND", kw_only=True)


@dataclass(frozen=True, slots=True)
class Recv:
    """Post a receive of a value from `peer`.

    Attributes:
        stage: the consumer's.
        peer: a global rank.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    arrow: ClassVar[str] = "<-"
    value: ValueName
    pipe: Id
    stage: Id
    micro_batches: Ids
    peer: Id
    op: Literal["RECV"] = field(default="RECV", kw_only=True)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the gradient of a parameter group over the global ranks that hold it.

    Attributes:
        group: "stage S" or the name of a set of tied parameters.
        stage: S, or the lowest stage of the set.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    group: GroupName
    stage: Id
    ranks: Ids
    op: Literal["ALLREDUCE"] = field(default="ALLREDUCE", kw_only=True)


@dataclass(frozen=True, slots=True)
class Free:
    """Free a received value here, instead of after the task that would free it otherwise.

    Attributes:
        stage: the consumer's.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    value: ValueName
    pipe: Id
    stage: Id
    micro_batches: Ids
    op: Literal["FREE"] = field(default="FREE", kw_only=True)


Instruction = Fwd | Bwd | BwdInput | BwdWeight | Recompute | Send | Recv | AllReduce | Free
Collective = AllReduce  # the operations with a field `ranks`; equal ones are stored once in a program

# All fields besides `op`, in the order in which both text forms of a program write them.
FIELDS = ("value", "group", "pipe", "stage", "micro_batches", "peer", "ranks", "recompute", "overlap")


@dataclass(frozen=True, slots=True)
class Form:
    """An operation, its class, and the names of its fields in the order of `FIELDS`.

    Attributes:
        letter: of a task, in schedules and drawings; empty for other operations.
        arrow: what precedes the peer of a transfer in the text form; empty for other operations.
    """

    op: Op
    cls: type[Any]
    fields: tuple[str, ...]
    letter: str
    arrow: str


def _form(op: Op) -> Form:
    """Return the form of an operation, from the class whose field `op` has its name."""
    defaults = {cls: {f.name: f.default for f in fields_of(cls)} for cls in get_args(Instruction)}
    cls = next(cls for cls in defaults if defaults[cls]["op"] == op.name)
    names = set(defaults[cls]) - {"op"}
    assert names <= set(FIELDS), f"{op.name} has a field that FIELDS does not name"
    return Form(op, cls, tuple(name for name in FIELDS if name in names), getattr(cls, "letter", ""), getattr(cls, "arrow", ""))


FORMS: tuple[Form, ...] = tuple(_form(op) for op in Op)  # FORMS[op] is the form of op


def stage_group(stage: int) -> str:
    """Return the name of the group of the parameters of one stage, without those of tied sets."""
    return f"stage {stage}"
