"""Measuring a profile: the times of layers and links that follow from the measurements, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.profile import TIMES
from chimerac.interpreter.profiling.__main__ import main
from chimerac.interpreter.profiling.layers import ALIKE, WARM_UP, Call, CpuClock, LayerBench, Seconds, chosen_layers
from chimerac.interpreter.profiling.links import SIZES, fitted
from chimerac.interpreter.runtime.describe import describe
from chimerac.models.families import preset

CPU = torch.device("cpu")
MODEL = preset("gpt-nano/5", sequence_length=16)  # 7 layers: embedding, five equal blocks, head
DESCRIPTION = describe(MODEL, samples=2)


class CountingClock:
    """Counts the calls of the measured layers, and returns times that do not depend on how long calls really take.

    Operation k of the measured layer n takes 1 + k + 10 n seconds, and a forward before a split backward 3 seconds more. An
    operation of an empty stage takes 1 second, and its forward before a split backward `empty_split_forward` seconds. In the
    iterations of the warm-up, everything takes a hundred times as long.
    """

    def __init__(self, empty_split_forward: float = 1.0) -> None:
        self.empty_split_forward = empty_split_forward
        self.calls = Counter[tuple[Op, int]]()
        self.passes = 0

    def seconds(self, calls: Iterable[Call]) -> Seconds:
        seconds = {}
        listed = list(calls)
        # Each iteration has three passes through the layers, and three through empty stages.
        factor = 100 if self.passes < 6 * WARM_UP else 1
        self.passes += 1
        is_empty = max(number for _, number, _ in listed) == 2  # there are three empty stages, and five measured layers
        is_split = any(op is Op.BWD_INPUT for op, _, _ in listed)
        for op, number, call in listed:
            call()
            if not is_empty:
                self.calls[op, number] += 1
            longer = 3 if is_split and op is Op.FWD else 0
            empty = self.empty_split_forward if is_split and op is Op.FWD else 1.0
            seconds[op, number] = factor * (empty if is_empty else 1.0 + op + 10 * number + longer)
        return seconds


def test_of_equal_layers_that_follow_each_other_the_first_three_are_measured() -> None:
    assert chosen_layers(DESCRIPTION.layers) == [0, 1, 2, 3, 6] and ALIKE == 3
    # Layer 3 now differs from the other blocks, so at most two equal ones follow each other.
    changed = (*DESCRIPTION.layers[:3], replace(DESCRIPTION.layers[3], kept_bytes=1), *DESCRIPTION.layers[4:])
    assert chosen_layers(changed) == [0, 1, 2, 3, 4, 5, 6]


def test_the_overhead_is_subtracted_and_equal_layers_get_the_mean_of_their_times() -> None:
    bench, clock = LayerBench(MODEL, DESCRIPTION, CPU), CountingClock()
    bench._clock = clock
    measured = bench.measure(repeats=2)
    # In how many of the three passes each operation runs.
    passes = {Op.FWD: 3, Op.BWD: 2, Op.BWD_INPUT: 1, Op.BWD_WEIGHT: 1, Op.RECOMPUTE: 1}
    assert clock.calls == {(op, n): count * (WARM_UP + 2) for op, count in passes.items() for n in range(5)}
    for op, name in TIMES.items():
        assert getattr(measured.overhead, name) == 1
        times = [getattr(layer, name) for layer in measured.layers]
        first = op + 3 if op is Op.BWD_INPUT else op  # 3 seconds of the forward before it
        assert times == [first, *[first + 20] * 5, first + 40]  # blocks: the mean of first + 10, first + 20 and first + 30
    assert [x.activation_bytes for x in measured.layers] == [x.kept_bytes for x in DESCRIPTION.layers]


def test_no_time_of_a_stage_without_work_is_below_0() -> None:
    bench = LayerBench(MODEL, DESCRIPTION, CPU)
    bench._clock = CountingClock(empty_split_forward=-3.0)  # 4 seconds faster than before a full backward
    assert bench.measure(repeats=2).overhead.input_s == 0


def test_the_passes_of_a_real_clock_take_time_and_leave_no_values_behind() -> None:
    bench = LayerBench(MODEL, DESCRIPTION, CPU)
    assert isinstance(bench._clock, CpuClock)
    measured = bench.measure(repeats=1)
    # The embedding is left out: it may take no longer than the overhead, which is subtracted.
    assert all(x.forward_s > 0 and x.backward_s > 0 for x in measured.layers[1:])
    works = (*bench._layers._full, *bench._layers._split)
    slots = [slot for work in works for slot in (work.input, work.input_gradient) if slot is not None]
    assert not any(work.ran for work in works) and all(slot.values is None for slot in slots)


def test_a_model_whose_targets_are_not_known_is_refused() -> None:
    example = MODEL.example(2)
    without_targets = replace(MODEL, example=lambda samples: example._replace(targets=None))
    with pytest.raises(ValueError, match=r"the targets of gpt-nano/5 are not known.*give the targets to `cut`"):
        LayerBench(without_targets, DESCRIPTION, CPU)


def test_latency_and_bandwidth_are_those_of_the_line_through_the_times() -> None:
    latency, rate = fitted({size: 2e-5 + size / 3e9 for size in SIZES})
    assert (latency, rate) == (pytest.approx(2e-5, rel=1e-4), pytest.approx(3e9, rel=1e-4))
    # Here each time is wrong by 10 %. Each size counts with its relative error, so the small sizes still give the latency.
    noisy = {size: (2e-5 + size / 3e9) * (1.1 if k % 2 else 0.9) for k, size in enumerate(SIZES)}
    latency, rate = fitted(noisy)
    assert (latency, rate) == (pytest.approx(2e-5, rel=0.15), pytest.approx(3e9, rel=0.15))
    assert fitted({size: size / 1e9 - 1e-10 for size in SIZES})[0] == 0, "no latency is below 0"
    equal = dict.fromkeys(SIZES, 1e-5)
    assert fitted(equal) == (pytest.approx(1e-5), pytest.approx(1e18)), "1e18 bytes/s is the most that a profile allows"


@pytest.mark.parametrize(
    ("words", "status", "fact"),
    [
        (["--ranks", "1"], 2, "--ranks is at least 2"),
        (["--micro-batch", "2,0"], 2, "--micro-batch 2,0: expected numbers of samples"),
        (["--micro-batch", "two"], 2, "expected numbers of samples"),
        (["--repeats", "0"], 2, "--seq-len and --repeats are at least 1"),
        (["--model", "gpt-nono"], 1, "E801"),
        (["--model", "gpt2-nano", "--seq-len", "4096"], 1, "E821"),
        (["--model", "gpt-nano", "--layers", "blocks"], 2, "--layers is for a model of your own, and 'gpt-nano' is none"),
        (["--loss", "next-token"], 2, "--loss is for a model of your own, and 'gpt-small' is none"),
        (["--modell", "gpt-nano"], 2, "did you mean '--model'"),
        (["-o", "no/such/folder/p.json"], 1, "E811"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_reason(
    words: list[str], status: int, fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        returned = main(["-o", str(tmp_path / "p.json"), *words])
    except SystemExit as stop:
        returned = int(stop.code or 0)
    assert returned == status and fact in capsys.readouterr().err
