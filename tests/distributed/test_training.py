"""Training: every schedule has the loss curve of one process, and the command of run.py works."""

import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from chimerac.chimera_ir.host import processors
from chimerac.chimera_ir.instructions import Fwd
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.compiler.library import names
from chimerac.interpreter.data.text import load_text, split_text
from chimerac.interpreter.data.windows import Windows
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.start import start
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import combined
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training import reference
from chimerac.interpreter.training.evaluation import Evaluator
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.gpt import gpt
from tests.distributed.programs import TWO_RANKS
from tests.helpers import program
from tests.helpers_processes import RUN, TINY, TORCHRUN, run_command
from tests.helpers_text import small
from tests.helpers_trace import check_trace, phase, scalars
from tools import ROOT

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-4  # relative, float32
SAMPLES, LENGTH = 2, 32  # of a micro-batch; bytes of a sample
SETTINGS = Settings(iterations=20, seed=5, micro_batch=SAMPLES, rate=3e-3)
MODEL = gpt("gpt-nano", LENGTH, dropout=0.1)
TRAIN, HELD_OUT = (Windows(part, LENGTH, 5) for part in split_text(load_text(None), LENGTH))
EVALUATED = 21  # held-out samples; not a multiple of the samples of an iteration

SHIPPED: list[tuple[str, Mapping[str, int], int]] = [  # schedule, parameters, width
    ("chimera", {"D": 2, "N": 4}, 1),
    ("chimera", {"D": 4, "N": 4}, 1),
    ("chimera", {"D": 4, "N": 4, "f": 2}, 1),
    ("chimera", {"D": 2, "N": 2}, 2),
    ("chimera_any", {"D": 4, "N": 5}, 1),
    ("gpipe", {"D": 4, "N": 4}, 1),
    ("1f1b", {"D": 4, "N": 4}, 1),
    ("dapple", {"D": 4, "N": 4, "policy": 2}, 1),
    ("interleaved", {"D": 2, "N": 4, "v": 2}, 1),
    ("looped_bfs", {"D": 2, "N": 4, "v": 2}, 1),
    ("gems", {"D": 4, "N": 4}, 1),
    ("hanayo", {"D": 2, "N": 4}, 1),
    ("bitpipe", {"D": 2, "N": 4}, 1),
    ("chimera_doubling", {"D": 4, "N": 4}, 1),
    ("chimera_fill", {"D": 4, "N": 8}, 1),
    ("chimera_doubling", {"D": 4, "N": 4, "again": 1}, 1),
    ("chimera_halving", {"D": 4, "N": 8}, 1),
    ("chimera_recompute", {"D": 4, "N": 4}, 1),
    ("chimera_zb", {"D": 4, "N": 4}, 1),
    ("chimera_zb", {"D": 2, "N": 2}, 2),
    ("zb_h1", {"D": 4, "N": 4}, 1),
    ("zb_h2", {"D": 2, "N": 4}, 1),
    ("zb_v", {"D": 2, "N": 4}, 1),
    ("dualpipe", {"D": 2, "N": 4}, 1),
    ("dualpipev", {"D": 2, "N": 4}, 1),
]


@cache
def one_process(samples: int) -> tuple[list[tuple[float, float]], float]:
    """Return loss and gradient norm of each iteration of one process, and its held-out loss.

    Args:
        samples: of an iteration.
    """
    whole = reference.whole_model(MODEL, SETTINGS.seed)
    curve = [(r.loss, r.norm) for r in reference.train(whole, MODEL, TRAIN, SETTINGS, samples)]
    numbers = range(EVALUATED)
    with torch.no_grad():
        losses = MODEL.loss(whole.eval()(*HELD_OUT.inputs(numbers)), HELD_OUT.targets(numbers))
    return curve, float(combined(losses, HELD_OUT.valid_targets(numbers)))


def test_every_shipped_schedule_is_here() -> None:
    assert {name for name, _, _ in SHIPPED} == set(names())


@pytest.mark.parametrize(("name", "parameters", "width"), SHIPPED)
def test_twenty_iterations_with_dropout_are_those_of_one_process(name: str, parameters: Mapping[str, int], width: int) -> None:
    compiled = compile_schedule(name, parameters, width).program
    size = samples_per_micro_batch(compiled, SAMPLES)
    description = describe(MODEL, size)

    def rank(transport: Transport) -> tuple[list[tuple[float, float]], float]:
        trainer = Trainer(compiled, partitioned(compiled, MODEL, description), TRAIN, transport, SETTINGS)
        results = [trainer.update(t, trainer.gradients(t)) for t in range(SETTINGS.iterations)]
        trainer.pipeline.check_copies()
        evaluator = Evaluator(trainer, HELD_OUT, EVALUATED)
        return [(r.loss, r.norm) for r in results], evaluator.evaluate().loss

    curve, held_out = one_process(width * parameters["N"] * size)
    assert curve[-1][0] < curve[0][0] - 0.5, "the loss must decrease, or equal curves prove little"
    for found, found_held_out in run_in_loopback(compiled, rank, seed=7):
        assert found == [pytest.approx(expected, rel=TOLERANCE) for expected in curve]
        assert found_held_out == pytest.approx(held_out, rel=TOLERANCE)


PIPE = "pipe main { stage s on rank s%s   micro_batches N }"
SPLIT = "I(s, m) at 3*m + 3*D - 2*s - 2   W(s, m) at 3*m + 3*D + s - 1"  # rules for split backwards
# By name: two programs with the same micro-batches, of which every stage runs its backwards in the same order. Only the second
# recomputes.
VERSIONS: dict[str, tuple[Program, Program]] = {
    "chimera_doubling": tuple(program("chimera_doubling", D=4, N=6, again=k) for k in (0, 1)),
    "chimera_halving": tuple(program("chimera_halving", D=4, N=8, again=k) for k in (0, 1)),
    "early": (program("chimera_any", D=4, N=6), program("chimera_recompute", D=4, N=6, early=2)),
    "some stages": tuple(small({"D": 4, "N": 4}, pipe=PIPE % clause) for clause in ("", " recompute when s > 0")),
    "some stages, split": tuple(
        small({"D": 4, "N": 4}, pipe=PIPE % clause, rule1="F(s, m) at s + 3*m", rule2=SPLIT)
        for clause in ("", " recompute when s > 0")
    ),
}  # type: ignore[assignment]


@pytest.mark.parametrize("name", VERSIONS)
def test_recomputation_draws_the_same_dropout(name: str) -> None:
    def trained(program: Program, dropout: float) -> tuple[list[float], list[torch.Tensor]]:
        model = gpt("gpt-nano", LENGTH, dropout=dropout)
        description = describe(model, samples_per_micro_batch(program, SAMPLES))

        def rank(transport: Transport) -> tuple[float, list[torch.Tensor | None]]:
            trainer = Trainer(program, partitioned(program, model, description), TRAIN, transport, SETTINGS)
            loss = trainer.gradients(0)
            return loss, [p.grad for stage in trainer.pipeline.stages.values() for p in stage.parameters()]

        found = run_in_loopback(program, rank, seed=3)
        return [loss for loss, _ in found], [g for _, grads in found for g in grads if g is not None]

    keeping, recomputing = VERSIONS[name]
    assert any(i.recompute for g in range(recomputing.world) for i in recomputing.stream(g) if isinstance(i, Fwd))
    losses, gradients = trained(keeping, 0.5)
    losses_recomputing, gradients_recomputing = trained(recomputing, 0.5)
    assert losses == losses_recomputing
    assert all(a.dtype == torch.float32 and a.equal(b) for a, b in zip(gradients, gradients_recomputing, strict=True))
    # Dropout changes the gradient of every parameter, so equal gradients show equal dropout.
    assert not any(a.equal(b) for a, b in zip(gradients, trained(keeping, 0)[1], strict=True))


def numbers_of(table: str) -> dict[str, float]:
    """Return the numbers of the table that run.py prints at the end, by the names of their rows."""
    return {k: float(v.replace(",", "")) for k, v in re.findall(r"^(\S.*?) {2,}([0-9.,e+-]+)", table, re.MULTILINE)}


@pytest.fixture(scope="module")
def log_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "run.jsonl"


def lines_of(log: Path) -> list[Any]:
    """Return the lines of a log about iterations, and check the first line, which is about the run."""
    header, *lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert header["format"] == "chimera-log" and header["settings"]["seed"] == 5
    return lines


OPTIONS = [*TINY, "--micro-batch", "2", "--dropout", "0.1", "--seed", "5", "--lr", "3e-3", "--iterations", "20"]


@pytest.fixture(scope="module")
def run(log_path: Path) -> Any:
    """Run the command once on two real ranks. The schedule and D are not given: they are chimera and the number of ranks."""
    evaluation = ["--eval-every", "10", "--eval-samples", str(EVALUATED)]
    files = ["--log-file", str(log_path), "--trace", str(log_path.parent / "trace"), "--tensorboard", str(log_path.parent)]
    return run_command(*TORCHRUN, RUN, "-p", "N=4", *OPTIONS, *evaluation, *files, "--profile-ranges")


def test_real_ranks_log_the_curve_of_one_process(run: Any, log_path: Path) -> None:
    assert (run.returncode, run.stderr) == (0, "")
    lines = lines_of(log_path)
    curve, held_out = one_process(4 * SAMPLES)  # four micro-batches
    assert [(x["loss"], x["gradient_norm"]) for x in lines] == [pytest.approx(expected, rel=TOLERANCE) for expected in curve]
    assert [x["iteration"] for x in lines if "held_out_loss" in x] == [10, 20]
    assert lines[-1]["held_out_loss"] == pytest.approx(held_out, rel=TOLERANCE)


def test_the_log_says_what_every_rank_measured(run: Any, log_path: Path) -> None:
    lines = lines_of(log_path)
    assert max(x["rate"] for x in lines) == lines[1]["rate"] == 3e-3  # the rate increases in the first tenth of the iterations
    for x in lines:
        assert x["tokens_per_second"] == pytest.approx(4 * SAMPLES * LENGTH / x["iteration_s"])  # of four micro-batches
        assert len(x["bubble"]) == len(x["peak_memory_bytes"]) == 2
        waits = [x[name] for name in ("value_wait_s", "send_wait_s", "all_reduce_wait_s")]
        assert all(len(ranks) == 2 and min(ranks) >= 0 for ranks in waits)
        assert max(x["value_wait_s"]) > 0, "Chimera's ranks wait for each other's values"
        assert max(x["all_reduce_wait_s"]) > 0, "Chimera's ranks wait for the all-reduces"
        assert all(0 <= bubble < 1 for bubble in x["bubble"]) and min(x["peak_memory_bytes"]) > 10**7
        assert x.get("oversubscribed", False) == (processors() < 2)


def test_the_trace_of_real_ranks_has_every_instruction_and_message(run: Any, log_path: Path) -> None:
    events = check_trace(log_path.parent / "trace", compile_schedule("chimera", {"D": 2, "N": 4}).program)
    begins, ends = ({e["id"]: e["ts"] for e in phase(events, ph)} for ph in "sf")  # where arrows start and finish
    assert all(begins[arrow] < ends[arrow] for arrow in begins), "the ranks of a host have one clock"
    last = lines_of(log_path)[-1]
    waits = [e for e in phase(events, "X") if e["cat"] == "wait"]
    for rank in range(2):
        at_the_end = sum(e["dur"] for e in waits if e["pid"] == rank and e["name"] == "waits for the all-reduces")
        assert at_the_end / 1e6 == pytest.approx(last["all_reduce_wait_s"][rank], abs=2e-6)
        for_values = sum(e["dur"] for e in waits if e["pid"] == rank and " <- " in e["name"])
        assert for_values / 1e6 == pytest.approx(last["value_wait_s"][rank], rel=0.1, abs=1e-4)


def test_tensorboard_has_the_losses_of_the_log(run: Any, log_path: Path) -> None:
    found = scalars(log_path.parent)
    lines = lines_of(log_path)
    assert found["loss"] == [(x["iteration"], pytest.approx(x["loss"])) for x in lines]
    assert len(found["held_out_loss"]) == 2 and len(found["bubble/rank 1"]) == len(lines)


def test_the_table_says_what_was_learned(run: Any, log_path: Path) -> None:
    lines = lines_of(log_path)
    found = numbers_of(run.stdout)
    assert "chimera: 2 ranks, 2 stages, 4 micro-batches of 2 samples" in run.stdout
    assert found["loss at the start"] == pytest.approx(lines[0]["loss"], abs=1e-3)
    assert found["loss at the end"] == pytest.approx(lines[-1]["loss"], abs=1e-3)
    assert found["held-out loss"] == pytest.approx(lines[-1]["held_out_loss"], abs=1e-3)
    assert 2.5 < found["unigram entropy"] < 4 and found["tokens per second"] > 0
    assert found["gradient difference"] < TOLERANCE
    assert len(re.findall("held-out loss", run.stdout)) == 4, "two evaluations, the table, and its remark on the bigram model"
    *_, head, first, second = run.stdout.splitlines()
    assert head.split()[:2] == ["rank", "bubble"] and (first.split()[0], second.split()[0]) == ("0", "1")
    peak = lines[-1]["peak_memory_bytes"][1]
    assert re.search(rf"{peak / 1e6:,.0f} MB$", second)


def test_loopback_trains_the_same_without_torchrun(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # D has the schedule's default, four ranks, but samples and weights are those of the run on two ranks.
    log = tmp_path / "log"
    printed = in_loopback(capsys, "-p", "N=4", *OPTIONS, "--eval-samples", str(EVALUATED), "--log-file", str(log))
    assert "chimera: 4 ranks" in printed
    in_one_process, on_two_ranks = numbers_of(printed), numbers_of(run.stdout)
    for name in ("loss at the start", "loss at the end", "held-out loss", "unigram entropy"):
        assert in_one_process[name] == pytest.approx(on_two_ranks[name], abs=1.1e-3), name  # three decimals are printed
    assert lines_of(log)[0].get("oversubscribed", False) == (processors() < 4)


def test_a_schedule_trains_a_gpt(capsys: pytest.CaptureFixture[str]) -> None:
    printed = in_loopback(capsys, "-p", "D=2", "-p", "N=8", *TINY, "--iterations", "60", "--lr", "1e-2")
    assert re.search(r"gradients equal one process: largest relative difference [0-9.]+e-0[5-9]", printed)
    found = numbers_of(printed)
    assert 5.3 < found["loss at the start"] < 5.8  # log 256 = 5.55: the loss of an untrained model
    assert found["loss at the end"] < found["loss at the start"] - 2 and found["held-out loss"] < found["unigram entropy"]
    assert len(re.findall("^iteration", printed, re.MULTILINE)) == 11, "every sixth iteration, and the last one"


def in_loopback(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Run the command in this process with --loopback; return what it prints."""
    settings = parse_options([*options, "--loopback"])
    assert start(make_plan(settings), settings) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_program_runs_where_the_compiler_is_not(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['chimerac.compiler'] = None\n")
    program_file = tmp_path / "p.json"
    program_file.write_text(program_to_json(TWO_RANKS["two replicas"]))
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    options = [*TINY, "--iterations", "2", "--dropout", "0.1", "--micro-batch", "2"]
    run = run_command(*TORCHRUN, RUN, str(program_file), *options, **environment)
    assert run.returncode == 0 and len(run.stderr.splitlines()) == 1
    assert "is not verified again, and nothing is evaluated" in run.stderr
    assert "two_replicas: 2 ranks, 2 stages, 2 micro-batches of 2 samples" in run.stdout
    # 0.0e+00, or at most 9.9e-05
    assert re.search(r"gradients equal one process: largest relative difference (0\.0e\+00|[0-9.]+e-0[5-9])", run.stdout)
    assert re.search(r"held-out loss +- +not measured", run.stdout)
    refused = run_command(sys.executable, RUN, **environment)
    assert refused.returncode == 1 and "error[E813]" in refused.stderr


def test_timed_stages_take_the_time_that_the_simulator_says(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    run = run_command(*TORCHRUN, RUN, "-p", "N=4", *TINY, "--timed", "30", "--iterations", "3", "--trace", str(trace))
    assert (run.returncode, run.stderr) == (0, "")
    (predicted, measured), (predicted_bubble, measured_bubble) = (
        map(float, re.findall(r"[0-9.]+", line)[:2])
        for line in re.findall(r"^(?:last task ends|bubble ratio).*$", run.stdout, re.MULTILINE)
    )
    unit_s, units = 0.03, 12  # the time of a unit of cost (--timed 30), and how many units each rank computes
    # The tolerance is wide; tools/bench_timed.py measures the precision.
    simulated = compile_schedule("chimera", {"D": 2, "N": 4})
    assert predicted == pytest.approx(unit_s * simulated.timing.end.max(), abs=1e-3)
    assert predicted * 0.99 < measured < predicted * 1.5
    tasks = [e for e in phase(check_trace(trace, simulated.program), "X") if e["cat"] == "task"]
    traced_us = max(e["ts"] + e["dur"] for e in tasks) - min(e["ts"] for e in tasks)
    assert 2 * units * unit_s * 1e6 * 0.99 < sum(e["dur"] for e in tasks) <= 2 * traced_us  # of two ranks
    assert predicted_bubble == pytest.approx(1 - units * unit_s / predicted, abs=1e-3)
    assert abs(measured_bubble - predicted_bubble) < 0.3
