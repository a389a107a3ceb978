"""The differences of the ranks' clocks, so that times of different ranks can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import perf_counter_ns

import torch

from chimerac.interpreter.transport import Transport

ROUNDS = 16  # how many all-reduces compare the clocks

Reading = tuple[int, int]  # the clock of a rank before an all-reduce over all ranks, and after it, in nanoseconds


def clock_offsets(transport: Transport) -> list[int]:
    """Return, for each rank, what to add to its time.perf_counter_ns to get that of rank 0, in nanoseconds.

    Called by all ranks together. In each round the ranks read their clocks before and after an all-reduce. It completes on no
    rank before every rank has begun it. So each round gives a lower and an upper bound of the offset. The largest lower bound
    and the smallest upper bound of all rounds are used.
    """
    readings: list[Reading] = []
    for _ in range(ROUNDS):
        before = perf_counter_ns()
        transport.all_reduce(torch.zeros(1))
        readings.append((before, perf_counter_ns()))
    by_rank = [json.loads(text) for text in transport.all_gather(json.dumps(readings))]
    return [offset_of(by_rank[0], other) for other in by_rank]


def offset_of(first: Sequence[Reading], other: Sequence[Reading]) -> int:
    """Return what to add to the clock of `other` to get that of `first`, from their readings of the same rounds.

    If 0 lies within the bounds, the result is 0, because two processes of one host have the same clock. The error is then at
    most the distance between the bounds. Otherwise the result is the middle of the bounds, rounded down, and the error is at
    most half that distance plus half a nanosecond.
    """
    lowest = max(before - after for (before, _), (_, after) in zip(first, other, strict=True))
    highest = min(after - before for (_, after), (before, _) in zip(first, other, strict=True))
    return 0 if lowest <= 0 <= highest else (lowest + highest) // 2
