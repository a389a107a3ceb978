"""The times of messages and all-reduces between the ranks of this measurement, over the transport that runs use.

A message goes to the neighbour and back, in the pairs of ranks 0 and 1, 2 and 3, and so on at the same time. Its time is half
of the time for both ways. An all-reduce is launched and awaited by all of its ranks. Latency and bandwidth are those of the
line closest to the medians of several sizes, in which each size counts with its relative error.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from chimerac.chimera_ir.profile import AllReduceTime, Link
from chimerac.interpreter.pipeline.programs import program_for
from chimerac.interpreter.transport.processes import Processes

Floats = npt.NDArray[np.float64]
SIZES = (4, 16 * 2**10, 128 * 2**10, 2**20, 4 * 2**20)  # bytes of a message or an all-reduce, of float32 numbers
FLOAT32_BYTES = 4
WARM_UP = 3  # measurements of each size that are not counted
MIN_SLOPE = 1e-18  # seconds per byte: the least that a profile may say
# This schedule has a channel in each direction between neighbours. With D = 1 and W replicas it has an all-reduce over W ranks.
_CHAIN = """schedule chain
param D = 2
ranks D
stages D
pipe main { stage s on rank s  micro_batches 1 }
order ticks { F(s, m) at s  B(s, m) at 2 * D - s }
"""


def point_to_point(transport: Processes, repeats: int) -> Link:
    """Return the link between neighbours as rank 0 measures it; called by all ranks together, of which there are at least two.

    What other ranks return is not meant for use.
    """
    transport.connect(program_for(_CHAIN, {"D": transport.world}, width=1, world=None))
    peer = transport.rank ^ 1  # the pairs are 0 and 1, 2 and 3, ...; of an odd number of ranks the last one has no peer

    def there_and_back(size: int) -> Callable[[], None]:
        sent, received = (torch.zeros(size // FLOAT32_BYTES, device=transport.device) for _ in range(2))

        def run() -> None:
            receive = transport.recv(peer, received)
            if transport.rank < peer:
                transport.send(peer, sent)
                receive.wait()
            else:
                receive.wait()
                transport.send(peer, sent)
            transport.flush()

        return run

    has_peer = peer < transport.world
    seconds = _medians(transport, {size: there_and_back(size) for size in SIZES}, takes_part=has_peer, repeats=repeats)
    latency_s, bytes_per_s = fitted({size: both_ways / 2 for size, both_ways in seconds.items()})
    return Link(latency_s, bytes_per_s)


def all_reduces(transport: Processes, repeats: int) -> tuple[AllReduceTime, ...]:
    """Return the times of all-reduces over 2, 4, 8, ... ranks and over all, as rank 0 measures them; called by all together.

    What other ranks return is not meant for use.
    """
    groups = sorted({2**k for k in range(1, transport.world.bit_length()) if 2**k < transport.world} | {transport.world})
    found = []
    for ranks in groups:
        transport.connect(program_for(_CHAIN, {"D": 1}, width=ranks, world=None))
        members = tuple(range(ranks))

        def reduce(size: int, members: tuple[int, ...] = members) -> Callable[[], object]:
            buffer = torch.zeros(size // FLOAT32_BYTES, device=transport.device)
            return lambda: transport.launch_all_reduce(members, buffer).wait()

        takes_part = transport.rank < ranks
        seconds = _medians(transport, {size: reduce(size) for size in SIZES}, takes_part, repeats)
        found.append(AllReduceTime(ranks, *fitted(seconds)))
    return tuple(found)


def _medians(
    transport: Processes, runs: Mapping[int, Callable[[], object]], takes_part: bool, repeats: int
) -> dict[int, float]:
    """Return, by size, the median seconds that the function of this size takes on this rank. All ranks begin a call together.

    Args:
        runs: the function of each size.
        takes_part: whether this rank calls it.
    """
    found: dict[int, list[float]] = {size: [] for size in runs}
    for number in range(WARM_UP + repeats):
        for size, run in runs.items():
            transport.all_reduce(torch.zeros(1))
            begin = time.perf_counter()
            if takes_part:
                run()
            if transport.device.type == "cuda":
                torch.cuda.synchronize()
            if number >= WARM_UP:
                found[size].append(time.perf_counter() - begin)
    return {size: statistics.median(seconds) for size, seconds in found.items()}


def fitted(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Return the latency in seconds and the bytes per second of the line closest to these times, by their sizes in bytes.

    Each time counts with its relative error. A latency below 0 becomes 0, and the line then passes through the origin. If
    larger messages did not take longer, the latency is the least time, and the bandwidth is the most that a profile may say.
    """
    sizes, times = np.array(list(seconds), float), np.array(list(seconds.values()), float)
    slope, latency = _line(sizes, times)
    if latency < 0:
        latency, slope = 0.0, float((sizes / times).sum() / ((sizes / times) ** 2).sum())
    if slope < MIN_SLOPE:  # larger messages did not take longer
        latency, slope = float(times.min()), MIN_SLOPE
    return round(latency, 12), float(f"{1 / slope:.6g}")


def _line(sizes: Floats, times: Floats) -> tuple[float, float]:
    """Return slope and value at 0 of the line with the least relative errors."""
    slope, latency = np.polyfit(sizes, times, 1, w=1 / times)
    return float(slope), float(latency)
