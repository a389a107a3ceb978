"""Programs to test, small changes to them, and a second opinion on how long they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache

from chimera_ir.instructions import Bwd, BwdInput, BwdWeight, Fwd, Instruction, Recv, Send
from chimera_ir.program import Program, program_of
from compiler import compile_schedule

Streams = list[list[Instruction]]

# Every schedule of the library, with parameters for a small and a middle program.
SMALL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "gpipe": ({"D": 2, "N": 3}, {"D": 4, "N": 4}),
    "1f1b": ({"D": 2, "N": 3}, {"D": 4, "N": 6}),
    "dapple": ({"D": 3, "N": 4, "policy": 1}, {"D": 3, "N": 5, "policy": 2}),
    "chimera": ({"D": 2, "N": 4}, {"D": 4, "N": 4, "f": 2}),
    "chimera_any": ({"D": 4, "N": 3}, {"D": 4, "N": 5}),
    "interleaved": ({"D": 2, "N": 2, "v": 2}, {"D": 3, "N": 3, "v": 2}),
}
CASES = [(name, tuple(p.items())) for name, both in SMALL.items() for p in both]


@cache
def compiled(name: str, parameters: tuple[tuple[str, int], ...] = (), width: int = 1) -> Program:
    """Return the program of a schedule of the library."""
    return compile_schedule(name, dict(parameters), width).program


def program(name: str, width: int = 1, **parameters: int) -> Program:
    """Return the program of a schedule of the library under these parameters."""
    return compiled(name, tuple(parameters.items()), width)


def chimera_pairs(ranks: int) -> list[int]:
    """Return every legal f: the divisors of D/2."""
    return [f for f in range(1, ranks // 2 + 1) if (ranks // 2) % f == 0]


def streams(program: Program) -> Streams:
    """Return the instructions of every rank, as lists to change."""
    return [list(program.stream(g)) for g in range(program.world)]


def with_streams(program: Program, changed: Sequence[Iterable[Instruction]]) -> Program:
    """Return the program with other streams under the same header."""
    return program_of(program.header, changed)


def moved(stream: Sequence[Instruction], source: int, target: int) -> list[Instruction]:
    """Return the stream with the instruction at `source` taken out and put back at `target`."""
    result = list(stream)
    result.insert(target, result.pop(source))
    return result


def tasks(stream: Iterable[Instruction]) -> Iterator[Fwd | Bwd | BwdInput | BwdWeight]:
    """Yield the computations of a stream."""
    return (i for i in stream if isinstance(i, Fwd | Bwd | BwdInput | BwdWeight))


def makespan(program: Program, costs: dict[str, int | Fraction], hop: int | Fraction = 0) -> int | Fraction:
    """Return when the last task ends, by a simulation of its own: no array, no code of the compiler.

    costs: by operation, the same for every stage. A message arrives `hop` after both its ends are posted; the SEND
    number i of a channel waits for the arrival of message i - window.
    """
    todo = [list(s) for s in streams(program)]
    clock: list[int | Fraction] = [0] * program.world
    at: dict[tuple[object, ...], int | Fraction] = {}  # ("send" | "recv", channel, number) or a value on a rank -> time
    count: dict[tuple[object, ...], int] = {}
    source: dict[tuple[object, ...], tuple[tuple[int, int], int]] = {}  # a value on a rank -> its message

    def arrival(channel: tuple[int, int], number: int) -> int | Fraction | None:
        ends = [at.get((end, channel, number)) for end in ("send", "recv")]
        return None if None in ends else max(x for x in ends if x is not None) + hop

    def go(g: int, i: Instruction) -> bool:
        if isinstance(i, Send | Recv):
            end, channel = ("send", (g, i.peer)) if isinstance(i, Send) else ("recv", (i.peer, g))
            number = count.get((end, channel), 0)
            if end == "send" and number >= program.header.window:
                waited = arrival(channel, number - program.header.window)
                if waited is None:
                    return False
                clock[g] = max(clock[g], waited)
            if end == "recv":
                source[g, i.value, i.stage, i.micro_batches] = (channel, number)
            at[end, channel, number], count[end, channel] = clock[g], number + 1
        elif isinstance(i, Fwd | Bwd | BwdInput | BwdWeight):
            last = program.header.stages - 1
            reads = {"FWD": ("act", i.stage > 0), "BWD_WEIGHT": ("", False)}.get(i.op, ("grad", i.stage < last))
            key = (g, reads[0], i.stage, i.micro_batches)
            ready = (arrival(*source[key]) if key in source else at.get(key)) if reads[1] else 0
            if ready is None:
                return False
            clock[g] = max(clock[g], ready) + costs[i.op]
            made = {"FWD": ("act", i.stage + 1), "BWD_WEIGHT": ("", 0)}.get(i.op, ("grad", i.stage - 1))
            at[g, made[0], made[1], i.micro_batches] = clock[g]
        return True

    while any(todo):
        before = sum(map(len, todo))
        for g, stream in enumerate(todo):
            while stream and go(g, stream[0]):
                stream.pop(0)
        assert sum(map(len, todo)) < before, "nobody can move"
    return max(clock)
