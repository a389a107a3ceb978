"""Events of Chrome's trace format, which Perfetto opens: tracks, slices and arrows of ranks, and the messages between them.

Each rank is a process of a trace, with a track for its tasks and one or more for its communication. If a trace has a simulated
and a measured iteration, each rank is two processes. Times are in microseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Free, Fwd, Instruction, Recv, Send, Task
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textline import instruction_text

Event = dict[str, Any]
TASKS, COMMUNICATION = 0, 1  # thread ids of the tracks of a rank; further tracks of communication have 2, 3, ...


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        sender, receiver: ranks.
        send, receive: rows of its SEND and its RECV.
        reader: the row of the first task that reads one of its values; that of the RECV if no task does.
        text: that of its RECV without the operation, such as "act down[0] s1 m0 <- 0".
    """

    sender: int
    receiver: int
    send: int
    receive: int
    reader: int
    text: str


def messages(program: Program) -> list[Message]:
    """Return the messages of a verified program, sender after sender, those of a sender in the order of its SENDs."""
    sent: list[tuple[int, int, int]] = []  # ranks of sender and receiver, and the row of the SEND
    received: dict[tuple[int, int], deque[tuple[int, str]]] = defaultdict(deque)  # RECVs: row and text, by sender and receiver
    readers: dict[int, int] = {}  # row of the first reader, by row of the RECV
    for rank in range(program.world):
        unread: dict[tuple[object, ...], int] = {}  # row of the RECV, by value as in `_values_read`
        for row, i in enumerate(program.stream(rank), int(program.offsets[rank])):
            for key in _values_read(i):
                if (receive := unread.pop(key, None)) is not None:
                    readers.setdefault(receive, row)
            if isinstance(i, Send):
                sent.append((rank, i.peer, row))
            elif isinstance(i, Recv):
                text = instruction_text(i, program.pipe_names).removeprefix("RECV ")
                received[i.peer, rank].append((row, text))
                unread.update({(i.value, i.pipe, i.stage, m): row for m in i.micro_batches})
    found = []
    for sender, receiver, send in sent:
        receive, text = received[sender, receiver].popleft()
        found.append(Message(sender, receiver, send, receive, readers.get(receive, receive), text))
    return found


def _values_read(i: Instruction) -> list[tuple[object, ...]]:
    """Return (act or grad, pipe, stage, micro-batch) of the values that an instruction waits for if another rank sends them."""
    match i:
        case Fwd():
            name = "act"
        case Bwd() | BwdInput():
            name = "grad"
        case _:
            return []
    return [(name, i.pipe, i.stage, m) for m in i.micro_batches]


def category(i: Instruction) -> str:
    """Return the category of an instruction's slice. A FREE counts as a transfer."""
    match i:
        case Task():
            return "task"
        case AllReduce():
            return "all-reduce"
        case Send() | Recv() | Free():
            return "transfer"
        case _:
            assert_never(i)


def rank_names(process: int, name: str, lanes: int = 1) -> Iterator[Event]:
    """Yield the name of a rank as a process, its place among the others, and the names of its tracks.

    Args:
        lanes: the number of tracks of communication, at least 1. With several, slices that overlap in time can be on different
            tracks.
    """
    own: Event = {"ph": "M", "pid": process, "tid": TASKS}
    yield own | {"name": "process_name", "args": {"name": name}}
    yield own | {"name": "process_sort_index", "args": {"sort_index": process}}
    tracks = ["tasks", "communication", *(f"communication {n}" for n in range(2, 1 + lanes))]
    for track, track_name in enumerate(tracks):
        yield own | {"tid": track, "name": "thread_name", "args": {"name": track_name}}


def slice_event(
    process: int, track: int, begin: float, duration: float, name: str, category: str, args: Mapping[str, object]
) -> Event:
    """Return a slice of a track."""
    place = {"pid": process, "tid": track, "ts": begin}
    return place | {"ph": "X", "name": name, "cat": category, "dur": duration, "args": args}


def arrow_events(
    number: int, name: str, begin: tuple[int, int, float], end: tuple[int, int, float], category: str = "message"
) -> Iterator[Event]:
    """Yield the two ends of an arrow.

    Args:
        begin, end: process, track and time, each within a slice.
        number: an id of its own.
    """
    arrow = {"name": name, "cat": category, "id": number}
    (pid, tid, ts), (other_pid, other_tid, other_ts) = begin, end
    yield {"pid": pid, "tid": tid, "ts": ts} | arrow | {"ph": "s"}
    # bp: the arrow ends at the slice around this time, not at the next one.
    yield {"pid": other_pid, "tid": other_tid, "ts": other_ts} | arrow | {"ph": "f", "bp": "e"}


def trace_document(program: Program, events: Iterable[Event], **more: object) -> str:
    """Return a trace as JSON with an event on each line.

    Args:
        more: further entries of `otherData`.
    """
    header = program.header
    about = {"schedule": header.schedule, "parameters": dict(header.parameters), "digest": program.digest, **more}
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n{lines}\n]}}\n'
