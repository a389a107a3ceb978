"""Problems for the tests of the search: stages that take equal time, in one pipe or in several."""

from __future__ import annotations

from fractions import Fraction

from chimerac.compiler.search.problem import Pipe, Problem


def uniform(pipes: list[tuple[int, ...]], counts: list[int], kinds: str, hop: int, limit: int | None, unit: int = 1) -> Problem:
    """Return a problem of equal stages: F, I and W take `unit`, and B takes twice as long.

    Args:
        pipes: the placement of each pipe.
        counts: the number of micro-batches of each pipe.
        kinds: "FB" or "FIW".
        hop: the time of a message between any two ranks.
        limit: the most activations that each rank may hold; None: no limit.
    """
    ranks, stages = max(max(p) for p in pipes) + 1, len(pipes[0])
    costs = {"F": unit, "B": 2 * unit, "I": unit, "W": unit}
    return Problem(
        ranks,
        stages,
        tuple(Pipe(f"p{k}", p, n) for k, (p, n) in enumerate(zip(pipes, counts, strict=True))),
        kinds,
        durations=tuple((costs[kind],) * stages for kind in kinds),
        links=((hop,) * ranks,) * ranks,
        activations=(1,) * stages,
        limits=(limit,) * ranks,
        scale=Fraction(unit),
    )


def two_pipes(ranks: int, total: int, kinds: str, hop: int, unit: int = 1) -> Problem:
    """Return a problem of two opposite pipes with `total` micro-batches in all.

    Each rank may hold as many activations as there are ranks.
    """
    down = tuple(range(ranks))
    return uniform([down, down[::-1]], [total // 2, total - total // 2], kinds, hop, limit=ranks, unit=unit)
