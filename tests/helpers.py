"""Programs to test, small changes to them, and a second opinion on how long they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache

from chimera_ir.instructions import Bwd, BwdInput, BwdWeight, Fwd, Instruction, Recv, Send, Task
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
    "looped_bfs": ({"D": 2, "N": 2}, {"D": 3, "N": 4}),
    "gems": ({"D": 2, "N": 2}, {"D": 3, "N": 4}),
    "hanayo": ({"D": 2, "N": 3}, {"D": 3, "N": 3, "w": 2}),
    "bitpipe": ({"D": 2, "N": 2}, {"D": 4, "N": 4}),
    "chimera_doubling": ({"D": 2, "N": 4}, {"D": 4, "N": 7, "again": 1}),
    "chimera_halving": ({"D": 2, "N": 4, "again": 1}, {"D": 4, "N": 8}),
    "zb_h1": ({"D": 2, "N": 3}, {"D": 4, "N": 5}),
    "zb_h2": ({"D": 2, "N": 4}, {"D": 3, "N": 6}),
    "zb_v": ({"D": 2, "N": 3}, {"D": 3, "N": 6}),
    "dualpipe": ({"D": 2, "N": 4}, {"D": 4, "N": 8}),
    "dualpipev": ({"D": 2, "N": 4}, {"D": 3, "N": 7}),
    "chimera_zb": ({"D": 2, "N": 3}, {"D": 4, "N": 4, "f": 2}),
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


def makespan(
    program: Program, costs: dict[str, int | Fraction] | None = None, hop: int | Fraction | None = None
) -> int | Fraction:
    """Return when the last task ends, by a simulation of its own: no array, no code of the compiler.

    costs: by operation, the same for every stage; without them, and without a hop, the program's own. A message arrives
    `hop` after both its ends are posted; the SEND number i of a channel waits for the arrival of message i - window. An
    overlapped pair starts when both tasks can and ends after both; a backward runs its forward again where that is so.
    """
    own, last = program.header.costs, program.header.stages - 1
    delay = own.hop if hop is None else hop
    todo = [list(s) for s in streams(program)]
    clock: list[int | Fraction] = [0] * program.world
    at: dict[tuple[object, ...], int | Fraction] = {}  # ("send" | "recv", channel, number) or a value on a rank -> time
    count: dict[tuple[object, ...], int] = {}
    source: dict[tuple[object, ...], tuple[tuple[int, int], int]] = {}  # a value on a rank -> its message
    again: set[tuple[int, int, int]] = set()  # (rank, stage, micro-batch) whose forward kept only its input

    def arrival(channel: tuple[int, int], number: int) -> int | Fraction | None:
        ends = [at.get((end, channel, number)) for end in ("send", "recv")]
        return None if None in ends else max(x for x in ends if x is not None) + delay

    def cost(op: str, stage: int) -> int | Fraction:
        return getattr(own, op)[stage] if costs is None else costs[op]  # type: ignore[no-any-return]

    def needed(g: int, i: Task) -> list[int | Fraction | None]:
        """Return when each value that a task reads is there; None for one that is not yet."""
        match i.op:  # type: ignore[attr-defined]
            case "FWD":
                reads = ["act"] if i.stage > 0 else []
            case "BWD" | "BWD_INPUT":
                reads = ["kept", *["grad"] * (i.stage < last)]
            case _:
                reads = ["inner"]
        keys = [(g, value, i.stage, m) for value in reads for m in i.micro_batches]
        return [arrival(*source[key]) if key in source else at.get(key) for key in keys]

    def transfer(g: int, i: Send | Recv) -> bool:
        end, channel = ("send", (g, i.peer)) if isinstance(i, Send) else ("recv", (i.peer, g))
        number = count.get((end, channel), 0)
        window = program.header.window
        if end == "send" and number >= window:
            # With no window at all a SEND blocks until its own receive is posted.
            waited = arrival(channel, number - window) if window else at.get(("recv", channel, number))
            if waited is None:
                return False
            clock[g] = max(clock[g], waited)
        for m in i.micro_batches if end == "recv" else ():
            source[g, i.value, i.stage, m] = (channel, number)
        at[end, channel, number], count[end, channel] = clock[g], number + 1
        return True

    def run(g: int, both: list[Task]) -> bool:
        """Run one task, or an overlapped pair as one."""
        ready = [x for i in both for x in needed(g, i)]
        if None in ready:
            return False
        clock[g] = max([clock[g], *(x for x in ready if x is not None)])
        for i in both:
            op: str = i.op  # type: ignore[attr-defined]
            clock[g] += cost(op, i.stage) * len(i.micro_batches)
            for m in i.micro_batches:
                if isinstance(i, Fwd) and i.recompute:
                    again.add((g, i.stage, m))
                if op in ("BWD", "BWD_INPUT") and (g, i.stage, m) in again:
                    clock[g] += cost("FWD", i.stage)
        for i in both:
            step = {"FWD": ("act", i.stage + 1, "kept"), "BWD_WEIGHT": ("done", i.stage, "done")}
            made = step.get(i.op, ("grad", i.stage - 1, "inner"))  # type: ignore[attr-defined]
            for m in i.micro_batches:
                at[g, made[0], made[1], m] = at[g, made[2], i.stage, m] = clock[g]
        return True

    def go(g: int) -> bool:
        first = todo[g][0]
        if isinstance(first, Send | Recv):
            count_of = 1
            moved = transfer(g, first)
        elif isinstance(first, Task):
            count_of = 1 + first.overlap
            moved = run(g, todo[g][:count_of])  # type: ignore[arg-type]
        else:
            count_of, moved = 1, True
        del todo[g][: count_of * moved]
        return moved

    while any(todo):
        before = sum(map(len, todo))
        for g in range(program.world):
            while todo[g] and go(g):
                pass
        assert sum(map(len, todo)) < before, "nobody can move"
    return max(clock)
