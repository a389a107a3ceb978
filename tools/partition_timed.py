"""Compares the slowest stage under the partitioner's cuts with that under equal numbers of blocks, from timed layers.

    python -m tools.partition_timed            print the table
    python -m tools.partition_timed --write    and record it in docs/partition.md

A forward and a backward of GPT-2-64's embedding, of one block and of its head are timed, each as a stage of one layer. Times
are processor times of this process, so other processes do not count. The time of a stage is the sum of its layers' times. With
equal blocks, every stage has the same number of blocks; the first stage also has the embedding, and the last one the head. The
partitioner cuts by the estimated costs of the description, or by the times. The exit status is 1 if the slowest stage of one of
its cuts is slower than the slowest stage with equal blocks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from chimerac.chimera_ir.partition import balanced
from chimerac.compiler.descriptions import find_model
from chimerac.interpreter.runtime.model import Model, Values, combined
from chimerac.models.families import preset
from tests.proof.record import record, stamp, table
from tools import ROOT

MODEL, LENGTH, SAMPLES, ROUNDS, SEED = "gpt2-64", 632, 1, 2, 0  # LENGTH: tokens of a sample; ROUNDS: those that are timed
DEPTHS = (8, 16, 32, 64)
PAGE = ROOT / "docs" / "partition.md"
HEAD = ("stages", "equal blocks, ms", "cut by estimate, ms", "equal / cut", "cut by times, ms", "equal / cut")


def layer_s(model: Model, layer: int, inputs: Values | None) -> float:
    """Return the median processor time of a forward and a backward of a layer, in seconds; of the last layer with the loss.

    Args:
        inputs: what a layer that is not the first reads; None for the first.
    """
    stage, example = model.build_stage(range(layer, layer + 1), SEED), model.example(SAMPLES)
    taken = []
    for round_number in range(ROUNDS + 1):
        given = example.inputs if inputs is None else tuple(t.detach().requires_grad_() for t in inputs)
        start = time.process_time()
        outputs = stage(*given)
        if layer == len(model.layer_names) - 1 and example.targets is not None:
            torch.autograd.backward(combined(model.loss(outputs, example.targets), [1.0]))  # 1.0 divides the loss
        else:
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        if round_number > 0:  # round 0 allocates the gradients
            taken.append(time.process_time() - start)
    return statistics.median(taken)


def layer_times(name: str, length: int) -> list[float]:
    """Return the seconds of each layer of a preset of GPT-2, whose blocks are equal: one of them is timed."""
    model = preset(name, length)
    outputs = model.build_stage(range(1), SEED)(*model.example(SAMPLES).inputs)
    values: tuple[Tensor, ...] = tuple(torch.randn_like(t) for t in outputs)
    last = len(model.layer_names) - 1
    first_s, block_s, head_s = layer_s(model, 0, None), layer_s(model, 1, values), layer_s(model, last, values)
    return [first_s, *[block_s] * (last - 1), head_s]


def slowest(times: Sequence[float], cuts: Sequence[int]) -> float:
    """Return the time of the slowest stage.

    Args:
        cuts: as in `Partition` (chimera_ir/partition.py).
    """
    return max(sum(times[a:b]) for a, b in pairwise(cuts))


def equal_blocks(layers: int, stages: int) -> list[int]:
    """Return the cuts with equal numbers of blocks.

    Args:
        layers: the number of blocks, plus two for the embedding and the head.

    Raises ValueError if the blocks cannot be shared equally.
    """
    blocks, rest = divmod(layers - 2, stages)
    if rest or not blocks:
        raise ValueError(f"{layers - 2} blocks cannot be shared equally by {stages} stages")
    return [0, *(1 + blocks * s for s in range(1, stages)), layers]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the table in docs/partition.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, times = time.monotonic(), layer_times(MODEL, LENGTH)
    description = find_model(MODEL, samples=lambda b: b, micro_batch=SAMPLES, seq_len=LENGTH)
    microseconds = [round(t * 1e6) for t in times]
    rows, is_never_slower = [], True
    for stages in DEPTHS:
        equal_s = slowest(times, equal_blocks(len(times), stages))
        cells = [f"{1000 * equal_s:.0f}"]
        for costs in (None, microseconds):  # None: the estimated costs of the description
            cut_s = slowest(times, balanced(description, stages, costs).cuts)
            cells += [f"{1000 * cut_s:.0f}", f"{equal_s / cut_s:.2f}"]
            is_never_slower &= cut_s <= equal_s
        rows.append((stages, *cells))
    embedding, block, head = (f"{1000 * t:.0f} ms" for t in (times[0], times[1], times[-1]))
    text = f"{MODEL}, one sample of {LENGTH} tokens: embedding {embedding}, one block {block}, head {head}.\n\n" + table(
        HEAD, rows
    )
    print(text)
    if options.write:
        record("partition_timed", stamp(time.monotonic() - start, SEED, ("torch",)) + text, PAGE)
    return 0 if is_never_slower else 1


if __name__ == "__main__":
    sys.exit(main())
