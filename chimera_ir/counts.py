"""Counts with their nouns, for messages and reports."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: '1 rank', '4 ranks', '2 micro-batches'.

    Args:
        noun: in the singular.
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}es" if noun.endswith(("ch", "ss")) else f"{number} {noun}s"


def times_text(number: int) -> str:
    """Return how often something is: 'once', 'twice', '3 times'."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def sizes_text(ranks: int, stages: int, micro_batches: int) -> str:
    """Return the sizes of a program: '4 ranks, 4 stages, 8 micro-batches'."""
    counts = {"rank": ranks, "stage": stages, "micro-batch": micro_batches}
    return ", ".join(count_text(number, noun) for noun, number in counts.items())
