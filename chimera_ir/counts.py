"""Counts with their nouns, for messages and reports."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: '1 rank', '4 ranks', '2 micro-batches'. noun: in the singular."""
    plural = f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def sizes_text(ranks: int, stages: int, micro_batches: int) -> str:
    """Return the sizes of a program: '4 ranks, 4 stages, 8 micro-batches'."""
    counts = {"rank": ranks, "stage": stages, "micro-batch": micro_batches}
    return ", ".join(count_text(number, noun) for noun, number in counts.items())
