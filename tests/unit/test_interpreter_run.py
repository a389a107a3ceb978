"""run.py besides training: its output and measurements, timed stages, and the plan that it makes from its options."""

import errno
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.model import Tensor as Spec
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import Costs
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler import compile_schedule, compile_text, simulate
from chimerac.compiler.command.main import main as chimerac
from chimerac.compiler.explain.entries import entries
from chimerac.compiler.library import find
from chimerac.interpreter import run
from chimerac.interpreter.data.text import CHECKED_BYTES, MAPPED_BYTES
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.record import Record, check_folder, check_output
from chimerac.interpreter.launch.summary import RankSummary
from chimerac.interpreter.launch.workloads import model_of
from chimerac.interpreter.runtime.measured import Figures, MeasuredTimes, peak_memory_bytes
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.runtime.times import IterationTimes, bubbles, computed_and_elapsed_s, times_of
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.timed import Comparison, Sleeper, ZeroSamples, median_times, timed_model
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone
from tests.helpers_trace import scalars

ROOT = Path(__file__).parents[2]

# --- start --------------------------------------------------------------------------------------------------------------


def test_users_modules_are_found_before_those_of_the_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(_: bool) -> None:
        raise StopError

    monkeypatch.setattr(run, "_settings", stop)
    own, rest = str(Path(run.__file__).parent), list(sys.path)
    for path, expected in (
        ([own, *rest], rest),
        ([str(tmp_path), own, *rest], [str(tmp_path), own, *rest]),
        (["", *rest], ["", *rest]),
    ):
        monkeypatch.setattr(sys, "path", path)
        with pytest.raises(StopError):
            run.main()
        assert sys.path == expected, "only the first entry, and only the folder of run.py, is removed"


# --- output -------------------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_only_rank_0_prints_and_the_bar_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, terminal, lines, bars in ((0, Terminal(), 1, True), (1, Terminal(), 0, False), (0, StringIO(), 1, False)):
        monkeypatch.setattr(sys, "stderr", terminal)
        record = Record(rank, iterations=2)
        record.start()
        record.draw(1, 2.5, "12,346 tokens/s")
        record.print_text("words")
        shown = terminal.getvalue()
        assert shown.endswith("\r") == bars, "the bar is erased before the words"
        record.draw(2, 1.0, "1 tokens/s")
        assert capsys.readouterr().out == "words\n" * lines, "piped output has no trace of the bar"
        assert ("0/2" in shown) == bars and "\x1b[?25l" not in shown, "the cursor stays: a rank may be killed at any time"


def test_the_bar_shows_loss_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    record = Record(0, iterations=20)
    record.start(done=4)
    assert record._bar is not None
    record._bar.mininterval = 0  # seconds between two drawings
    record.draw(5, 2.5, "12,346 tokens/s")
    assert re.search(r"5/20 .*loss 2.500, 12,346 tokens/s", terminal.getvalue())
    record.close()
    assert terminal.getvalue().endswith("\r"), "the bar is erased: a finding that follows begins a line"
    record.write({"iteration": 5})  # nothing is open any more
    record.draw(6, 2.5, 1.0)


# --- the log ------------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_of_the_log_is_written_at_once_after_a_line_about_the_run(tmp_path: Path) -> None:
    record = Record(0, 2, tmp_path / "log", {"settings": {"lr": 0.1}})
    Record(1, 2, tmp_path / "other").write({"iteration": 1})
    record.write({"iteration": 1, "loss": 2.5})
    first, second = lines_of(tmp_path / "log")
    assert first.pop("started").endswith("+00:00")
    assert first == {"format": "chimera-log", "version": 1, "settings": {"lr": 0.1}}
    assert second == {"iteration": 1, "loss": 2.5}
    assert not (tmp_path / "other").exists()


def test_a_log_is_appended_to_also_after_a_line_that_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for end in ("\n", '\n{"iteration": 2, "lo'):
        log.write_text('{"iteration": 1}' + end)
        Record(0, 2, log).write({"iteration": 3})
        lines = log.read_text().splitlines()
        assert lines[0] == '{"iteration": 1}' and json.loads(lines[-1]) == {"iteration": 3}
        assert len(lines) == (3 if end == "\n" else 4) and json.loads(lines[-2])["format"] == "chimera-log"


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    Record(0, 2, tmp_path / "log").write({"loss": float("nan"), "bubble": [0.5, float("inf")]})
    assert lines_of(tmp_path / "log")[-1] == {"loss": None, "bubble": [0.5, None]}


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(0, 2, Path("/dev/full"))
    record.write({"iteration": 1})
    expected = "the log /dev/full can no longer be written: no space left on device; the run goes on\n"
    assert capsys.readouterr().out == expected
    record = Record(0, 2, tmp_path / "log")
    record.write({"iteration": 1})

    class Full:
        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    record._log = Full()  # type: ignore[assignment]
    for iteration in (2, 3):
        record.write({"iteration": iteration})
    assert capsys.readouterr().out.count("can no longer be written: no space left on device") == 1


def test_a_log_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path / "gone" / "log", "the folder .*gone does not exist"),
        (tmp_path / "file" / "log", "not a directory"),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(ChimeraError, match=f"E811: the log .* cannot be written: {why}"):
            plan("--log-file", str(path), "--model", "unknown", monkeypatch=monkeypatch)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ChimeraError, match=r"E811: .*permission denied"):
        check_output(tmp_path / "log", "--log-file")
    assert not (tmp_path / "log").exists()
    monkeypatch.setenv("RANK", "1")  # only rank 0 writes
    plan("--log-file", "/nowhere/log", monkeypatch=monkeypatch)


def test_a_trace_or_a_tensorboard_folder_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    cases = [
        ("--trace", tmp_path / "gone" / "trace.json", "the trace .* cannot be written: the folder .*gone does not exist"),
        ("--trace", tmp_path, "the trace .* cannot be written: it is a folder"),
        ("--tensorboard", tmp_path / "file", "the TensorBoard folder .* cannot be written: .*file is not a folder"),
        ("--tensorboard", tmp_path / "file" / "runs", "the TensorBoard folder .*: .*file is not a folder"),
    ]
    for option, path, message in cases:
        with pytest.raises(ChimeraError, match=f"E811: {message}") as caught:
            plan(option, str(path), "--model", "unknown", monkeypatch=monkeypatch)
        assert f"give {option} another path" in str(caught.value.diagnostics[0].help)
    check_folder(tmp_path / "new" / "runs", "--tensorboard")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ChimeraError, match=r"E811: .*permission denied for"):
        check_folder(tmp_path / "new", "--tensorboard")


def test_tensorboard_has_the_numbers_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "one"
    for first in (1, 3):  # two runs in one folder
        record = Record(0, 4, None, {"settings": {}}, folder)
        Record(1, 4, tensorboard=tmp_path / "other")
        record.write({"iteration": first, "loss": first / 2, "bubble": [0.25, 0.5], "oversubscribed": True})
        assert scalars(folder)["loss"][-1] == (first, first / 2), "it is in the file before the run ends"
        record.write({"iteration": first + 1, "loss": float("nan"), "bubble": (0.5, 0.75), "peak_memory_bytes": [2**40]})
        record.close()
        record.write({"iteration": 9, "loss": 9.0})
    found = scalars(folder)
    assert sorted(found) == ["bubble/rank 0", "bubble/rank 1", "loss", "peak_memory_bytes/rank 0"]
    assert found["bubble/rank 1"] == [(1, 0.5), (2, 0.75), (3, 0.5), (4, 0.75)]
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4] and found["loss"][1][1] != found["loss"][1][1]
    assert found["peak_memory_bytes/rank 0"][0] == (2, 2**40) and not (tmp_path / "other").exists()
    assert capsys.readouterr().out == ""


def test_a_full_disk_ends_tensorboard_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(0, 4, tmp_path / "log", {}, tmp_path / "runs")
    assert record._scalars is not None
    full = record._scalars._file = record._scalars._records._writer = open("/dev/full", "wb")  # noqa: SIM115
    for iteration in (1, 2):
        record.write({"iteration": iteration, "loss": 2.5})
    out, err = capsys.readouterr()
    assert re.fullmatch(
        "the TensorBoard folder .*runs can no longer be written: no space left on device; the run goes on\n", out
    )
    assert err == "" and full.closed and [line.get("iteration") for line in lines_of(tmp_path / "log")] == [None, 1, 2]


def test_tensorboard_without_its_package_is_refused_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ChimeraError, match="E840: --tensorboard needs the package tensorboard, which is not installed"):
        plan("--tensorboard", str(tmp_path), "--model", "unknown", monkeypatch=monkeypatch)


def test_the_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Record(0, 1).table([("loss", "2.5", "nats"), ("tokens per second", "1,000", "")])
    assert capsys.readouterr().out == "\nloss                 2.5   nats\ntokens per second  1,000\n"


# --- measurements -------------------------------------------------------------------------------------------------------


def test_bubbles_count_the_time_of_every_rank_until_the_last_is_done() -> None:
    assert bubbles([3.0, 2.0], [3.5, 4.0]) == [0.25, 0.5]
    assert bubbles([0.0], [0.0]) == [0.0]


def test_waiting_and_the_epilogue_are_not_computing() -> None:
    # FWD 1 s of which 0.5 s waits, SEND 1 s, BWD 2 s, ALLREDUCE 1 s, epilogue 5 s.
    stamps = [int(1e9) * s for s in (10, 11, 12, 14, 15, 20)]
    waits = [0, 500_000_000, 500_000_000, 500_000_000, 500_000_000, 600_000_000]
    times = times_of(stamps, waits, np.array([1, 0, 1, 0], bool), sent=int(16e9))
    assert computed_and_elapsed_s(times) == (2.5, 4.0)
    assert computed_and_elapsed_s(times_of([5, 6], [0, 0], np.zeros(0, bool), sent=5)) == (0.0, 0.0)


def test_exposed_communication_is_split_by_what_was_waited_for() -> None:
    # FWD 1 s of which 0.5 s waits, SEND 1 s of which 0.25 s waits, BWD 2 s, ALLREDUCE 1 s; then 1 s for sends, 4 s for sums.
    stamps = [int(1e9) * s for s in (10, 11, 12, 14, 15, 20)]
    waits = [int(1e6) * ms for ms in (0, 500, 750, 750, 750, 5750)]
    figures = Figures.of(times_of(stamps, waits, np.array([1, 0, 1, 0], bool), sent=int(16e9)), torch.device("cpu"))
    assert figures.row()[:5] == (2.5, 4.0, 0.5, 1.25, 4.0)
    measured = MeasuredTimes.of([figures.row(), (2.0, 5.0, 1.0, 0.0, 3.0, 7.0)])
    assert (measured.makespan, measured.bubbles) == (5.0, (0.5, 0.6))
    assert measured.value_waits_s == (0.5, 1.0) and measured.send_waits_s == (1.25, 0) and measured.sum_waits_s == (4, 3)
    assert measured.peak_memory_bytes[0] > 10**7 and measured.peak_memory_bytes[1] == 7


def test_the_table_of_the_ranks_has_means_without_the_first_iteration() -> None:
    summary = RankSummary()
    assert summary.table() == ""
    for k, wait in enumerate((9.0, 0.001, 0.003)):
        summary.add(MeasuredTimes(1.0, (0.9, wait), (wait, 0), (0, wait), (0, 0), (k, 10**6 * k)))
        if k == 0:
            assert "9000.00 ms" in summary.table()
    head, first, second = (line.split() for line in summary.table().splitlines())
    assert head == ["rank", "bubble", "waits", "for", "values", "for", "sends", "for", "sums", "peak", "memory"]
    assert first == ["0", "0.900", "2.00", "ms", "0.00", "ms", "0.00", "ms", "0", "MB"]
    assert second == ["1", "0.002", "0.00", "ms", "2.00", "ms", "0.00", "ms", "2", "MB"]


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory_bytes(torch.device("cpu"))
    block = bytearray(before + 50_000_000)
    block[::4096] = b"x" * len(block[::4096])
    assert peak_memory_bytes(torch.device("cpu")) > before + 40_000_000


# --- timed stages -------------------------------------------------------------------------------------------------------


def test_a_task_that_does_not_wait_begins_when_the_one_before_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited_ns = [0.0], [0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s + 0.003))
    sleeper = Sleeper(0.02)
    now[0] = 1.0
    sleeper.begin(lambda: waited_ns[0])
    for _ in range(10):
        now[0] += 0.001  # the work of the runtime
        sleeper.sleep(2)
    assert now[0] == pytest.approx(1.4 + 0.003)
    now[0], waited_ns[0] = now[0] + 5.0, 5 * 10**9
    sleeper.sleep(2)
    assert now[0] == pytest.approx(1.4 + 0.003 + 5.0 + 0.04 + 0.003)


def slept_units(text: str, costs: Costs) -> list[list[float]]:
    """Run two iterations of a schedule for one rank on timed stages; return the units that each slept, task by task."""
    program = replace(compile_text(text).program, costs=costs)
    slept: list[list[float]] = []

    class Fast(Sleeper):
        def sleep(self, units: int) -> None:
            slept[-1].append(units)

    model, description = timed_model(program, Spec((2, 3), "float32", True), 2, Fast(1.0))
    trainer = Trainer(program, partitioned(program, model, description), ZeroSamples(), Alone(), Settings(1, 0, 2, 1e-3))
    for iteration in range(2):
        slept.append([])
        trainer.update(iteration, trainer.gradients(iteration))
    return slept


def test_each_task_takes_its_cost() -> None:
    """One rank with every kind of task. All costs are different."""
    text = """schedule alone
param N = 2
ranks 1
stages 2
pipe main { stage s on rank 0   micro_batches N }
order ticks {
    F(s, m) at 10*m + s
    B(s, m) when m == 0 at 5 - s
    I(s, m) when m == 1 at 15 - s
    W(s, m) when m == 1 at 20 + s
}
"""
    costs = Costs((1, 10), (100, 1000), (7, 70), (20000, 50000))
    assert slept_units(text, costs) == [[1, 10, 1000, 100, 1, 10, 70, 7, 20000, 50000]] * 2


def test_timed_stages_run_a_schedule_that_ties_parameters() -> None:
    text = find("1f1b").text.replace("order ticks", "tied shared on stages 0, D - 1\norder ticks")
    program = compile_text(text, {"D": 2, "N": 2}).program
    model, description = timed_model(program, Spec((2, 3), "float32", True), 2, Sleeper(0.0))
    parts = partitioned(program.with_header(tied=()), model, description)

    def rank(transport: Transport) -> float:
        return Trainer(program, parts, ZeroSamples(), transport, Settings(1, 0, 2, 1e-3)).gradients(0)

    assert len(run_in_loopback(program, rank)) == 2


def test_the_median_is_one_of_the_iterations() -> None:
    a, b, c = (IterationTimes(x, (0.0,)) for x in (3.0, 1.0, 2.0))
    assert median_times([a, b, c]) is c and median_times([a, b]) is b and median_times([a]) is a


def test_a_forward_that_is_run_again_takes_the_cost_of_recomputation() -> None:
    """By a task R for micro-batch 1, in the backward for micro-batch 0. Stage 1 keeps everything."""
    text = """schedule alone
ranks 1
stages 2
pipe main { stage s on rank 0 recompute when s == 0   micro_batches 2 }
order ticks {
    F(s, m) at 10*m + s
    R(s, m) when m == 1 and s == 0 at 12
    B(s, m) at 29 - 10*m - s
}
"""
    costs = Costs((1, 10), (100, 1000), (7, 70), (20000, 50000), RECOMPUTE=(3, 30))
    assert slept_units(text, costs) == [[1, 10, 1, 10, 3, 1000, 100, 1000, 3, 100]] * 2


def test_predicted_and_measured_are_in_one_table() -> None:
    table = Comparison(IterationTimes(2.0, (0.25, 0.5)), IterationTimes(2.1, (0.3, 0.5))).table().splitlines()
    assert table[0].split() == ["predicted", "measured"]
    assert table[1].split() == ["makespan", "2.000", "s", "2.100", "s", "+5.0", "%"]
    assert table[2].split()[2:4] == ["0.375", "0.400"]
    assert table[4].split() == ["bubble", "of", "rank", "1", "0.500", "0.500"]
    assert Comparison(None, IterationTimes(2.1, (0.3,))).table().splitlines()[1].split() == ["makespan", "-", "2.100", "s"]


# --- from options to a plan ---------------------------------------------------------------------------------------------


def plan(*words: str, world: int | None = None, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    if world is not None:
        monkeypatch.setitem(os.environ, "WORLD_SIZE", str(world))
    return make_plan(parse_options(list(words)))


def test_d_follows_from_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(world=6, monkeypatch=monkeypatch).program.header.parameters["D"] == 6
    assert plan("--width", "3", world=6, monkeypatch=monkeypatch).program.header.ranks == 2
    assert plan("-p", "D=8", world=6, monkeypatch=monkeypatch).program.world == 8
    assert plan("--loopback", world=6, monkeypatch=monkeypatch).program.world == 4
    with pytest.raises(ChimeraError, match="E210") as error:
        plan(world=5, monkeypatch=monkeypatch)
    assert error.value.diagnostics[0].notes == ("D = 5 follows from the 5 processes that were started",)


def test_a_folder_of_more_files_than_the_limit_of_open_files_is_read(tmp_path: Path) -> None:
    """Each mapped file stays open, and the process raises its limit."""
    for k in range(70):
        with (tmp_path / f"{k}.txt").open("wb") as file:
            file.write(b"x" * CHECKED_BYTES)
            file.truncate(MAPPED_BYTES)  # sparse
    options = ["--loopback", "--model", "gpt-nano", "--iterations", "1", "--eval-samples", "1", "--data", str(tmp_path)]
    command = ["bash", "-c", 'ulimit -Sn 64 && exec "$@"', "-", sys.executable, "interpreter/run.py", "-p", "D=2", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "") and "70 files read" in run.stdout


def test_a_schedule_without_d_keeps_its_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "two.sched"
    path.write_text(
        "schedule two\nranks 2\nstages 2\npipe main { stage s on rank s   micro_batches 1 }\n"
        "order ticks {\n    F(s, m) at s\n    B(s, m) at 3 - s\n}\n"
    )
    assert plan(str(path), world=6, monkeypatch=monkeypatch).program.world == 2


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_compiled_program_is_read_in_either_form_and_verified(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = compile_schedule("chimera", {"D": 2}).program
    text = {"json": program_to_json, "text": program_to_text}[form](program)
    path = tmp_path / "program"
    path.write_text(text)
    found = plan(str(path), monkeypatch=monkeypatch)
    assert found.program == program and found.evaluation.header.kind == "evaluation" and found.predicted is None
    for words in (["-p", "D=2"], ["--width", "1"]):
        with pytest.raises(ChimeraError, match="E808"):
            plan(str(path), *words, monkeypatch=monkeypatch)
    path.write_text(text.replace('"peer": 1', '"peer": 0') if form == "json" else text.replace("-> 1", "-> 0"))
    with pytest.raises(ChimeraError, match="E4"):
        plan(str(path), monkeypatch=monkeypatch)


def test_a_timed_plan_has_the_simulators_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan("--timed", "20", monkeypatch=monkeypatch)
    assert found.evaluation is None
    assert found.predicted == IterationTimes(16, (0.25,) * 4)


def test_mistakes_are_found_in_the_order_of_their_cost_and_without_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("short")
    for words, code in (
        (["--log-file", "/nowhere/log", "--model", "gpt-smal"], "E811"),
        (["--export", "/nowhere/w.pt", "--model", "gpt-smal"], "E835"),
        (["--model", "gpt-smal", "-p", "N=3"], "E801"),
        (["--model", "gpt-small/0"], "E801"),
        (["--model", "gpt-small/-1"], "E801"),
        (["--model", "gpt-small/10001"], "E801"),
        (["--data", str(tmp_path / "gone"), "-p", "N=3"], "E802"),
        (["--data", str(tmp_path / "short"), "-p", "N=3"], "E803"),
        (["-p", "N=3"], "E210"),
        (["schedules/chimera_halving.sched", "--micro-batch", "3"], "E804"),
        (["schedules/zb_v.sched", "-p", "D=4", "--model", "gpt-small"], "E705"),
    ):
        with pytest.raises(ChimeraError) as error:
            plan(*words, monkeypatch=monkeypatch)
        assert [d.code for d in error.value.diagnostics] == [code]


def test_planning_imports_no_torch() -> None:
    code = """
import sys
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
make_plan(parse_options(["--data", "LICENSE", "--loopback", "--export", "w.safetensors"]))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_default_model_has_a_layer_for_each_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for words, name in (
        (["schedules/zb_v.sched", "-p", "D=4"], "gpt-small/6"),
        (["schedules/zb_v.sched", "-p", "D=2"], "gpt-small"),
        (["schedules/gpipe.sched", "-p", "D=40", "--micro-batch", "1"], "gpt-small/38"),
        (["schedules/zb_v.sched", "-p", "D=2", "--model", "gpt-nano/9"], "gpt-nano/9"),
    ):
        settings = parse_options(words)
        program = make_plan(settings).program
        model = model_of(settings, program)
        assert model.name == name
        assert len(model.layers) >= program.header.stages
    # A program that is cut for a model trains that model.
    for named, expected in (("gpt-micro", "gpt-micro"), ("mine", "gpt-small")):
        cut = replace(program, partition=Partition(named, ((0, 2), (2, 3), (3, 4), (4, 6))))
        assert model_of(parse_options([]), cut).name == expected


# --- machines -----------------------------------------------------------------------------------------------------------


def crossing_program(tmp_path: Path) -> Path:
    """Return a program in which both ranks send before they receive. It ends on machines whose SENDs need not wait."""
    path = tmp_path / "crossing.streams"
    path.write_text(entries()["E816"].wrong)
    return path


def test_a_program_that_hangs_on_the_transport_is_refused_and_arranging_it_was_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = crossing_program(tmp_path)
    for words in ([], ["--transport", "nccl"], ["--timed", "5"]):
        with pytest.raises(ChimeraError, match="E816") as error:
            plan(str(path), *words, monkeypatch=monkeypatch)
        (found,) = error.value.diagnostics
        transport = "nccl" if "nccl" in words else "gloo"
        assert found.message == f"{path} is for the posted machine, and ranks over {transport} run window(0)"
        assert found.notes == ("deadlock on the window(0) machine: ranks 0, 1 wait for each other in a cycle",)
    command, result = found.help.removeprefix("run ").split(", then use arranged.json: ")
    assert result == "it was verified for the window machine"
    output = tmp_path / "arranged.json"
    assert chimerac([*command.replace("arranged.json", str(output)).split()[1:]]) == 0
    assert plan(str(output), monkeypatch=monkeypatch).evaluation.header.machine == "window"
    # Loopback runs every machine, and evaluates on the same one.
    assert plan(str(path), "--loopback", monkeypatch=monkeypatch).evaluation.header.machine == "posted"
    assert plan(str(path), "--loopback", "--machine", "serial", monkeypatch=monkeypatch).evaluation.header.machine == "serial"


def test_the_help_says_so_if_arranging_does_not_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One buffer is enough for RECVs that are posted late, but not for those of `--for window`."""
    path = crossing_program(tmp_path)
    text = path.read_text().replace("pipe down", "limits receive_buffers=1\npipe down", 1)
    for value, sent in (
        ("grad down s0 m0 <- 1", "SEND grad up s0 m1 -> 1"),
        ("grad up s0 m1 <- 0", "SEND grad down s0 m0 -> 0"),
    ):
        text = text.replace(f"; RECV {value}", "").replace(sent, f"{sent}; RECV {value}")
    path.write_text(text)
    with pytest.raises(ChimeraError, match="E816") as error:
        plan(str(path), monkeypatch=monkeypatch)
    assert error.value.diagnostics[0].help == "add --loopback; --for window was tried, and results in E460"


@pytest.mark.parametrize("machine", ["posted", "window", "rendezvous", "paired", "serial"])
def test_a_program_that_terminates_on_the_transport_runs_whatever_machine_its_header_names(
    machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = compile_schedule("chimera", {"D": 2}, machine=machine, arrange=True).program  # type: ignore[arg-type]
    path = tmp_path / "p.json"
    path.write_text(program_to_json(program))
    found = plan(str(path), monkeypatch=monkeypatch)
    assert found.program == program and found.evaluation.header.machine == "window"
    timed = plan(str(path), "--timed", "5", monkeypatch=monkeypatch).predicted
    assert timed.makespan == simulate(program.with_header(machine="window")).makespan


def test_without_the_compiler_only_programs_for_posted_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    program = compile_schedule("chimera", {"D": 2}).program
    monkeypatch.setitem(sys.modules, "chimerac.interpreter.launch.compiling", None)
    for machine in ("window", "rendezvous", "paired", "serial"):
        path.write_text(program_to_json(program.with_header(machine=machine)))
        assert plan(str(path), monkeypatch=monkeypatch).program.header.machine == machine
    path.write_text(program_to_json(program.with_header(machine="posted")))
    with pytest.raises(ChimeraError, match="E816") as error:
        plan(str(path), monkeypatch=monkeypatch)
    assert error.value.diagnostics[0].notes == ("only the compiler can check whether it ends there",)
    assert plan(str(path), "--loopback", monkeypatch=monkeypatch).program.header.machine == "posted"
