"""Measures what the executor costs per instruction, without communication and without a second process.

The executor runs every rank of a schedule alone, over a transport whose messages arrive at once. A bare loop takes turns with
it: the same modules, called in the same order, with the calls of autograd that a loop written by hand needs. What the executor
itself costs is the difference of the two times, summed over the ranks and divided by the number of instructions.

    python -m tools.bench_instructions [SCHEDULE ...]     default: every schedule of the library
    python -m tools.bench_instructions --write            every schedule, and records the result in docs/benchmarks.md

Times are processor times, for each rank the median over the iterations. The exit status is 1 if the executor misses its goal
for a schedule, and 2 if a schedule cannot be compiled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Bwd, BwdInput, BwdWeight, Fwd
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.compiler.library import names
from chimerac.interpreter.runtime.batch import TensorBatch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.model import Model, Stage
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.runtime.split import Splitting
from chimerac.interpreter.transport import ranks_text
from chimerac.interpreter.transport.progress import Progress
from tests.proof.record import record, stamp, table
from tools.bench_models import SAMPLES, SEED, TINY, model_of, tokens_of
from tools.bench_ranks import PAGE

CPU = torch.device("cpu")
DEPTH, MICRO_BATCHES, ITERATIONS = 4, 64, 31
WARM_UPS = 3  # iterations before those that are measured
GOAL = 5.0  # microseconds per instruction
Key = tuple[int, int, int]  # a pipe, a stage and a micro-batch


class Arrived:
    """A transfer or a collective that is complete."""

    def wait(self) -> None:
        """Return at once."""


class Instant:
    """A transport of one rank whose messages arrive at once. Nothing is written to the buffer of a receive.

    Args:
        world: the number of ranks.
        device: where messages are.
    """

    waited_ns = 0
    rehearsal = waits_of_gpu = None

    def __init__(self, rank: int, world: int, device: torch.device = CPU) -> None:
        self.rank, self.world, self.device = rank, world, device
        self.progress, self._arrived = Progress(), Arrived()

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks as text for a message."""
        return ranks_text(ranks)

    def connect(self, program: Program) -> None:
        """Do nothing."""

    def send(self, peer: int, buffer: Tensor) -> None:
        """Do nothing."""

    def recv(self, peer: int, buffer: Tensor) -> Arrived:
        """Return a message that has arrived."""
        return self._arrived

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Arrived:
        """Return a collective that is complete."""
        return self._arrived

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> Arrived:
        """Return a collective that is complete."""
        return self._arrived

    def flush(self) -> None:
        """Do nothing."""

    def forget(self, buffer: Tensor) -> None:
        """Do nothing."""

    def all_reduce(self, buffer: Tensor) -> None:
        """Do nothing."""

    def all_gather(self, text: str) -> Sequence[str]:
        """Return this rank's text once for every rank."""
        return [text] * self.world


class BareLoop:
    """The tasks of a rank in the order of its stream, without an executor. A recomputation runs as a part of the backward.

    Attributes:
        received: one tensor of zeros, which stands for every value from another stage.
        calls: for each micro-batch of each task but recomputations, the method and its arguments: the stage and its number, the
            key, and whether the backward of this key is split.
    """

    def __init__(self, executor: Executor, model: Model, tokens: Tensor) -> None:
        self.stages, self.model, self.parts, self.divisor = executor.stages, model, tokens.split(SAMPLES), tokens.numel()
        self.last, self.device = executor.header.stages - 1, tokens.device
        self.received = torch.zeros(SAMPLES, TINY.length, TINY.hidden, device=tokens.device)
        self.calls: list[tuple[Callable[..., None], Stage, int, Key, bool]] = []
        split = {(i.pipe, i.stage, m) for i in executor.stream if isinstance(i, BwdInput) for m in i.micro_batches}
        for i in executor.stream:
            if isinstance(i, (Fwd, Bwd, BwdInput, BwdWeight)):
                method: Callable[..., None]
                if isinstance(i, Fwd):
                    method = self.forward_to_recompute if i.recompute else self.forward
                else:
                    method = self.backward_weight if isinstance(i, BwdWeight) else self.backward
                for m in i.micro_batches:
                    key = (i.pipe, i.stage, m)
                    self.calls.append((method, self.stages[i.stage], i.stage, key, key in split))
        # What each forward has left: its output and, with a split backward, its `Splitting`. None for a forward that is to be
        # recomputed.
        self.kept: dict[Key, tuple[Tensor, Splitting | None] | None] = {}

    def run(self) -> None:
        """Run one iteration."""
        for method, module, stage, key, is_split in self.calls:
            method(module, stage, key, is_split)
        self.kept.clear()
        if self.device != CPU:  # the executor waits for the device too, because it returns the loss
            torch.cuda.synchronize(self.device)

    def forward(self, module: Stage, stage: int, key: Key, is_split: bool) -> None:
        """Run a forward and keep its graph."""
        x = self.parts[key[2]] if stage == 0 else self.received.detach().requires_grad_()
        splitting = Splitting() if is_split else None
        with splitting or nullcontext():
            outputs = module(x)
            if stage == self.last:
                outputs = (self.model.loss(outputs, (self.parts[key[2]],))[0] / self.divisor,)
        outputs[0].detach()  # a real loop would send this, or add it to the loss of the iteration
        self.kept[key] = outputs[0], splitting

    def forward_to_recompute(self, module: Stage, stage: int, key: Key, is_split: bool) -> None:
        """Run a forward without a graph. Its backward runs it again."""
        with torch.no_grad():
            outputs = module(self.parts[key[2]] if stage == 0 else self.received)
            if stage == self.last:
                _ = self.model.loss(outputs, (self.parts[key[2]],))[0] / self.divisor
        self.kept[key] = None

    def backward(self, module: Stage, stage: int, key: Key, is_split: bool) -> None:
        """Run a full backward, or the half for the input."""
        if self.kept[key] is None:
            self.forward(module, stage, key, is_split)
        kept = self.kept[key]
        assert kept is not None
        torch.autograd.backward(kept[0], None if stage == self.last else self.received)

    def backward_weight(self, module: Stage, stage: int, key: Key, is_split: bool) -> None:
        """Run the half for the weights."""
        kept = self.kept[key]
        assert kept is not None
        assert kept[1] is not None
        kept[1].add_weight_gradients()


def measure(program: Program, device: torch.device = CPU) -> tuple[int, float, float]:
    """Return the number of instructions, the time of an iteration of the executor, and its excess over that of the bare loop.

    All are summed over the ranks, the times in seconds. On the CPU they are processor time. On a GPU they are wall-clock time,
    until the last kernel has ended.
    """
    clock = time.thread_time if device == CPU else time.perf_counter
    model, tokens = model_of(TINY), tokens_of(TINY, program.header.micro_batches).to(device)
    parts = partitioned(program, model, describe(model, SAMPLES))
    draws = [Draws(SEED, iteration=0, samples=())] * program.header.micro_batches
    batch = TensorBatch((tokens,), (tokens,), {}, program.header.micro_batches, divisors=(tokens.numel(),), draws=draws)
    count, executor_s, difference_s = 0, 0.0, 0.0
    for rank in range(program.header.ranks):
        held = [s for s in range(program.header.stages) if rank in program.header.holders([s])]
        stages = {s: parts.build(s, SEED).to(device) for s in held}
        executor = Executor(program, model, stages, parts.boundary_table, Instant(rank, program.header.ranks, device))
        bare = BareLoop(executor, model, tokens)
        executor_times, bare_times = [], []
        for number in range(WARM_UPS + ITERATIONS):
            begin = clock()
            executor.run(batch)
            middle = clock()
            bare.run()
            end = clock()
            for stage in stages.values():
                stage.zero_grad()
            if number >= WARM_UPS:
                executor_times.append(middle - begin)
                bare_times.append(end - middle)
        count += len(executor.stream)
        executor_s += statistics.median(executor_times)
        difference_s += statistics.median(a - b for a, b in zip(executor_times, bare_times, strict=True))
    return count, executor_s, difference_s


def main() -> int:
    """Measure and print, and record if asked to; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", default=names(), metavar="SCHEDULE")
    parser.add_argument("--write", action="store_true", help="record the table of all schedules in docs/benchmarks.md")
    options = parser.parse_args()
    if options.write and options.schedules != names():
        parser.error("--write records the table of all schedules: leave out the names")
    torch.set_num_threads(1)
    begin, rows, met = time.monotonic(), [], True
    for name in options.schedules:
        try:
            program = compile_schedule(name, {"D": DEPTH, "N": MICRO_BATCHES}).program
        except ChimeraError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        count, executor_s, difference_s = measure(program)
        own_us = difference_s / count * 1e6  # of an instruction, without what the bare loop needs
        met &= own_us <= GOAL
        rows.append([name, count, f"{executor_s / count * 1e6:.1f}", f"{own_us:.1f}", "met" if own_us <= GOAL else "missed"])
        print(*rows[-1], flush=True)
    head = ["schedule", "instructions", "µs per instruction", "of this the executor", f"goal: at most {GOAL:g}"]
    text = table(head, rows)
    print(text)
    if options.write:
        record("instructions", stamp(time.monotonic() - begin, SEED, ("torch",)) + text + "\n", PAGE)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
