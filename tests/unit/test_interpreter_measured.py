"""What is measured of an iteration: bubbles, waits by cause and the peak of the memory; and the table of the ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from chimerac.interpreter.launch.summary import RankSummary
from chimerac.interpreter.runtime.measured import Figures, MeasuredTimes, peak_memory_bytes
from chimerac.interpreter.runtime.times import Times, bubbles, computed_and_elapsed_s, times_of


def test_bubbles_are_shares_of_the_time_until_the_last_task_of_all_ranks_ends() -> None:
    assert bubbles([3.0, 2.0], [3.5, 4.0]) == [0.25, 0.5]
    assert bubbles([0.0], [0.0]) == [0.0]


def test_waiting_is_not_computing() -> None:
    # FWD 1 s of which 0.5 s waits, SEND 1 s, BWD 2 s, ALLREDUCE 1 s; then 1 s for sends, 4 s for all-reduces.
    stamps = [int(1e9) * s for s in (10, 11, 12, 14, 15, 20)]
    waits = [int(1e6) * ms for ms in (0, 500, 500, 500, 500, 5500)]  # cumulative: at each stamp
    times = times_of(stamps, waits, np.array([1, 0, 1, 0], bool), sent=int(16e9))
    assert computed_and_elapsed_s(times) == (2.5, 4.0)
    assert computed_and_elapsed_s(times_of([5, 6], [0, 0], np.zeros(0, bool), sent=5)) == (0.0, 0.0)


def test_exposed_communication_is_split_by_what_was_waited_for() -> None:
    # FWD 1 s of which 0.5 s waits, SEND 1 s of which 0.25 s waits, BWD 2 s, ALLREDUCE 1 s;
    # then 1 s for sends, 4 s for all-reduces.
    stamps = [int(1e9) * s for s in (10, 11, 12, 14, 15, 20)]
    waits = [int(1e6) * ms for ms in (0, 500, 750, 750, 750, 5750)]  # cumulative: at each stamp
    times = times_of(stamps, waits, np.array([1, 0, 1, 0], bool), sent=int(16e9), recompute_ns=750_000_000)
    # A row: computed, elapsed, recomputation, waits for values, for sends and for all-reduces; then the peak of the memory.
    figures = Figures.of(Times.from_json(times.to_json()), torch.device("cpu"))
    assert figures.row()[:6] == (2.5, 4.0, 0.75, 0.5, 1.25, 4.0)
    measured = MeasuredTimes.of([figures.row(), (2.0, 5.0, 0.0, 1.0, 0.0, 3.0, 7.0)])
    assert measured.recompute_s == (0.75, 0)
    assert (measured.last_task_end, measured.bubbles) == (5.0, (0.5, 0.6))
    assert measured.value_waits_s == (0.5, 1.0) and measured.send_waits_s == (1.25, 0) and measured.all_reduce_waits_s == (4, 3)
    # This process has imported torch, so it holds more than 10 MB.
    assert measured.peak_memory_bytes[0] > 10**7 and measured.peak_memory_bytes[1] == 7


def test_the_table_of_the_ranks_has_the_last_peak_and_means_over_all_iterations_but_the_first() -> None:
    summary = RankSummary()
    assert summary.table() == ""
    for k, figure in enumerate((9.0, 0.001, 0.003)):  # a bubble of rank 1, and a wait of each rank in seconds
        iteration = MeasuredTimes(
            last_task_end=1.0,
            bubbles=(0.9, figure),
            recompute_s=(0, 0),
            value_waits_s=(figure, 0),
            send_waits_s=(0, figure),
            all_reduce_waits_s=(0, 0),
            peak_memory_bytes=(k, 10**6 * k),
        )
        summary.add(iteration)
        if k == 0:
            assert "9000.00 ms" in summary.table(), "the first iteration is shown while there is no other"
    head, first, second = (line.split() for line in summary.table().splitlines())
    assert head == ["rank", "bubble", "waits", "for", "values", "for", "sends", "for", "all-reduces", "peak", "memory"]
    assert first == ["0", "0.900", "2.00", "ms", "0.00", "ms", "0.00", "ms", "0", "MB"]
    assert second == ["1", "0.002", "0.00", "ms", "2.00", "ms", "0.00", "ms", "2", "MB"]
    # The column of recomputation is there once a rank has run a forward again.
    summary.add(replace(iteration, recompute_s=(0, 0.3)))
    assert [line.split()[2:4] for line in summary.table().splitlines()] == [
        ["recomputes", "waits"],
        ["0.00", "ms"],
        ["100.00", "ms"],
    ]


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory_bytes(torch.device("cpu"))
    block = bytearray(before + 50_000_000)
    block[::4096] = b"x" * len(block[::4096])  # a byte in each page, so that the system allocates it
    assert peak_memory_bytes(torch.device("cpu")) > before + 40_000_000
