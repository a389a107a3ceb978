"""Drafts: copies of a program that mutations change in place.

This module also has changes that several mutations use, the mutants of a program, and the codes of the verifier's findings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Instruction
from chimerac.chimera_ir.program import Costs, Header, Program
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.verify import verify
from tests.helpers import Streams, streams

Place = tuple[int, int]  # rank, number of the instruction


@dataclass
class Draft:
    """A program that can be changed in place."""

    header: Header
    streams: Streams
    costs: Costs

    @property
    def world(self) -> int:
        """Return the number of streams: the ranks of all replicas."""
        return len(self.streams)

    def program(self) -> Program:
        """Return the program as it is now. It is not verified."""
        return program_of(self.header, self.streams, self.costs)

    def at(self, place: Place) -> Instruction:
        """Return the instruction at a place."""
        return self.streams[place[0]][place[1]]

    def put(self, place: Place, i: Instruction) -> bool:
        """Replace the instruction at a place. Return True, so that a mutation can end with `return d.put(...)`."""
        self.streams[place[0]][place[1]] = i
        return True

    def insert(self, rng: random.Random, g: int, i: Instruction) -> int:
        """Insert an instruction at a random position of a rank's stream; return the position."""
        number = rng.randrange(len(self.streams[g]) + 1)
        self.streams[g].insert(number, i)
        return number

    def place(self, rng: random.Random) -> Place:
        """Return a random place. At least one stream must have an instruction."""
        g = rng.choice([g for g, stream in enumerate(self.streams) if stream])
        return g, rng.randrange(len(self.streams[g]))


Mutation = Callable[[Draft, Place, random.Random], bool]  # changes the draft and returns True, or returns False


def swap(stream: list[Instruction], a: int, b: int) -> bool:
    """Swap two instructions of a stream. Return False if the stream stays the same."""
    if b >= len(stream) or stream[a] == stream[b]:
        return False
    stream[a], stream[b] = stream[b], stream[a]
    return True


def swap_with_same_kind(d: Draft, at: Place, rng: random.Random, is_of_kind: Callable[[Instruction], bool]) -> bool:
    """Swap the instruction at a place with another one of its stream.

    `is_of_kind` must hold for both. Otherwise, or if the stream stays the same, return False.
    """
    stream = d.streams[at[0]]
    others = [n for n, i in enumerate(stream) if is_of_kind(i) and n != at[1]]
    return is_of_kind(stream[at[1]]) and bool(others) and swap(stream, at[1], rng.choice(others))


def different_number(rng: random.Random, bound: int, old: int, likely: Sequence[int] = ()) -> int:
    """Return a number that is not `old`: usually one of `likely`, otherwise any from 0 to `bound` - 1."""
    candidates = [x for x in likely if x != old]
    return rng.choice(candidates if candidates and rng.random() < 0.8 else [x for x in range(bound) if x != old])


def mutants(p: Program, mutation: Mutation, count: int, seed: str) -> Iterator[Program]:
    """Yield up to `count` different mutants. Each is made by this mutation, once, at a place drawn at random."""
    rng = random.Random(seed)
    original = streams(p)
    places = [(g, k) for g, stream in enumerate(original) for k in range(len(stream))]
    rng.shuffle(places)
    seen = {contents(Draft(p.header, original, p.costs))}  # of the program and its mutants so far
    for at in places:
        if len(seen) > count:
            return
        draft = Draft(p.header, [[*stream] for stream in original], p.costs)
        if mutation(draft, at, rng) and (key := contents(draft)) not in seen:
            seen.add(key)
            yield draft.program()


def contents(d: Draft) -> object:
    """Return the contents of a draft as a value that can be hashed and compared."""
    return repr(d.header), repr(d.costs), tuple(map(tuple, d.streams))


def codes(p: Program) -> set[str]:
    """Return the codes of the verifier's findings; an empty set if it accepts the program.

    Each must be a code E4xx. Exceptions other than findings are not caught.
    """
    try:
        verify(p)
    except ChimeraError as error:
        assert all(d.code.startswith("E4") and d.message for d in error.diagnostics)
        return {d.code for d in error.diagnostics}
    return set()
