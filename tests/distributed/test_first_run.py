"""Real ranks over gloo: results equal those of one process, the command line works, and no process hangs or is left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.jsonform import program_to_json
from tests.distributed.programs import TWO_RANKS

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUN = "interpreter/run.py"
CHIMERA = ["schedules/chimera.sched", "-p", "D=2", "-p", "N=8"]
TINY = ["--model", "gpt-nano", "--seq-len", "32"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


def open_process(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command in its own session. environment: added to that of all tests."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@contextmanager
def start_process(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command in its own session; at the end kill the processes that are left of it."""
    process = open_process(command, environment)
    try:
        yield process
    finally:
        for pid in [process.pid, *children(process.pid)]:
            kill(pid)
        process.communicate()


def run_command(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for its end."""
    with start_process(*command, **environment) as process:
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(p) for p, parent in (line.split() for line in table.splitlines()) if int(parent) == pid]


def kill(pid: int) -> None:
    """Kill a process if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def have_ended(pids: list[int], within_s: float) -> bool:
    """Return whether these processes end, or become zombies, within this time."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        found = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(map(str, pids))], capture_output=True, text=True)
        if all(state.startswith("Z") for state in found.stdout.split()):
            return True
        time.sleep(0.1)
    return False


@contextmanager
def training() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a long training and wait for its first iteration. Yields the process of torchrun and the ids of its ranks."""
    with start_process(*TORCHRUN, RUN, *CHIMERA, *TINY, "--iterations", "100000") as process:
        assert process.stdout is not None
        while "iteration" not in process.stdout.readline():
            assert process.poll() is None, process.communicate()
        ranks = children(process.pid)
        assert len(ranks) == 2
        try:
            yield process, ranks
        finally:
            for pid in ranks:
                kill(pid)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run all programs written by hand in one pair of ranks."""
    out = tmp_path_factory.mktemp("ranks") / "results.json"
    run = run_command(*TORCHRUN, "tests/distributed/ranks.py", str(out))
    assert run.returncode == 0, run.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", TWO_RANKS)
def test_gradients_and_losses_are_bit_equal_to_one_process(name: str, results: Any) -> None:
    found = results[name]
    assert [rank["differing"] for iterations in found["ranks"] for rank in iterations] == [[]] * 4
    losses = [sum(rank[t]["loss"] for rank in found["ranks"]) for t in range(2)]
    assert losses == found["one process"] and losses[0] != losses[1]


def test_a_sharded_optimizer_gives_the_same_weights(results: Any) -> None:
    assert results["sharded optimizer"] == [True, True]  # the second: messages are staged through other memory


def test_a_schedule_trains_a_gpt(tmp_path: Path) -> None:
    run = run_command(*TORCHRUN, RUN, *CHIMERA, *TINY, "--iterations", "60", "--lr", "1e-2")
    assert (run.returncode, run.stderr) == (0, "")
    assert re.search(r"gradients equal one process: largest relative difference [0-9.]+e-0[5-9]", run.stdout)
    figures = dict(re.findall(r"^(\S.*?) {2,}([0-9.,]+)", run.stdout, re.MULTILINE))
    first, last, held_out, entropy = (
        float(figures[k]) for k in ("loss at the start", "loss at the end", "held-out loss", "unigram entropy")
    )
    assert 5.3 < first < 5.8  # log 256 = 5.55: the loss of an untrained model
    assert last < first - 2 and held_out < entropy
    assert len(re.findall("^iteration", run.stdout, re.MULTILINE)) == 11


def test_a_compiled_program_trains_too_and_takes_no_parameters(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(program_to_json(TWO_RANKS["two replicas"]))
    run = run_command(*TORCHRUN, RUN, str(path), *TINY, "--iterations", "3", "--dropout", "0.1", "--micro-batch", "2")
    assert (run.returncode, run.stderr) == (0, "")
    assert "two_replicas: 2 ranks, 2 stages, 2 micro-batches of 2 samples" in run.stdout
    assert re.search(r"gradients equal one process: largest relative difference [0-9.]+e[-+]0[05-9]", run.stdout)
    refused = run_command(sys.executable, RUN, str(path), "-p", "D=2")
    assert refused.returncode == 1 and "error[E808]" in refused.stderr


def test_a_wrong_number_of_ranks_is_one_finding_and_no_hang() -> None:
    run = run_command(*TORCHRUN[:-1], "6", RUN, "schedules/chimera.sched", "-p", "D=4")
    assert run.returncode == 1
    assert run.stderr.count("error[E800]: 4 ranks are needed and 6 were started") == 1
    assert f'File "{ROOT}/interpreter' not in run.stderr, "a mistake of the user must not print a traceback of the interpreter"


@pytest.mark.parametrize("ranks", [2, 6])
def test_a_wrong_option_is_reported_once_for_any_number_of_ranks(ranks: int) -> None:
    run = run_command(*TORCHRUN[:-1], str(ranks), RUN, *CHIMERA, "--lr", "fast")
    assert run.returncode == 1 and run.stderr.count("argument --lr: expected a number, found 'fast'") == 1


def free_port() -> int:
    """Return a free port for the rendezvous of two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def one_of_two(rank: int, *options: str, port: int = 1) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of one rank of a training, as torchrun would start it."""
    return of_two(rank, RUN, "schedules/chimera.sched", *options, port=port)


def of_two(rank: int, *words: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of one rank of a script."""
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    environment = {k: str(v) for k, v in where.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return [sys.executable, *words], environment


def test_data_that_cannot_be_read_is_refused_before_ranks_meet(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short")
    for data, code in (("gone", "E802"), ("short", "E803")):
        command, environment = one_of_two(0, "-p", "D=2", "--data", str(tmp_path / data))
        run = run_command(*command, **environment)
        assert run.returncode == 1 and f"error[{code}]" in run.stderr and "Traceback" not in run.stderr


def test_ranks_with_different_programs_are_refused() -> None:
    port = free_port()
    first, second = (one_of_two(r, "-p", "D=2", "-p", f"N={n}", *TINY, port=port) for r, n in ((0, 2), (1, 4)))
    with start_process(*first[0], **first[1]) as process_0, start_process(*second[0], **second[1]) as process_1:
        _, message = process_0.communicate(timeout=60)
        assert process_0.returncode == 1 and process_1.poll() is None, (
            "rank 1 must not exit before rank 0 has printed its message"
        )
    assert "error[E806]: rank 0 and rank 1 have a different program" in message


def test_a_killed_rank_ends_the_job_and_is_the_first_cause_for_torchrun() -> None:
    with training() as (torchrun, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        _, err = torchrun.communicate(timeout=30)
        assert torchrun.returncode == 1
        assert have_ended(ranks, within_s=5)
    (message,) = re.findall("^error: .*", err, re.MULTILINE)
    assert re.search("^error: rank 0, .* failed: rank 1 has ended, in (instruction|the epilogue)", message)
    cause = err[err.index("Root Cause") :]
    assert re.search(r"rank +: 1 ", cause) and "Signal 9 (SIGKILL)" in cause
    assert f"{ROOT}/interpreter" not in err, "a traceback of ours"


def test_ctrl_c_ends_every_rank_without_a_traceback_of_the_interpreter() -> None:
    with training() as (torchrun, ranks):
        os.killpg(torchrun.pid, signal.SIGINT)
        _, err = torchrun.communicate(timeout=40)
        assert torchrun.returncode != 0
        assert have_ended(ranks, within_s=5)
        assert f"{ROOT}/interpreter" not in err


def test_ranks_do_not_outlive_torchrun() -> None:
    with training() as (torchrun, ranks):
        os.kill(torchrun.pid, signal.SIGKILL)
        assert have_ended(ranks, within_s=15)
