"""What a rank is doing: its instruction, and what it waits for. The other ranks read this once a wait has failed.

If torchrun gives the rank an error file, the position is in a file next to it that is mapped into memory. So the ranks and
the launcher of the same host can read the position of a process that has been killed. In a user's process group no file has
the position.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from chimerac.chimera_ir.program import Program

# What a wait is for. A transfer or an all-reduce belongs to an instruction, but not where connections are used for the first
# time, or links are measured. `all` is a collective of all ranks outside the streams. `other` is the rendezvous, the creation
# of connections or of shared memory, or a broadcast.
Kind = Literal["receive", "send", "all-reduce", "all", "other"]

# The columns of the position, each an int64.
RUN, NUMBER, WAITS_FOR, PROGRAM, PID = range(5)
BYTES = 5 * 8
NONE = -1  # in a column: no instruction, or a program or a process that is not known


class Awaited(NamedTuple):
    """What a wait is for.

    Attributes:
        what: as text.
        ranks: those that have to post their side of it; the waiting rank may be one.
    """

    what: str
    kind: Kind
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a rank in its program.

    Attributes:
        run: how many times it has begun to run a stream.
        number: of the instruction in the stream; NONE before the first run, and the length of the stream after the last
            instruction.
        waits_for: the number of the rank's own instruction whose transfer or all-reduce it waits for, or NONE.
        program: the key of the program.
        pid: of the process; NONE if unknown.
    """

    run: int = 0
    number: int = NONE
    waits_for: int = NONE
    program: int = NONE
    pid: int = NONE


@dataclass(frozen=True, slots=True)
class Status:
    """What one rank is doing.

    Attributes:
        collectives: how many collectives of all ranks (kind `all`) it has begun.
        awaited: what it waits for; None while it computes.
        posted: the number of its instruction that posted the awaited transfer or all-reduce, NONE if no run had begun; for the
            kind `all`, the number of the collective, counted as in `collectives`; for the kind `other` it means nothing.
        waited_s: how long it has waited, in seconds.
    """

    position: Position
    collectives: int = 0
    awaited: Awaited | None = None
    posted: int = NONE
    waited_s: float = 0.0

    def to_json(self) -> str:
        """Return this status as text for the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Status:
        """Return the status that a rank wrote to the store."""
        fields = json.loads(text)
        awaited = fields["awaited"]
        if awaited is not None:
            what, kind, ranks = awaited
            fields["awaited"] = Awaited(what, kind, tuple(ranks))
        return Status(**fields | {"position": Position(**fields["position"])})


class Progress:
    """The progress of this process.

    Args:
        path: the file of the position; None if no other process reads it.

    Attributes:
        position: the columns of the position, for writing.
        programs: those that were added, by key.
        collectives: as in `Status`.
        waiting: what it waits for, `posted` as in `Status`, and since when (time.monotonic); None while it computes.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.position = memoryview(_mapped(path)).cast("q")
        self.position[RUN] = 0
        self.position[NUMBER] = self.position[WAITS_FOR] = self.position[PROGRAM] = NONE
        self.position[PID] = os.getpid()
        self.programs: dict[int, Program] = {}
        self.collectives = 0
        self.waiting: tuple[Awaited, int, float] | None = None

    def add(self, program: Program) -> int:
        """Add a program, so that positions in it can be written with the texts of instructions. Return its key."""
        key = int(program.digest[:15], 16)  # 60 bits, which fit in a column of the position
        self.programs[key] = program
        return key

    def begin(self, key: int) -> memoryview:
        """Record that a run of a program begins. Return the position, to which the caller writes the instruction's number."""
        position = self.position
        position[PROGRAM] = key
        position[NUMBER] = 0
        position[RUN] += 1
        return position

    def begin_wait(self, awaited: Awaited, posted: int) -> None:
        """Record that this rank waits from now on.

        Args:
            posted: as in Status.
        """
        self.waiting = awaited, posted, time.monotonic()
        if awaited.kind in ("receive", "send", "all-reduce"):
            self.position[WAITS_FOR] = posted

    def end_wait(self) -> None:
        """Record that the wait is over."""
        self.waiting = None
        self.position[WAITS_FOR] = NONE

    def status(self) -> Status:
        """Return what this rank is doing now."""
        waiting, status = self.waiting, Status(Position(*self.position), self.collectives)
        if waiting is None:
            return status
        return replace(status, awaited=waiting[0], posted=waiting[1], waited_s=time.monotonic() - waiting[2])

    def place(self, rank: int, position: Position) -> str:
        """Return the position of a rank as text, such as `instruction 3: FWD down s1 m0`.

        If the rank waits for an operation that another one of its instructions posted, the text names that instruction too.
        """
        place = self.instruction(rank, position)
        if position.waits_for in (NONE, position.number):
            return place
        return f"{place}, in the wait for {self.instruction(rank, replace(position, number=position.waits_for))}"

    def instruction(self, rank: int, position: Position) -> str:
        """Return the instruction at a position as text; only its number if the program of the rank is not known.

        Before the first run it is `the start-up`, after the last instruction `the epilogue`.
        """
        program = self.programs.get(position.program)
        if program is None or rank >= program.world or position.number == NONE:
            return place_without_text(position)
        first, end = (int(n) for n in program.offsets[rank : rank + 2])
        if position.number >= end - first:
            return "the epilogue"
        return f"{place_without_text(position)}: {program.text(first + position.number)}"


def place_without_text(position: Position) -> str:
    """Return a position as text, without the text of its instruction. So the program is not needed."""
    return "the start-up" if position.number == NONE else f"instruction {position.number}"


def progress_file(error_file: str | None) -> Path | None:
    """Return the file of the position of the rank with this error file. None if torchrun gave the rank none."""
    return Path(error_file).with_name("progress") if error_file else None


def own_progress_file() -> Path | None:
    """Return the file of the position of this process. None if torchrun gave this rank no error file."""
    return progress_file(os.environ.get("TORCHELASTIC_ERROR_FILE"))


def position_of(local_rank: int) -> Position | None:
    """Return the position of another rank of this host, also if its process has ended. None if it is not known."""
    own = own_progress_file()  # torchrun gives each rank a folder, named by its local rank
    return None if own is None else read_position(own.parent.parent / str(local_rank) / own.name)


def read_position(path: Path) -> Position | None:
    """Return the position in a file; None if the file cannot be read or, as on a full disk, does not have its full length."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return Position(*memoryview(content).cast("q")) if len(content) == BYTES else None


def _mapped(path: Path | None) -> mmap.mmap:
    if path is not None:
        try:
            with path.open("w+b") as file:
                file.write(bytes(BYTES))  # takes the space: on a full disk, writing to the memory later would kill the process
                file.flush()
                return mmap.mmap(file.fileno(), BYTES)
        except OSError:
            pass  # then other processes cannot read the position; the run itself does not need the file
    return mmap.mmap(-1, BYTES)
