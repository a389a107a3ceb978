"""Mutations of the header of a correct program: a class of mutants for each field, and one for the costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from chimerac.chimera_ir.program import LIMITS, Costs, Header, Pipe, Tied
from tests.proof.draft import Draft, Mutation, Place
from tests.proof.drawn import MACHINES

Change = Callable[[Header, random.Random], Any]  # returns the new value of a field


def number(name: str, least: int = 1) -> Change:
    """Return a change of a number: 1 less, 1 or 2 more, doubled or halved.

    Args:
        name: its field.
        least: its minimum.
    """

    def change(h: Header, rng: random.Random) -> int:
        n: int = getattr(h, name)
        return max(least, rng.choice([n - 1, n + 1, 2 * n, n // 2, n + 2]))

    return change


def parameters(h: Header, rng: random.Random) -> dict[str, int]:
    name = rng.choice([*h.parameters, "X"])
    return {**h.parameters, name: rng.randint(-3, 9)}


def pipes(h: Header, rng: random.Random) -> tuple[Pipe, ...]:
    # a, b: the positions of two random pipes, which may be the same pipe
    changed = list(h.pipes)
    a, b = rng.randrange(len(changed)), rng.randrange(len(changed))
    first, second = changed[a], changed[b]
    stage = rng.randrange(len(first.placement))
    match rng.randrange(11):
        case 0:
            changed[a] = replace(first, name="other")
        case 1:
            changed[a] = replace(first, name=second.name)
        case 2:
            changed[a] = replace(first, placement=replaced(first.placement, stage, rng.randrange(h.ranks + 1)))
        case 3:
            changed[a] = replace(first, placement=replaced(first.placement, stage, second.placement[-1]))
        case 4:
            changed[a], changed[b] = replace(first, placement=second.placement), replace(second, placement=first.placement)
        case 5:
            changed[a], changed[b] = second, first
        case 6 if first.micro_batches:
            m = rng.choice(first.micro_batches)
            changed[a] = replace(first, micro_batches=tuple(x for x in first.micro_batches if x != m))
            changed[b] = replace(changed[b], micro_batches=(*changed[b].micro_batches, m))
        case 7:
            changed[a] = replace(first, micro_batches=first.micro_batches[::-1])
        case 8 if len(changed) > 1:
            del changed[a]
        case 9:
            changed[a] = replace(first, micro_batches=(*first.micro_batches, rng.randrange(h.micro_batches + 1)))
        case _:
            changed.append(Pipe("more", tuple(rng.choice([r, rng.randrange(h.ranks)]) for r in first.placement), ()))
    return tuple(changed)


def replaced(numbers: tuple[int, ...], at: int, by: int) -> tuple[int, ...]:
    """Return these numbers with `by` in the place of the one at position `at`."""
    return (*numbers[:at], by, *numbers[at + 1 :])


def header_costs(d: Draft, _: Place, rng: random.Random) -> bool:
    """Change the costs. A program has them beside its header, so no entry of `CHANGES` can do this."""
    d.costs = changed_costs(d.costs, rng)
    return True


def changed_costs(c: Costs, rng: random.Random) -> Costs:
    """Return costs with a new cost of a hop, with one new cost of a kind of task, or with another number of costs of a kind."""
    name = rng.choice([f.name for f in fields(Costs)])
    if name == "hop":
        return replace(c, hop=rng.randint(0, 9))
    old: tuple[int, ...] = getattr(c, name) or c.FWD  # a program without costs of RECOMPUTE has those of FWD
    new = rng.choice([replaced(old, rng.randrange(len(old)), rng.randint(0, 9)), (*old, 1), old[:-1] or (1, 1)])
    return replace(c, **{name: new})


def micro_batch_size(_: Header, rng: random.Random) -> tuple[int, int]:
    return rng.randint(1, 4), rng.randint(1, 4)


def tied(h: Header, rng: random.Random) -> tuple[Tied, ...]:
    changed = list(h.tied)
    match rng.randrange(4):
        case 0 if changed:
            changed.pop(rng.randrange(len(changed)))
        case 1 if changed:
            changed.append(changed[0])
        case 2 if changed:
            changed[0] = replace(changed[0], stages=(*changed[0].stages, rng.randrange(h.stages + 1)))
        case _:
            stages = rng.sample(range(h.stages + 1), rng.randint(1, min(2, h.stages)))
            changed.append(Tied(f"more{len(changed)}", tuple(stages)))
    return tuple(changed)


def limits(h: Header, rng: random.Random) -> dict[str, int]:
    name = rng.choice([*LIMITS, *LIMITS, "activation"])  # the last one is not the name of a limit
    return {**h.limits, name: rng.randint(0, h.micro_batches + 2)}


# By field. The functions above that are named like a field return its new value.
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
SIZES_DIFFER = "the streams no longer match the number in the header"
WHY = {  # by field, the reason if all of its mutants are wrong or all are correct
    "ranks": SIZES_DIFFER,
    "stages": SIZES_DIFFER,
    "micro_batches": SIZES_DIFFER,
    "width": SIZES_DIFFER,
    "kind": "a training program has backwards, an evaluation has none",
    "schedule": "it is a name",
    "parameters": "they only record how the program was compiled",
    "micro_batch_size": "it changes no order and no value",
}


def of_field(name: str) -> Mutation:
    """Return the mutation that changes a field of the header."""

    def mutation(d: Draft, _: Place, rng: random.Random) -> bool:
        d.header = replace(d.header, **{name: CHANGES[name](d.header, rng)})
        return True

    mutation.__name__ = f"header_{name}"
    return mutation


FIELDS = [*CHANGES]
FIELDS.insert(FIELDS.index("pipes") + 1, "costs")  # its place in the table of docs/proof.md
# By class: its name, and the reason if all of its mutants are wrong or all are correct, else ''.
HEADER: dict[Mutation, tuple[str, str]] = {
    header_costs if name == "costs" else of_field(name): (f"header: {name}", WHY.get(name, "")) for name in FIELDS
}
