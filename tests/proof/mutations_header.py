"""Mutations of the header of a correct program: a class of mutants for each field."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from chimerac.chimera_ir.program import LIMITS, Costs, Header, Pipe, Tied
from tests.proof.draft import Draft, Mutation, Place
from tests.proof.drawn import MACHINES

Change = Callable[[Header, random.Random], Any]  # the field's new value


def number(name: str, least: int = 1) -> Change:
    """Return a change that adds a little to a number, or doubles or halves it."""

    def change(h: Header, rng: random.Random) -> int:
        n: int = getattr(h, name)
        return max(least, rng.choice([n - 1, n + 1, 2 * n, n // 2, n + 2]))

    return change


def parameters(h: Header, rng: random.Random) -> dict[str, int]:
    name = rng.choice([*h.parameters, "X"])
    return {**h.parameters, name: rng.randint(-3, 9)}


def pipes(h: Header, rng: random.Random) -> tuple[Pipe, ...]:
    every = list(h.pipes)
    a, b = rng.randrange(len(every)), rng.randrange(len(every))
    one, two = every[a], every[b]
    stage = rng.randrange(len(one.placement))
    match rng.randrange(11):
        case 0:
            every[a] = replace(one, name="other")
        case 1:
            every[a] = replace(one, name=two.name)
        case 2:
            every[a] = replace(one, placement=replaced(one.placement, stage, rng.randrange(h.ranks + 1)))
        case 3:
            every[a] = replace(one, placement=replaced(one.placement, stage, two.placement[-1]))
        case 4:
            every[a], every[b] = replace(one, placement=two.placement), replace(two, placement=one.placement)
        case 5:
            every[a], every[b] = two, one
        case 6 if one.micro_batches:
            m = rng.choice(one.micro_batches)
            every[a] = replace(one, micro_batches=tuple(x for x in one.micro_batches if x != m))
            every[b] = replace(every[b], micro_batches=(*every[b].micro_batches, m))
        case 7:
            every[a] = replace(one, micro_batches=one.micro_batches[::-1])
        case 8 if len(every) > 1:
            del every[a]
        case 9:
            every[a] = replace(one, micro_batches=(*one.micro_batches, rng.randrange(h.micro_batches + 1)))
        case _:
            every.append(Pipe("more", tuple(rng.choice([r, rng.randrange(h.ranks)]) for r in one.placement), ()))
    return tuple(every)


def replaced(numbers: tuple[int, ...], at: int, by: int) -> tuple[int, ...]:
    return (*numbers[:at], by, *numbers[at + 1 :])


def header_costs(d: Draft, _: Place, rng: random.Random) -> bool:
    """Change a cost. Costs are in the header of a file; in a program they are a field of their own."""
    d.costs = changed_costs(d.costs, rng)
    return True


def changed_costs(c: Costs, rng: random.Random) -> Costs:
    name = rng.choice([f.name for f in fields(Costs)])
    if name == "hop":
        return replace(c, hop=rng.randint(0, 9))
    old: tuple[int, ...] = getattr(c, name)
    new = rng.choice([replaced(old, rng.randrange(len(old)), rng.randint(0, 9)), (*old, 1), old[:-1] or (1, 1)])
    return replace(c, **{name: new})


def micro_batch_size(_: Header, rng: random.Random) -> tuple[int, int]:
    return rng.randint(1, 4), rng.randint(1, 4)


def tied(h: Header, rng: random.Random) -> tuple[Tied, ...]:
    every = list(h.tied)
    match rng.randrange(4):
        case 0 if every:
            every.pop(rng.randrange(len(every)))
        case 1 if every:
            every.append(every[0])
        case 2 if every:
            every[0] = replace(every[0], stages=(*every[0].stages, rng.randrange(h.stages + 1)))
        case _:
            stages = rng.sample(range(h.stages + 1), rng.randint(1, min(2, h.stages)))
            every.append(Tied(f"more{len(every)}", tuple(stages)))
    return tuple(every)


def limits(h: Header, rng: random.Random) -> dict[str, int]:
    name = rng.choice([*LIMITS, *LIMITS, "activation"])
    return {**h.limits, name: rng.randint(0, h.micro_batches + 2)}


CHANGES: dict[str, Change] = {
    "schedule": lambda _, rng: f"other{rng.randrange(99)}",
    "parameters": parameters,
    "ranks": number("ranks"),
    "stages": number("stages"),
    "micro_batches": number("micro_batches"),
    "pipes": pipes,
    "width": number("width"),
    "window": number("window", 0),
    "machine": lambda _, rng: rng.choice(MACHINES),
    "kind": lambda h, _: "evaluation" if h.kind == "training" else "training",
    "micro_batch_size": micro_batch_size,
    "tied": tied,
    "limits": limits,
}
SIZES = "each has one stream, or task, for each of them"
WHY = {  # the reason, where all mutants are wrong, or none is
    "ranks": SIZES,
    "stages": SIZES,
    "micro_batches": SIZES,
    "width": SIZES,
    "kind": "one has backwards, the other has none",
    "schedule": "it is a name",
    "parameters": "they are what the schedule was given",
    "micro_batch_size": "it changes no order and no value",
}


def of_field(name: str) -> Mutation:
    """Return the class of mutants in which a field of the header is changed."""

    def mutation(d: Draft, _: Place, rng: random.Random) -> bool:
        d.header = replace(d.header, **{name: CHANGES[name](d.header, rng)})
        return True

    mutation.__name__ = f"header_{name}"
    return mutation


FIELDS = [*CHANGES]
FIELDS.insert(FIELDS.index("pipes") + 1, "costs")  # as files have it
HEADER: dict[Mutation, tuple[str, str]] = {
    header_costs if name == "costs" else of_field(name): (f"header: {name}", WHY.get(name, "")) for name in FIELDS
}
