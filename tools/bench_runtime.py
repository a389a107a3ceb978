"""Compares the speed of the interpreter with torch.distributed.pipelining, as medians of ratios.

Both run the same GPT on the same two gloo ranks with one thread each. The rounds are interleaved, so that other load on the
machine affects both. A second model computes almost nothing, so it measures the overhead of the runtime.

Usage: python -m tools.bench_runtime [ROUNDS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from chimerac.chimera_ir.partition import balanced
from chimerac.compiler import compile_schedule
from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.model import Model, Values, build_stage
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport.gloo import Gloo, join, leave

RANKS, SAMPLES, SEED = 2, 2, 0
OURS = {"gpipe": {}, "1f1b": {}, "interleaved": {"v": 2}, "chimera": {}}
THEIRS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, and its number of micro-batches."""

    blocks: int
    hidden: int
    heads: int
    length: int
    vocabulary: int
    micro_batches: int


GPT = Sizes(blocks=8, hidden=256, heads=4, length=128, vocabulary=1000, micro_batches=8)
TINY = Sizes(blocks=4, hidden=8, heads=1, length=1, vocabulary=8, micro_batches=64)


class Embedding(nn.Module):
    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(z.vocabulary, z.hidden), nn.Parameter(torch.zeros(z.length, z.hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position  # type: ignore[no-any-return]  # (b, L, hidden)


class Block(nn.Module):
    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.heads = z.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(z.hidden), nn.LayerNorm(z.hidden)
        self.qkv, self.merge = nn.Linear(z.hidden, 3 * z.hidden), nn.Linear(z.hidden, z.hidden)
        self.up, self.down = nn.Linear(z.hidden, 4 * z.hidden), nn.Linear(4 * z.hidden, z.hidden)

    def forward(self, x: Tensor) -> Tensor:
        b, length, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, length, hidden)
        x = x + self.merge(y)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))  # type: ignore[no-any-return]


class TinyLayer(nn.Module):
    """A layer that computes as little as possible."""

    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.linear = nn.Linear(z.hidden, z.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(z.hidden), nn.Linear(z.hidden, z.vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))  # type: ignore[no-any-return]


def loss(outputs: Values, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0].flatten(0, 1), targets.flatten(), reduction="sum")


def model_of(z: Sizes) -> Model:
    block = TinyLayer if z is TINY else Block
    makers: list[Any] = [partial(Embedding, z), *[partial(block, z)] * z.blocks, partial(Head, z)]

    def example(samples: int) -> tuple[Values, Tensor]:
        tokens = torch.zeros(samples, z.length, dtype=torch.int64)
        return (tokens,), tokens

    return Model("bench", tuple((f"layer {k}", make) for k, make in enumerate(makers)), loss, example)


@dataclass(frozen=True)
class Tokens:
    """The samples of an iteration, the same for all iterations."""

    tokens: Tensor

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        part = self.tokens[numbers[0] : numbers[-1] + 1]
        return (part,), part

    def valid_targets(self, numbers: Sequence[int]) -> int:
        return len(numbers) * self.tokens.shape[1]


def ours(name: str, z: Sizes, tokens: Tensor) -> tuple[Callable[[], None], int]:
    """Return a function that runs one iteration with our runtime, and the number of its instructions on this rank."""
    program = compile_schedule(name, {"D": RANKS, "N": z.micro_batches, **OURS[name]}).program
    model, h, transport = model_of(z), program.header, Gloo()
    parts = partitioned(program, model, describe(model, SAMPLES))
    held = [s for s in range(h.stages) if transport.rank in h.holders([s])]
    stages = {s: parts.build(s, SEED) for s in held}
    transport.connect(program)
    executor = Executor(program, model, stages, parts.table, transport)

    def iterate() -> None:
        executor.run(Batch(Tokens(tokens), SEED, 0, 0, 1, h.micro_batches, SAMPLES))
        for stage in stages.values():
            stage.zero_grad()

    return iterate, len(executor.stream)


def theirs(name: str, z: Sizes, tokens: Tensor) -> Callable[[], None]:
    """Return a function that runs one iteration with torch.distributed.pipelining."""
    model, rank = model_of(z), dist.get_rank()
    stages = RANKS * (2 if name == "interleaved" else 1)
    partition = balanced(describe(model, SAMPLES), stages).layers
    stages_of_rank = range(rank, stages, RANKS)
    modules = {s: nn.Sequential(*build_stage(model, partition[s], SEED).layers) for s in stages_of_rank}
    parts = [PipelineStage(modules[s], s, stages, torch.device("cpu")) for s in stages_of_rank]

    def mean(output: Tensor, target: Tensor) -> Tensor:
        return loss((output,), target) / tokens.numel()

    kind = THEIRS[name]
    schedule = kind(parts if name == "interleaved" else parts[0], z.micro_batches, loss_fn=mean, scale_grads=False)

    def iterate() -> None:
        schedule.step(*([tokens] if rank == 0 else []), **({"target": tokens, "losses": []} if rank == RANKS - 1 else {}))
        for module in modules.values():
            module.zero_grad()

    return iterate


def single_process(z: Sizes, tokens: Tensor) -> Callable[[], None]:
    """Return a function that runs one iteration on rank 0 alone, one micro-batch after another."""
    model = model_of(z)
    whole = build_stage(model, range(len(model.layers)), SEED)

    def iterate() -> None:
        if dist.get_rank() == 0:
            for part in tokens.split(SAMPLES):
                torch.autograd.backward(loss(whole(part), part) / tokens.numel())
            whole.zero_grad()

    return iterate


def measure(z: Sizes, rounds: int) -> dict[str, Any]:
    """Return the seconds of each round for every runner, and the instructions of this rank by schedule."""
    torch.manual_seed(SEED)
    tokens = torch.randint(0, z.vocabulary, (z.micro_batches * SAMPLES, z.length))
    runners: dict[str, Callable[[], None]] = {"single process": single_process(z, tokens)}
    counts = {}
    for name in OURS:
        runners[f"ours {name}"], counts[name] = ours(name, z, tokens)
        if name in THEIRS:
            runners[f"theirs {name}"] = theirs(name, z, tokens)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, run in runners.items():
            dist.barrier()
            start = time.perf_counter()
            run()
            dist.barrier()
            if number:  # the first round is a warm-up
                times[name].append(time.perf_counter() - start)
    return {"times": times, "counts": counts}


def child(out: Path, rounds: int) -> None:
    """Run as one rank; rank 0 writes the results to `out`."""
    torch.set_num_threads(1)
    join(timeout_s=120)
    found = {"gpt": measure(GPT, rounds), "tiny": measure(TINY, 3 * rounds)}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    leave()


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    """Return the median over all rounds of the time of `a` divided by the time of `b`."""
    return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))


def report(found: dict[str, Any]) -> str:
    """Return the tables of the results."""
    gpt, tiny, counts = found["gpt"]["times"], found["tiny"]["times"], found["tiny"]["counts"]
    lines = [f"GPT of {GPT.blocks} layers, two ranks, N={GPT.micro_batches}; medians of {len(gpt['ours 1f1b'])} rounds"]
    lines.append(f"{'':<14}{'time / one process':>20}{'time / torch':>16}")
    for name in OURS:
        ratio_to_torch = f"{ratio(gpt, f'ours {name}', f'theirs {name}'):16.3f}" if name in THEIRS else f"{'-':>16}"
        lines.append(f"{name:<14}{ratio(gpt, f'ours {name}', 'single process'):20.3f}{ratio_to_torch}")
    best = min(THEIRS, key=lambda name: statistics.median(gpt[f"theirs {name}"]))
    lines.append(f"time of chimera / time of {best}, the fastest of torch: {ratio(gpt, 'ours chimera', f'theirs {best}'):.3f}")
    lines.append(f"\nnothing to compute, two ranks, N={TINY.micro_batches}; medians of {len(tiny['ours 1f1b'])} rounds")
    lines.append(f"{'':<14}{'us per instruction':>20}{'time / torch':>16}")
    for name in OURS:
        ratio_to_torch = f"{ratio(tiny, f'ours {name}', f'theirs {name}'):16.3f}" if name in THEIRS else f"{'-':>16}"
        each = statistics.median(tiny[f"ours {name}"]) / counts[name] * 1e6
        lines.append(f"{name:<14}{each:20.1f}{ratio_to_torch}")
    return "\n".join(lines)


def main() -> None:
    """Start both ranks and print their results."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        root = str(Path(__file__).parents[1])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": root, "BENCH_OUT": str(out)}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        subprocess.run([*command, __file__, str(rounds)], env=environment, check=True)
        print(report(json.loads(out.read_text())))


if __name__ == "__main__":
    if "RANK" in os.environ:
        child(Path(os.environ["BENCH_OUT"]), int(sys.argv[1]))
    else:
        main()
