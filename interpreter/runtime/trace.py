"""Traces: the times of one iteration of all ranks as Chrome trace events, a JSON format that Perfetto opens.

Each rank is a process of the trace. It has two tracks of slices, its tasks and its communication. The wait of an instruction
is a slice before it. An arrow leads from each SEND to the first task that reads a value of the message, or to the RECV if no
task does. A counter shows how many messages for a rank have been sent and not yet read. Times are in microseconds after the
earliest rank began its first instruction.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from chimerac.chimera_ir.instructions import AllReduce, Instruction, Send
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textline import instruction_text
from chimerac.chimera_ir.trace_events import (
    COMMUNICATION,
    TASKS,
    Event,
    Message,
    arrow_events,
    category,
    messages,
    rank_names,
    slice_event,
    trace_document,
)
from chimerac.interpreter.runtime.gathered import beginning, write_gathered
from chimerac.interpreter.runtime.times import Times
from chimerac.interpreter.transport import Transport

# An arrow begins and ends this long after the beginning of a slice, or in the middle of the slice if that is earlier.
ARROW_NS = 1000


def write_trace(program: Program, times: Times, transport: Transport, path: str | os.PathLike[str]) -> None:
    """Write the trace of an iteration; called by all ranks together.

    Args:
        times: of this rank, by its own clock.

    Rank 0 writes the file, as `write` of chimera_ir/files.py does. Raises ChimeraError E811 on all ranks if it cannot be
    written.
    """
    write_gathered("trace", partial(trace_text, program), times, transport, path)


def trace_text(program: Program, times: Sequence[Times]) -> str:
    """Return the trace as JSON with an event on each line.

    Args:
        times: of each rank, by the clock of rank 0.
    """
    return trace_document(program, trace_events(program, times))


def trace_events(program: Program, times: Sequence[Times]) -> Iterator[Event]:
    """Yield the events of a trace.

    Args:
        times: of each rank, by the clock of rank 0.
    """
    origin = beginning(times)
    aligned = [t.shifted(-origin) for t in times]
    all_messages = messages(program)
    awaited: dict[int, list[Message]] = defaultdict(list)  # by the row of the task that reads them first
    for message in sorted(all_messages, key=lambda m: m.receive):
        if message.reader != message.receive:  # otherwise no task reads it
            awaited[message.reader].append(message)
    for rank, own in enumerate(aligned):
        yield from rank_names(rank, f"rank {rank}")
        yield from _slices(program, rank, own, awaited)
    yield from _arrows_and_counters(program, all_messages, aligned)


def _slices(program: Program, rank: int, times: Times, awaited: Mapping[int, Sequence[Message]]) -> Iterator[Event]:
    """Yield the slices of a rank: each instruction, its wait before it, and the waits at the end of the iteration.

    Args:
        times: of this rank, counted from the beginning of the iteration.
        awaited: messages, by the row of the task that reads them first.
    """
    columns = zip(program.stream(rank), times.start.tolist(), times.end.tolist(), times.waited.tolist(), strict=True)
    for number, (i, start, end, waited) in enumerate(columns):
        track = _track(i)
        if waited:
            name = _wait_name(i, awaited.get(int(program.offsets[rank]) + number, ()))
            yield slice_event(rank, track, _us(start), _us(waited), name, "wait", {"number": number})
        args: dict[str, object] = {"number": number, "waited_us": _us(waited)}
        if not isinstance(i, AllReduce):
            args["micro_batches"] = i.micro_batches
        text = instruction_text(i, program.pipe_names)
        yield slice_event(rank, track, _us(start + waited), _us(end - start - waited), text, category(i), args)
    last_end = int(times.end[-1]) if len(times.end) else times.sent
    for what, begin, end in (("the last sends", last_end, times.sent), ("the all-reduces", times.sent, times.finish)):
        yield slice_event(rank, COMMUNICATION, _us(begin), _us(end - begin), f"waits for {what}", "wait", {})


def _track(i: Instruction) -> int:
    return TASKS if category(i) == "task" else COMMUNICATION


def _wait_name(i: Instruction, awaited: Sequence[Message]) -> str:
    """Return what an instruction waits for, as the name of a slice.

    Args:
        awaited: the messages of which it is the first reader.
    """
    if awaited:
        return f"waits for {', '.join(message.text for message in awaited)}"
    return f"waits for its sends to rank {i.peer}" if isinstance(i, Send) else "waits"


def _arrows_and_counters(program: Program, all_messages: Sequence[Message], times: Sequence[Times]) -> Iterator[Event]:
    """Yield an arrow for each message, and the counters of messages that have been sent and not yet read."""
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by receiving rank: a time, and how its counter changes then
    is_task = program.table.is_task
    for number, message in enumerate(all_messages):
        begin = _arrow_time(times[message.sender], message.send - int(program.offsets[message.sender]))
        end = _arrow_time(times[message.receiver], message.reader - int(program.offsets[message.receiver]))
        reader_track = TASKS if is_task[message.reader] else COMMUNICATION
        places = ((message.sender, COMMUNICATION, _us(begin)), (message.receiver, reader_track, _us(end)))
        text = message.text.split(" <-")[0]  # without the sender
        yield from arrow_events(number, text, *places)
        changes[message.receiver] += [(begin, 1), (max(begin, end), -1)]
    for rank in sorted(changes):
        count = 0
        for time, change in sorted(changes[rank], key=lambda c: (c[0], -c[1])):  # at the same time, sent messages first
            count += change
            counter = {"ph": "C", "name": "messages sent and not yet read", "args": {"messages": count}}
            yield {"pid": rank, "tid": TASKS, "ts": _us(time)} | counter


def _arrow_time(times: Times, number: int) -> int:
    """Return the time in the slice of an instruction at which an arrow begins or ends."""
    begin = int(times.start[number] + times.waited[number])
    return begin + min(ARROW_NS, (int(times.end[number]) - begin) // 2)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000
