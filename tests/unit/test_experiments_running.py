"""Running experiments: resuming after an interruption, failed runs, several runners at once, figures, SLURM.

A stub replaces run.py, except in the last test.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from chimerac.interpreter.experiments import __main__ as command
from chimerac.interpreter.experiments import local, slurm
from chimerac.interpreter.launch.startup import INTERRUPTED
from tests.helpers_command import SIGINT_ON
from tests.helpers_processes import have_ended
from tools import ROOT

LIMIT_S = 60  # the longest that a test waits for anything
SHORT_ANSWER_S = 2.0  # in place of slurm.ANSWER_S: in this time bash starts and reads a file, also on a busy host
# An experiment. In the stub the setting `timeout` is the duration of a run in milliseconds; a run with `skip-nonfinite` fails.
TEXT = """
title: Small
settings: {{timeout: {milliseconds}}}
grid:
  parameters: {{D: 2, N: 2}}
  seed: [{seeds}]
compare: {{x: seed, groups: [schedule, N]}}
"""


class Event(NamedTuple):
    """The start or the end of a run.

    Attributes:
        what: start or end.
        run: the name of its folder.
        process: the id of its process.
    """

    what: str
    run: str
    process: int


class Folder:
    """A folder with an experiment, its results, and the journal of the stub."""

    def __init__(self, path: Path) -> None:
        self.path, self.journal, self.file = path, path / "journal", path / "small.yaml"
        self.results = path / "runs" / "small"
        self.environment = {**os.environ, "STUB_JOURNAL": str(self.journal), "TMPDIR": str(path), "PYTHONPATH": str(ROOT)}

    def write(self, seeds: str = "0, 1, 2", milliseconds: int = 1, more: str = "") -> None:
        """Write the experiment: one run for each seed.

        Args:
            milliseconds: how long a run takes.
            more: further lines of the file.
        """
        self.file.write_text(TEXT.format(seeds=seeds, milliseconds=milliseconds) + more)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a runner as a process of its own."""
        command = [sys.executable, str(ROOT / "tests/stub_experiments.py"), str(self.file), *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.path, env=self.environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=SIGINT_ON
        )

    def run(self, *options: str, code: int = 0) -> str:
        """Run a runner in this process, check that its exit status is `code`, and return what it printed.

        A separate process would take seconds to import what writes the report.
        """
        stub, printed = ROOT / "tests/stub_run.py", io.StringIO()
        with (
            patch.object(local, "SCRIPT", stub),
            patch.dict(os.environ, self.environment, clear=True),
            chdir(self.path),
            redirect_stdout(printed),
            redirect_stderr(printed),
        ):
            try:
                status = command.main([str(self.file), *options])
            except SystemExit as end:  # a wrong command line
                status = end.code
        assert status == code, printed.getvalue()
        return printed.getvalue()

    def events(self) -> list[Event]:
        """Return what the stub noted, in order."""
        if not self.journal.exists():
            return []
        lines = (line.split() for line in self.journal.read_text().splitlines())
        return [Event(what, run, int(process)) for _time, what, run, process in lines]

    def table(self) -> list[dict[str, str]]:
        """Return the rows of the table of results."""
        with (self.results / "table.csv").open() as file:
            return list(csv.DictReader(file))

    def seeds(self) -> list[str]:
        """Return the seeds of the runs that are in the table."""
        return sorted(row["seed"] for row in self.table())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def commands(folder: Folder) -> Path:
    """Return a folder that is first on the PATH of the runner, for stubs of commands."""
    path = folder.path / "bin"
    path.mkdir()
    folder.environment["PATH"] = f"{path}:{os.environ['PATH']}"
    return path


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, at most LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_runner_runs_what_is_not_done(folder: Folder) -> None:
    folder.write("0, 1")
    listed = folder.run("--dry-run")
    assert "2 of 2 runs are pending" in listed and not folder.events()
    printed = folder.run()
    assert "1/2  chimera D=2 N=2 seed=0   done in" in printed and "left" in printed
    assert len(folder.events()) == 4 and folder.seeds() == ["0", "1"], "each run has a start and an end"
    folder.run()
    assert len(folder.events()) == 4, "all runs are done"
    folder.write("0, 1, 5")  # only the run that is new in the file is executed
    assert "1 of 3 runs are pending, about" in folder.run("--dry-run")
    folder.run()
    assert len(folder.events()) == 6 and folder.seeds() == ["0", "1", "5"]
    folder.write("1")
    folder.run("--report")
    assert len(folder.events()) == 6 and folder.seeds() == ["1"], "runs that the file no longer names are not in the table"


def test_a_failed_run_stops_no_other_and_is_run_again_only_if_asked(folder: Folder) -> None:
    # The run that fails is the first of three: seed 1 with N = 4. Then come the seeds 1 and 2 with N = 2.
    cases = "cases: [{parameters: {N: 4}, skip-nonfinite: true}, {}]\nexclude: [{seed: 2, parameters: {N: 4}}]\n"
    folder.write("1, 2", more=cases)
    printed = folder.run(code=1)
    assert "FAILED: exit status 1" in printed and "    this run fails" in printed and "--retry-failed" in printed
    assert folder.seeds() == ["1", "2"] and len(folder.events()) == 5, "the run that fails notes no end"
    folder.run(code=1)
    assert len(folder.events()) == 5
    folder.run("--retry-failed", code=1)
    assert len(folder.events()) == 6


def test_a_run_that_takes_too_long_has_failed(folder: Folder) -> None:
    folder.write("0", milliseconds=100_000, more="minutes: 0.05\n")
    assert "it was not done after 0.05 minutes" in folder.run(code=1)
    assert have_ended([event.process for event in folder.events()], within_s=1)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_after_a_runner_was_stopped_the_next_one_goes_on_where_it_was(stop: signal.Signals, folder: Folder) -> None:
    folder.write("0")
    folder.run()
    cases = "cases: [{seed: 0}, {seed: 1, timeout: 3000}, {seed: 2}]\n"
    folder.file.write_text(folder.file.read_text().replace("  seed: [0]\n", "") + cases)
    runner = folder.start()
    until(lambda: len(folder.events()) == 3)  # the first run has started and ended, the second has started
    runner.send_signal(stop)
    _, err = runner.communicate(timeout=LIMIT_S)
    assert runner.returncode == (INTERRUPTED if stop == signal.SIGINT else -stop), err
    assert have_ended([folder.events()[2].process], within_s=LIMIT_S)
    assert len(folder.events()) == 3, "the run ended with its runner, before its own end"
    folder.run()
    started = [event.run for event in folder.events() if event.what == "start"]
    assert len(started) == 4 and started[1] == started[2], "only the run that was stopped is repeated"
    assert folder.seeds() == ["0", "1", "2"]


def test_two_runners_share_the_runs_one_at_a_time(folder: Folder) -> None:
    folder.write("0, 1, 2, 3", milliseconds=150)
    runners = [folder.start(), folder.start()]
    for runner in runners:
        _, err = runner.communicate(timeout=LIMIT_S)
        assert runner.returncode == 0, err
    events = folder.events()
    assert [event.what for event in events] == ["start", "end"] * 4, "at any time one run"
    assert len({event.run for event in events}) == 4, "each run once"
    folder.run("--report")
    assert folder.seeds() == ["0", "1", "2", "3"]


def test_figures_are_those_of_the_counted_iterations(folder: Folder) -> None:
    folder.write("0", more="discard: 3\n")
    folder.run()
    (row,) = folder.table()
    # Iterations 4 and 5. In the stub iteration k takes 0.1 * k seconds, and has the loss 5 - 0.1 * k and a peak of
    # 1000 * k bytes.
    assert (row["iterations"], row["loss"], row["peak_memory_bytes"]) == ("2", "4.5", "5000")
    assert float(row["iteration_s"]) == pytest.approx(0.45)
    assert float(row["samples_per_s"]) == pytest.approx(8 / 0.45)  # 2 micro-batches of 4 samples


def test_the_utilization_of_each_gpu_is_read_during_a_run(folder: Folder, commands: Path) -> None:
    smi = commands / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$1" in *name*) echo H1; echo H1;; *) echo asked >> gpus; echo 60; echo 20;; esac\n')
    smi.chmod(0o755)
    folder.write("0", more="discard: 1\n")
    folder.environment["STUB_AFTER_MS"] = "2500"  # after its last iteration the run goes on; the GPUs are read every second
    folder.run()
    assert (folder.path / "gpus").exists()
    (row,) = folder.table()
    assert float(row["gpu_utilization"]) == pytest.approx(0.4) and row["utilization_of_gpus"] == "[0.6, 0.2]"
    assert "2 x H1" in (folder.results / "report.md").read_text()


# --- SLURM --------------------------------------------------------------------------------------------------------------

CLUSTER = """
ACCOUNT=a7
PARTITION=fast
MODULES="gcc/13 cuda"
SBATCH_OPTIONS=(--qos=long --comment "two words")
PYTHON={python}
RANKS_PER_NODE=4
export CHIMERAC_DATA_DIR="/data here" READY=yes
"""
STUBS = {
    "sbatch": 'printf "%s|" "$@" >> submitted; echo >> submitted; echo 77',
    "squeue": "cat queue",
    "scontrol": "echo node1; echo node2",
    # The last argument is the config file of the run. One stub of run.py runs instead of the ranks.
    "srun": 'echo "$@ $READY $CHIMERAC_DATA_DIR" >> srun; exec {python} {stub} --config "${{@: -1}}"',
}


@pytest.fixture
def cluster(folder: Folder, commands: Path) -> Path:
    """Return the file of a cluster whose commands are stubs."""
    for name, text in STUBS.items():
        path = commands / name
        path.write_text("#!/bin/bash\n" + text.format(python=sys.executable, stub=ROOT / "tests/stub_run.py") + "\n")
        path.chmod(0o755)
    path = folder.path / "cluster.sh"
    path.write_text(CLUSTER.format(python=sys.executable))
    return path


def test_slurm_scripts_run_the_runs(folder: Folder, cluster: Path) -> None:
    folder.write("0", more="include: [{schedule: 1f1b, parameters: {D: 6, N: 2}}]\nminutes: 20\n")
    assert "scripts for 2 of 2 runs" in folder.run("--slurm", str(cluster))
    scripts = sorted(folder.results.glob("*/job.sbatch"))
    # The folder of a run has the name in the schedule's text: 1f1b.sched declares `schedule one_f_one_b`.
    text = next(path for path in scripts if "one_f_one_b" in str(path)).read_text()
    assert "#SBATCH --nodes=2\n" in text and "#SBATCH --time=30\n" in text, "20 minutes and slurm.MARGIN_MINUTES"
    assert "--nnodes 2 --nproc-per-node 3" in text, "six ranks on nodes of at most four"
    submitted = (folder.results / "submit.sh").read_text()
    assert "sbatch --qos=long --comment 'two words' --account=a7 --partition=fast " in submitted
    environment = folder.environment | {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "node[1-2]"}
    for script in scripts:
        assert not subprocess.run(["bash", "-n", str(script)]).returncode
        body = "module() { echo $@ >> modules; }\n" + script.read_text()
        subprocess.run(["bash", "-c", body], cwd=folder.path, env=environment, check=True, timeout=LIMIT_S)
    started = (folder.path / "srun").read_text()
    assert "--rdzv-endpoint node1:22345 --rdzv-id 12345" in started, "the port follows from the id of the job"
    assert "yes /data here" in started
    assert (folder.path / "modules").read_text().splitlines() == ["load gcc/13 cuda"] * 2
    folder.run("--report")
    assert folder.seeds() == ["0", "0"]
    assert "scripts for 0 of 2 runs" in folder.run("--slurm", str(cluster))


def test_slurm_gets_paths_with_spaces_whole(folder: Folder, cluster: Path) -> None:
    """SLURM splits the lines of options in a script at spaces outside quotes, as a shell does."""
    folder.write("0")
    printed = folder.run("--slurm", str(cluster), "--work-dir", "my results")
    (script,) = (folder.path / "my results").glob("runs/small/*/job.sbatch")
    options = [shlex.split(line)[1:] for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert [f"--output={script.parent}/slurm-%j.log"] in options
    assert shlex.split(printed.partition(": ")[2]) == ["sh", str(script.parents[1] / "submit.sh")]


def test_a_submitted_run_is_not_submitted_again(folder: Folder, cluster: Path) -> None:
    folder.write("0, 1")
    (folder.path / "queue").write_text("")
    assert folder.run("--slurm", str(cluster), "--submit").count("job 77") == 2
    (folder.path / "queue").write_text("77\n")
    assert "scripts for 0 of 2 runs" in folder.run("--slurm", str(cluster), "--submit")
    submitted = (folder.path / "submitted").read_text().splitlines()
    assert len(submitted) == 2
    assert submitted[0].startswith("--qos=long|--comment|two words|--account=a7|--partition=fast|--parsable|")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RANKS_PER_NODE=", "RANKS_PER_NODE is empty: give the largest number of ranks of a node"),
        ("RANKS_PER_NODE=few", "RANKS_PER_NODE is 'few'"),
        ("RANKS_PER_NODE=(", "bash cannot read it: "),
    ],
)
def test_a_mistake_in_the_file_of_a_cluster_is_named(text: str, message: str, folder: Folder) -> None:
    folder.write()
    (folder.path / "cluster.sh").write_text(text)
    assert message in folder.run("--slurm", "cluster.sh", code=2)


def test_a_refused_job_is_reported(folder: Folder, cluster: Path) -> None:
    folder.write("0")
    (folder.path / "bin" / "sbatch").write_text("#!/bin/sh\necho no such account >&2; exit 1\n")
    assert "sbatch refuses it: no such account" in folder.run("--slurm", str(cluster), "--submit", code=1)
    (folder.path / "bin" / "sbatch").unlink()
    assert "sbatch cannot be run" in folder.run("--slurm", str(cluster), "--submit", code=1)


def test_a_squeue_that_does_not_answer_ends_the_command(folder: Folder, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("0")
    (folder.path / "queue").write_text("")
    folder.run("--slurm", str(cluster), "--submit")
    (folder.path / "bin" / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm, "ANSWER_S", SHORT_ANSWER_S)
    expected = r"error: .*/squeue: it did not answer in 2 s whether job 77 is queued"
    assert re.search(expected, folder.run("--slurm", str(cluster), "--submit", code=1))


def test_a_cluster_file_and_an_sbatch_that_do_not_answer_are_named(
    folder: Folder, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("0")
    monkeypatch.setattr(slurm, "ANSWER_S", SHORT_ANSWER_S)
    slow = folder.path / "slow.sh"
    slow.write_text("exec sleep 60\n")
    assert "slow.sh: bash did not answer in 2 s\n" in folder.run("--slurm", str(slow), code=2)
    (folder.path / "bin" / "sbatch").write_text("#!/bin/sh\nexec sleep 60\n")
    printed = folder.run("--slurm", str(cluster), "--submit", code=1)
    assert printed.endswith("N=2: sbatch did not answer in 2 s\n")


# --- real ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.distributed
def test_real_ranks_with_timed_stages_take_at_least_nine_tenths_of_the_predicted_time(folder: Folder) -> None:
    folder.file.write_text("""
title: Real
settings: {timed: 5, iterations: 3, parameters: {D: 2, N: 2}}
grid: {schedule: [1f1b]}
compare: {x: schedule, figures: [iteration_s, bubble]}
""")
    command = [sys.executable, "-m", "chimerac.interpreter.experiments", str(folder.file)]
    completed = subprocess.run(command, cwd=folder.path, env=folder.environment, capture_output=True, text=True, timeout=100)
    assert completed.returncode == 0, completed.stderr
    (row,) = folder.table()
    predicted_s = 9 * 0.005  # 9 units of 5 ms
    assert float(row["predicted_iteration_s"]) == pytest.approx(predicted_s)
    assert float(row["iteration_s"]) >= 0.9 * predicted_s
    assert float(row["predicted_bubble"]) == pytest.approx(1 / 3, abs=1e-3)
    assert row["iterations"] == "2", "the first of the three is discarded"
