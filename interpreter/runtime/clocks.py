"""The differences of the ranks' clocks, so that times of different ranks can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import perf_counter_ns

import torch

from chimerac.interpreter.transport import Transport

ROUNDS = 16

Reading = tuple[int, int]  # the clock of a rank before a sum over all ranks, and after it


def clock_offsets(transport: Transport) -> list[int]:
    """Return, for each rank, what to add to its time.perf_counter_ns to get that of rank 0; called by all ranks together.

    In each round the ranks read their clocks before and after a sum over all ranks. The sum ends on no rank before every rank
    has begun it. So each round bounds the offset from both sides, and the bounds of all rounds hold together. The error is at
    most half the distance of the bounds, which is the time of the fastest rounds.
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

    0 if the readings allow it: the processes of one machine have the same clock. Otherwise the middle of the bounds.
    """
    lowest = max(mine[0] - its[1] for mine, its in zip(first, other, strict=True))
    highest = min(mine[1] - its[0] for mine, its in zip(first, other, strict=True))
    return 0 if lowest <= 0 <= highest else (lowest + highest) // 2
