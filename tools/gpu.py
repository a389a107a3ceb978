"""Runs the checks that need a GPU, and prints a table of what they find.

    python -m tools.gpu            run the checks and print the table
    python -m tools.gpu --write    and record the table in docs/gpu.md

docs/gpu.md says what each check does. The exit status is 1 if a check fails, and 2 without a CUDA device: then nothing is run
and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch

from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.interpreter.experiments.host import this_host
from chimerac.interpreter.runtime.batch import TensorBatch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.overlap import second_stream_of
from chimerac.interpreter.runtime.partitioned import partitioned
from tests.proof.record import record, stamp, table
from tools import ROOT
from tools.bench_instructions import DEPTH, GOAL, MICRO_BATCHES, WARM_UPS, Instant, measure
from tools.bench_models import GPT, SAMPLES, model_of, tokens_of
from tools.shown_models import SEED, case_of

PAGE = ROOT / "docs" / "gpu.md"
LIMIT_S = 900.0  # of one command
MODEL, MICRO_BATCH, LENGTH = "gpt2-mini", 8, 128
ROUNDS = 21  # of the comparison of one CUDA stream with two
OVERHEAD_OF = ("1f1b", "chimera", "zb_h1")  # plain backwards, two pipes, split backwards
LOSS_TOLERANCE = 0.05  # of the bf16 loss, relative to the fp32 loss
EQUAL = "gradients equal one process"  # run.py prints this if it is so, and fails otherwise


class FailedError(Exception):
    """A check has failed. The message says what was found."""


@dataclass(frozen=True)
class Outcome:
    """What a check has found.

    Attributes:
        passed: None if it was not run.
    """

    check: str
    found: str
    passed: bool | None


def run_command(*arguments: str) -> str:
    """Run a Python command in the checkout; return what it prints on stdout.

    Raises FailedError if the command fails, with the last lines of its output, and if it does not end within LIMIT_S.
    """
    try:
        run = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"no result after {LIMIT_S:g} s: {' '.join(arguments)}") from None
    if run.returncode:
        last_lines = [text.strip().splitlines()[-1] for text in (run.stdout, run.stderr) if text.strip()]
        raise FailedError(f"exit status {run.returncode}: {' '.join(arguments)}: {'; '.join(last_lines)}")
    return run.stdout


def train(schedule: str, sizes: Mapping[str, int], *options: str) -> str:
    """Run interpreter/run.py on as many ranks as the program has; return its output.

    Args:
        sizes: the schedule's parameters.
    """
    parameters = [word for name, value in sizes.items() for word in ("-p", f"{name}={value}")]
    return run_command("interpreter/run.py", f"schedules/{schedule}.sched", *parameters, *options)


def tests() -> str:
    """Run the tests that need a GPU; return the last line of pytest."""
    summary = (
        run_command("-m", "pytest", "-q", "-n", "4", "-m", "gpu", "--everything", "tests/distributed").strip().splitlines()[-1]
    )
    if " passed" not in summary:
        raise FailedError(f"no test was run: {summary}")
    return summary


def gradients(transport: str, ranks: int) -> str:
    """Compare the gradients of `ranks` ranks on GPUs with those of one process.

    Args:
        transport: as for `--transport`.
    """
    for schedule in ("1f1b", "chimera"):
        options = ("--model", "gpt-nano", "--iterations", "3", "--check-gradients", "--transport", transport)
        if EQUAL not in train(schedule, {"D": ranks, "N": 2 * ranks}, *options):
            raise FailedError(f"{schedule} on {ranks} ranks: the gradients were not compared")
    return f"1f1b and chimera on {ranks} ranks: {EQUAL}"


def shared_gpu() -> str:
    """Compare the gradients of four ranks, with messages through pinned host memory. With one GPU all of them share it."""
    return gradients("staged", 4)


def nccl() -> str:
    """Compare the gradients of ranks with a GPU each, over NCCL: four ranks, or two if there are fewer GPUs."""
    return gradients("nccl", 4 if torch.cuda.device_count() >= 4 else 2)


def bf16() -> str:
    """Train in fp32 and in bf16, and compare the losses."""
    losses = {}
    for dtype in ("fp32", "bf16"):
        lines = logged("--iterations", "20", "--dtype", dtype)
        losses[dtype] = float(lines[-1]["loss"])  # type: ignore[arg-type]
    difference = abs(losses["bf16"] / losses["fp32"] - 1)
    found = f"loss after 20 iterations {losses['fp32']:.4f} in fp32, {losses['bf16']:.4f} in bf16"
    if not difference <= LOSS_TOLERANCE:  # also if it is NaN
        raise FailedError(f"{found}: they differ by more than {LOSS_TOLERANCE:.0%}")
    return found


def logged(*options: str) -> list[dict[str, object]]:
    """Train MODEL with chimera on two ranks, which may share a GPU; return the lines of the log, one for each iteration."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        sizes = ("--model", MODEL, "--micro-batch", str(MICRO_BATCH), "--seq-len", str(LENGTH))
        train("chimera", {"D": 2, "N": 4}, *sizes, "--transport", "staged", "--log-file", str(log), *options)
        _, *lines = log.read_text(encoding="utf-8").splitlines()  # the first line is the header
        return [json.loads(line) for line in lines]


def predicted_bytes(device: torch.device) -> list[int]:
    """Return the predicted peak memory of each rank of `logged`, in bytes."""
    case = case_of(MODEL, MICRO_BATCH, LENGTH)
    program, parted = case.parted("chimera", {"D": 2, "N": 4}, describe(case.model, MICRO_BATCH, device))
    of_ranks = memory(program, parted.description, OptimizerState(Fraction(OPTIMIZERS["adamw"])))
    return [of_rank.peak for of_rank in of_ranks]


def peak_memory() -> str:
    """Compare the peak memory of each rank with the predicted one. There is no goal."""
    measured: list[int] = logged("--iterations", "3", "--no-check-gradients")[-1]["peak_memory_bytes"]  # type: ignore[assignment]
    pairs = zip(predicted_bytes(torch.device("cuda")), measured, strict=True)
    return "; ".join(
        f"rank {rank}: predicted {predicted / 2**20:,.0f} MiB, measured {peak / 2**20:,.0f} MiB, ratio {predicted / peak:.3f}"
        for rank, (predicted, peak) in enumerate(pairs)
    )


def overhead() -> str:
    """Measure what the executor costs for each instruction, as tools/bench_instructions.py does on the CPU."""
    costs_us = {}
    for name in OVERHEAD_OF:
        program = compile_schedule(name, {"D": DEPTH, "N": MICRO_BATCHES}).program
        count, _, difference_s = measure(program, torch.device("cuda"))
        costs_us[name] = difference_s / count * 1e6
    found = ", ".join(f"{name} {cost:.1f} µs" for name, cost in costs_us.items())
    found += f"; for comparison, torch launches a kernel in {launch_us():.1f} µs"
    if max(costs_us.values()) > GOAL:
        raise FailedError(f"{found}: more than {GOAL:g} µs")
    return found


def launch_us() -> float:
    """Return how long the process takes to add two numbers on the GPU, in microseconds, without waiting for the result."""
    x = torch.zeros(1, device="cuda")
    times_s = []
    for _ in range(1000):
        begin = time.perf_counter()
        x + x
        times_s.append(time.perf_counter() - begin)
    return statistics.median(times_s) * 1e6


def overlapped_pairs() -> str:
    """Compare the time of a rank's iteration with its overlapped pairs on two CUDA streams and on one. There is no goal.

    The rank runs alone, over a transport whose messages arrive at once.
    """
    device, sizes, micro_batches = torch.device("cuda"), replace(GPT, length=LENGTH), 16
    model, tokens = model_of(sizes), tokens_of(sizes, micro_batches).to(device)
    program = compile_schedule("dualpipe", {"D": 2, "N": micro_batches}).program
    parts = partitioned(program, model, describe(model, SAMPLES))
    draws = [Draws(SEED, iteration=0, samples=())] * micro_batches
    batch = TensorBatch((tokens,), (tokens,), {}, micro_batches, divisors=(tokens.numel(),), draws=draws)
    executors = []
    for second_stream in (second_stream_of, no_second_stream):
        stages = {s: parts.build(s, SEED).to(device) for s in range(2)}
        transport = Instant(rank=0, world=2, device=device)
        executors.append(Executor(program, model, stages, parts.boundary_table, transport, second_stream=second_stream))
    rounds = []
    for _ in range(WARM_UPS + ROUNDS):
        times_s = []
        for executor in executors:
            begin = time.perf_counter()
            executor.run(batch)
            torch.cuda.synchronize(device)
            times_s.append(time.perf_counter() - begin)
        rounds.append(times_s)
    one_ms = statistics.median(one_s for _, one_s in rounds[WARM_UPS:]) * 1e3
    ratio = statistics.median(two_s / one_s for two_s, one_s in rounds[WARM_UPS:])
    return (
        f"dualpipe, {micro_batches} micro-batches of {SAMPLES} samples: {one_ms:.1f} ms on one stream, {ratio:.3f} of it on two"
    )


def no_second_stream(device: torch.device) -> None:
    """Return no second stream: the tasks of a pair run one after the other."""


# The name of a check, the number of GPUs that it needs, and the check, which returns what it has found.
CHECKS: Sequence[tuple[str, int, Callable[[], str]]] = (
    ("tests", 1, tests),
    ("ranks that share a GPU", 1, shared_gpu),
    ("NCCL", 2, nccl),
    ("bf16", 1, bf16),
    ("memory", 1, peak_memory),
    ("overhead", 1, overhead),
    ("overlapped pairs", 1, overlapped_pairs),
)


def outcomes(gpus: int, checks: Sequence[tuple[str, int, Callable[[], str]]] = CHECKS) -> list[Outcome]:
    """Run the checks, one after the other.

    Args:
        gpus: how many GPUs this host has.
    """
    found = []
    for name, needed, check in checks:
        print(f"{name} ...", file=sys.stderr, flush=True)
        if gpus < needed:
            found.append(Outcome(name, f"needs {needed} GPUs, found {gpus}", None))
            continue
        try:
            found.append(Outcome(name, check(), True))
        except FailedError as error:
            found.append(Outcome(name, str(error), False))
        except Exception as error:  # the other checks are run nevertheless
            first_line = str(error).partition("\n")[0]
            found.append(Outcome(name, f"{type(error).__name__}: {first_line}", False))
    return found


def report(found: Sequence[Outcome], hardware_text: str) -> str:
    """Return the recorded text: the hardware, and a table with a row for each check."""
    words = {True: "passed", False: "failed", None: "not run"}
    rows = [(o.check, o.found.replace("|", "\\|"), words[o.passed]) for o in found]
    return f"{hardware_text}\n\n" + table(("check", "found", ""), rows)


def hardware() -> str:
    """Return the GPUs of this host, their memory, the version of CUDA, and the processor, as text."""
    devices = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
    gpus = ", ".join(f"{device.name} ({device.total_memory / 2**30:.0f} GiB)" for device in devices)
    host = this_host()
    return f"GPUs: {gpus}. CUDA {torch.version.cuda}.\nHost: {host['processor']}, {host['processors']} processors."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the table in docs/gpu.md")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            f"error: no CUDA device: torch {torch.__version__} finds none here, so no check was run and nothing was written\n"
            "help: run this command on a host with a GPU, with a torch that is built for CUDA",
            file=sys.stderr,
        )
        return 2
    begin = time.monotonic()
    found = outcomes(torch.cuda.device_count())
    text = report(found, hardware())
    print(text)
    if options.write:
        record("gpu", stamp(time.monotonic() - begin, SEED, ("torch", "numpy")) + text, PAGE)
    return 1 if any(o.passed is False for o in found) else 0


if __name__ == "__main__":
    sys.exit(main())
