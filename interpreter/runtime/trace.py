"""Traces: the times of one iteration of all ranks as Chrome trace events, a JSON format that Perfetto opens.

Each rank is a process of the trace. It has a track of slices: its instructions, and its waits before them. An arrow leads from
each SEND to the first instruction that reads a value of the message. A counter shows how many messages for a rank have been
sent and not yet read. Times are in microseconds after the start of the first instruction of all ranks.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Fwd, Instruction, Recv, Send, Task
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textline import instruction_text
from chimerac.interpreter.runtime.gathered import beginning, write_gathered
from chimerac.interpreter.runtime.store import Key
from chimerac.interpreter.runtime.times import Times
from chimerac.interpreter.transport import Transport

Event = dict[str, Any]
TRACK = 0  # the thread id of the one track of each rank
# An arrow begins and ends this long after the beginning of a slice, or in the middle of the slice if that is earlier.
ARROW_NS = 1000


def write_trace(program: Program, times: Times, transport: Transport, path: str | os.PathLike[str]) -> None:
    """Write the trace of an iteration; called by all ranks together. times: of this rank, by its own clock.

    Rank 0 writes the file: completely, or not at all. Raises ChimeraError E811 on all ranks if it cannot be written.
    """
    write_gathered("trace", partial(trace_text, program), times, transport, path)


def trace_text(program: Program, times: Sequence[Times]) -> str:
    """Return the trace as JSON with an event on each line. times: of each rank, by the clock of rank 0."""
    header = program.header
    metadata = {"schedule": header.schedule, "parameters": dict(header.parameters), "digest": program.digest}
    events = ",\n".join(json.dumps(event) for event in trace_events(program, times))
    return f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(metadata)}, "traceEvents": [\n{events}\n]}}\n'


def trace_events(program: Program, times: Sequence[Times]) -> Iterator[Event]:
    """Yield the events of a trace. times: of each rank, by the clock of rank 0."""
    streams = [_Stream(program, rank) for rank in range(program.world)]
    origin = beginning(times)
    for stream, own in zip(streams, times, strict=True):
        yield from _names(stream.rank)
        yield from _slices(stream, own, origin)
    yield from _arrows_and_counters(streams, times, origin)


@dataclass(eq=False, slots=True)
class _Message:
    """A message that a rank receives.

    recv: the number of its RECV; text: its value and its sender; reader: the number of the first instruction that reads it.
    Until that is found, it is the number of the RECV.
    """

    recv: int
    text: str
    reader: int


@dataclass(slots=True)
class _Stream:
    """The stream of a rank.

    sent: the numbers of its SENDs in order, by peer. received: the messages that it receives in order, by peer. awaited: the
    messages of which an instruction is the first reader, by its number.
    """

    program: Program
    rank: int
    instructions: tuple[Instruction, ...] = field(init=False)
    sent: dict[int, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))
    received: dict[int, list[_Message]] = field(init=False, default_factory=lambda: defaultdict(list))
    awaited: dict[int, list[_Message]] = field(init=False, default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.instructions = self.program.stream(self.rank)
        unread: dict[Key, _Message] = {}
        for number, i in enumerate(self.instructions):
            for key in _values_read(i):
                message = unread.pop(key, None)
                if message is not None and message.reader == message.recv:
                    message.reader = number
                    self.awaited[number].append(message)
            if isinstance(i, Send):
                self.sent[i.peer].append(number)
            elif isinstance(i, Recv):
                message = _Message(number, self.text(number).removeprefix("RECV "), number)
                self.received[i.peer].append(message)
                unread.update({Key(i.value, i.pipe, i.stage, m): message for m in i.micro_batches})

    def text(self, number: int) -> str:
        """Return the text of an instruction."""
        return instruction_text(self.instructions[number], self.program.pipe_names)

    def wait(self, number: int) -> str:
        """Return what an instruction waits for, as the name of a slice."""
        i, messages = self.instructions[number], self.awaited.get(number, ())
        if messages:
            return f"waits for {', '.join(message.text for message in messages)}"
        return f"waits for its sends to rank {i.peer}" if isinstance(i, Send) else "waits"


def _values_read(i: Instruction) -> list[Key]:
    """Return the values for which an instruction waits if they are being received."""
    match i:
        case Fwd():
            name = "act"
        case Bwd() | BwdInput():
            name = "grad"
        case _:
            return []
    return [Key(name, i.pipe, i.stage, m) for m in i.micro_batches]


def _names(rank: int) -> Iterator[Event]:
    """Yield the name of a rank as a process, its place among them, and the name of its track."""
    track: Event = {"ph": "M", "pid": rank, "tid": TRACK}
    yield track | {"name": "process_name", "args": {"name": f"rank {rank}"}}
    yield track | {"name": "process_sort_index", "args": {"sort_index": rank}}
    yield track | {"name": "thread_name", "args": {"name": "instructions"}}


def _slices(stream: _Stream, times: Times, origin: int) -> Iterator[Event]:
    """Yield the slices of a rank: each instruction, its wait before it, and the waits at the end of the iteration."""

    def slice_event(name: str, category: str, begin: int, end: int, args: Mapping[str, object]) -> Event:
        duration = _us(end - begin)
        return _at(stream.rank, begin, origin) | {"ph": "X", "name": name, "cat": category, "dur": duration, "args": args}

    columns = zip(stream.instructions, times.start.tolist(), times.end.tolist(), times.waited.tolist(), strict=True)
    for number, (i, start, end, waited) in enumerate(columns):
        if waited:
            yield slice_event(stream.wait(number), "wait", start, start + waited, {"number": number})
        args: dict[str, object] = {"number": number, "waited_us": _us(waited)}
        if not isinstance(i, AllReduce):
            args["micro_batches"] = i.micro_batches
        yield slice_event(stream.text(number), _category(i), start + waited, end, args)
    last = int(times.end[-1]) if len(times.end) else times.sent
    yield slice_event("waits for the last sends", "wait", last, times.sent, {})
    yield slice_event("waits for the all-reduces", "wait", times.sent, times.finish, {})


def _category(i: Instruction) -> str:
    match i:
        case Task():
            return "task"
        case AllReduce():
            return "all-reduce"
        case _:
            return "transfer"


def _arrows_and_counters(streams: Sequence[_Stream], times: Sequence[Times], origin: int) -> Iterator[Event]:
    """Yield an arrow for each message, and the counters of messages that have been sent and not yet read."""
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by receiving rank: a time, and the change of its counter
    arrows = 0
    for stream in streams:
        for peer, numbers in stream.sent.items():
            for number, message in zip(numbers, streams[peer].received[stream.rank], strict=True):
                begin, end = _arrow_time(times[stream.rank], number), _arrow_time(times[peer], message.reader)
                arrow = {"name": message.text.split(" <-")[0], "cat": "message", "id": arrows}
                yield _at(stream.rank, begin, origin) | arrow | {"ph": "s"}
                yield _at(peer, end, origin) | arrow | {"ph": "f", "bp": "e"}
                changes[peer] += [(begin, 1), (max(begin, end), -1)]
                arrows += 1
    for rank in sorted(changes):
        messages = 0
        for time, change in sorted(changes[rank], key=lambda c: (c[0], -c[1])):
            messages += change
            counter = {"ph": "C", "name": "messages sent and not yet read", "args": {"messages": messages}}
            yield _at(rank, time, origin) | counter


def _arrow_time(times: Times, number: int) -> int:
    """Return the time in the slice of an instruction at which an arrow begins or ends."""
    begin = int(times.start[number] + times.waited[number])
    return begin + min(ARROW_NS, (int(times.end[number]) - begin) // 2)


def _at(rank: int, time: int, origin: int) -> Event:
    """Return the fields of an event that place it on the track of a rank, at a time."""
    return {"pid": rank, "tid": TRACK, "ts": _us(time - origin)}


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000
