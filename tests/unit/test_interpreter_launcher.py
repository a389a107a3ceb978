"""What the launcher prints for ranks that failed, how run.py calls it, what a process does first, and requests to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

from chimerac.compiler import compile_schedule
from chimerac.interpreter import run
from chimerac.interpreter.launch import failures, launcher, startup, stopping
from chimerac.interpreter.transport.progress import NUMBER, Progress


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns the failures of ranks, and the paths of their error files.

    A rank is given as (exit code, text of its error file, whether it has printed the text).
    """

    def fail(*ranks: tuple[int, str, bool]) -> tuple[dict[int, ProcessFailure], dict[int, str]]:
        files = {}
        for rank, (_, text, printed) in enumerate(ranks):
            files[rank] = str(tmp_path / str(rank) / "error.json")
            Path(files[rank]).parent.mkdir(exist_ok=True)
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", files[rank])
            if text:
                failures.write_error_file(text, printed)
        return {r: ProcessFailure(r, 1, code, files[r]) for r, (code, _, _) in enumerate(ranks)}, files

    return fail


def test_a_message_that_a_rank_has_printed_is_not_repeated(job: Any) -> None:
    failed, files = job((-9, "", False), (1, "error: rank 1, instruction 2: FWD: no such token\n", True))
    assert launcher.message(failed, files) == ""
    assert launcher.first_failure(failed)[0] == 1


def test_the_rank_that_was_killed_is_named_with_the_instruction_that_the_other_ranks_report(job: Any) -> None:
    lost = "error: rank 0, epilogue: the all-reduce over ranks 0, 1 failed: rank 1 has ended, in the epilogue\n"
    failed, files = job((1, lost, False), (-11, "", False), (-signal.SIGTERM, "", False))
    assert launcher.message(failed, files) == "error: rank 1, epilogue: killed by SIGSEGV\n"
    assert launcher.first_failure(failed)[0] == 1


def test_the_instruction_of_the_only_rank_is_read_from_its_file(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, files = job((-9, "", False))
    progress = Progress(Path(files[0]).with_name("progress"))
    program = compile_schedule("gpipe", {"D": 2, "N": 1}).program
    progress.begin(progress.add(program))[NUMBER] = 1
    end = "killed by SIGKILL, as the system does when memory runs out\n"
    assert launcher.message(failed, files) == f"error: rank 0, instruction 1: {end}"
    monkeypatch.setattr(launcher, "_programs", progress)
    assert launcher.message(failed, files) == f"error: rank 0, instruction 1: {program.text(1)}: {end}"


def test_a_rank_of_another_host_is_reported_by_the_ranks_that_lost_it(job: Any) -> None:
    text = "error: rank 0, epilogue: an all-reduce over all ranks failed: rank 7 has ended"
    assert launcher.message(*job((1, text, False), (1, "", False))) == text + "\n"


def test_a_script_that_ends_without_a_message_is_reported_with_its_exit_code(job: Any) -> None:
    assert launcher.message(*job((3, "", False))) == "error: rank 0 ended with exit code 3\n"


def test_the_error_file_has_the_form_that_torchrun_reads(job: Any) -> None:
    failed, _ = job((1, "Traceback ...\nerror: rank 0, instruction 2: FWD: no such token\n", True))
    assert failed[0].message["message"] == "error: rank 0, instruction 2: FWD: no such token"
    assert failed[0].message["extraInfo"]["py_callstack"].startswith("Traceback")
    assert failed[0].timestamp > 0


def test_an_error_file_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/nowhere/error.json")
    failures.write_error_file("error")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")
    failures.write_error_file("error")


def test_a_host_that_does_not_join_in_time_is_reported_with_the_option_that_limits_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: object) -> None:
        raise RendezvousTimeoutError

    monkeypatch.setattr(launcher.torchrun, "run", run)
    monkeypatch.setattr(launcher.Agent, "has_reported", True)
    options = launcher._options(["--nproc-per-node", "1", "run.py"])
    assert launcher._run(options) == 1
    reason = "not all hosts have joined in time (--rdzv-conf join_timeout=SECONDS)"
    assert capsys.readouterr().err == f"error: the ranks cannot be restarted: {reason}\n"


@pytest.mark.parametrize(
    ("error", "addresses", "reason"),
    [
        (
            DistNetworkError("The server socket has failed. name: EADDRINUSE"),
            [],
            "the port of node1:29777 is in use",
        ),
        (RendezvousConnectionError(), OSError(0, "Unknown name"), "the host of node1:29777 cannot be resolved: unknown name"),
        (RendezvousConnectionError(), [], "no connection to the rendezvous at node1:29777: its launcher does not run"),
    ],
)
def test_a_rendezvous_that_fails_is_named(
    error: Exception, addresses: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher.torchrun, "run", Mock(side_effect=error))
    monkeypatch.setattr(launcher.socket, "getaddrinfo", Mock(side_effect=[addresses]))
    assert launcher._run(launcher._options(["--nproc-per-node", "1", "--rdzv-endpoint", "node1:29777", "run.py"])) == 1
    assert capsys.readouterr().err.startswith(f"error: the launcher cannot start the ranks: {reason}")


def test_run_py_starts_as_many_ranks_as_its_program_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(launcher, "launch", lambda given, plan: calls.append(given) or 0)
    monkeypatch.setattr(sys, "argv", ["interpreter/run.py", "schedules/chimera.sched", "-p", "D=2", "--width", "3"])
    monkeypatch.delenv("RANK", raising=False)
    assert run.main() == 0
    arguments = ["schedules/chimera.sched", "-p", "D=2", "--width", "3"]
    assert calls == [["--standalone", "--nproc-per-node=6", run.__file__, *arguments]]


def test_a_process_with_a_rank_but_without_the_other_variables_of_torchrun_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tools for clusters set RANK and WORLD_SIZE for the launchers, not for the ranks."""

    def end(code: int, after_s: float = 0) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(failures, "end", end)
    monkeypatch.setattr(sys, "argv", ["interpreter/run.py", "-p", "D=2"])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="1"):
        run.main()
    message = capsys.readouterr().err
    assert message.startswith("error: the environment has RANK, ") and "lacks LOCAL_RANK, LOCAL_WORLD_SIZE: " in message
    assert "Traceback" not in message and "unset RANK" in message


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ([run.__file__, "-p", "D=2", "--width", "3"], "6"),
        (["--nnodes", "2", run.__file__, "-p", "D=2", "--width", "3"], "3"),
        (["--nproc-per-node", "5", run.__file__, "-p", "D=2"], "5"),
        ([__file__], "1"),
    ],
)
def test_the_number_of_ranks_of_a_host(arguments: list[str], number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    assert launcher._options(arguments).nproc_per_node == number


# --- what a process does first ------------------------------------------------------------------------------------------


def test_a_rank_ends_at_once_if_torchrun_has_ended_before_it_started() -> None:
    """Port 1 refuses connections, like the store of a torchrun that has ended."""
    code = "from chimerac.interpreter.launch.startup import begin_process; begin_process(); print('alive')"
    agent = {"RANK": "0", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ | agent | where, capture_output=True, text=True)
    expected = (1, "") if sys.platform == "linux" else (0, "alive\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (*expected, "")


def test_the_first_lines_import_no_torch_and_no_compiler() -> None:
    code = (
        "import sys; from chimerac.interpreter.launch.startup import begin_process; begin_process()\n"
        "print([m for m in sys.modules if m.startswith(('torch', 'numpy', 'chimerac.compiler'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_ctrl_c_prints_one_line_and_ends_a_process_that_a_user_started() -> None:
    code = (
        "import os, signal; from chimerac.interpreter.launch.startup import begin_process; begin_process()\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    assert startup.INTERRUPTED == 130


# --- requests to stop ---------------------------------------------------------------------------------------------------


def test_sigterm_is_a_request_to_stop_only_in_accepting_stop_requests() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notified = threading.Event()
    with stopping.accepting_stop_requests(notified.set):
        assert not stopping.stop_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert notified.wait(10) and stopping.stop_requested()
    assert signal.getsignal(signal.SIGTERM) == before
    with stopping.accepting_stop_requests():
        assert not stopping.stop_requested()


def test_a_second_sigterm_ends_the_process_at_once() -> None:
    code = (
        "import os, signal, threading\n"
        "from chimerac.interpreter.launch.stopping import accepting_stop_requests\n"
        "came = threading.Event()\n"
        "with accepting_stop_requests(came.set):\n"
        "    os.kill(os.getpid(), signal.SIGTERM); came.wait()\n"
        "    os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == stopping.STOPPED


def test_sigterm_to_a_forked_process_ends_only_this_process() -> None:
    """A forked process is for example a worker of a pool. The end of the training does not wait for it."""
    code = (
        "import os, signal\n"
        "from chimerac.interpreter.launch.stopping import accepting_stop_requests, stop_requested\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.pause(); os._exit(3)\n"
        "    return child\n"
        "with accepting_stop_requests():\n"
        "    first, second = fork(), fork()\n"
        "    os.kill(first, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]), stop_requested(), flush=True)\n"
        "os.kill(second, signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{-signal.SIGTERM} False\n"), ended.stderr
