"""The launcher: what it prints for ranks or a rendezvous that failed, and how many ranks it starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

from chimerac.compiler import compile_schedule
from chimerac.interpreter import run
from chimerac.interpreter.launch import failures, launcher
from chimerac.interpreter.transport.progress import NUMBER, Progress


@pytest.fixture
def failed_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns the failures of ranks, and the paths of their error files.

    A rank is given as (exit code, text of its error file, whether it has printed the text). An empty text: it has no file.
    """

    def fail(*ranks: tuple[int, str, bool]) -> tuple[dict[int, ProcessFailure], dict[int, str]]:
        files = {}
        for rank, (_, text, printed) in enumerate(ranks):
            files[rank] = str(tmp_path / str(rank) / "error.json")
            Path(files[rank]).parent.mkdir(exist_ok=True)
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", files[rank])
            if text:
                failures.write_error_file(text, printed)
        return {
            r: ProcessFailure(local_rank=r, pid=1, exitcode=code, error_file=files[r]) for r, (code, _, _) in enumerate(ranks)
        }, files

    return fail


def test_a_message_that_a_rank_has_printed_is_not_repeated(failed_ranks: Any) -> None:
    failed, files = failed_ranks((-signal.SIGKILL, "", False), (1, "error: rank 1, instruction 2: FWD: no such token\n", True))
    assert launcher.message(failed, files) == ""
    assert launcher.first_failure(failed)[0] == 1


def test_the_rank_that_was_killed_is_named_with_the_place_that_another_rank_reports(failed_ranks: Any) -> None:
    lost = "error: rank 0, epilogue: the all-reduce over ranks 0, 1 failed: rank 1 has ended, in the epilogue\n"
    failed, files = failed_ranks((1, lost, False), (-signal.SIGSEGV, "", False), (-signal.SIGTERM, "", False))
    assert launcher.message(failed, files) == "error: rank 1, epilogue: killed by SIGSEGV\n"
    assert launcher.first_failure(failed)[0] == 1


def test_the_instruction_of_a_killed_rank_is_read_from_its_progress_file(
    failed_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, files = failed_ranks((-signal.SIGKILL, "", False))
    progress = Progress(Path(files[0]).with_name("progress"))
    program = compile_schedule("gpipe", {"D": 2, "N": 1}).program
    progress.begin(progress.add(program))[NUMBER] = 1  # the number of the instruction that runs
    killed = "killed by SIGKILL, as the system does when memory runs out\n"
    assert launcher.message(failed, files) == f"error: rank 0, instruction 1: {killed}"
    monkeypatch.setattr(launcher, "_programs", progress)
    assert launcher.message(failed, files) == f"error: rank 0, instruction 1: {program.text(1)}: {killed}"


def test_a_rank_of_another_host_is_reported_by_the_ranks_that_lost_it(failed_ranks: Any) -> None:
    text = "error: rank 0, epilogue: an all-reduce over all ranks failed: rank 7 has ended"
    assert launcher.message(*failed_ranks((1, text, False), (1, "", False))) == text + "\n"


def test_a_script_that_ends_without_a_message_is_reported_with_its_exit_code(failed_ranks: Any) -> None:
    assert launcher.message(*failed_ranks((3, "", False))) == "error: rank 0 ended with exit code 3\n"


@pytest.mark.parametrize("is_only_host", [False, True])
def test_a_rank_that_ends_without_a_message_after_it_has_begun_to_connect_is_reported_by_other_hosts_if_there_are_any(
    is_only_host: bool, failed_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_position", lambda path: [0])
    failures, files = failed_ranks((3, "", False), (3, "", False))
    expected = "error: rank 0 ended with exit code 3\n" if is_only_host else ""
    assert launcher.message(failures, files, is_only_host) == expected


def test_the_error_file_has_the_form_that_torchrun_reads(failed_ranks: Any) -> None:
    failed, _ = failed_ranks((1, "Traceback ...\nerror: rank 0, instruction 2: FWD: no such token\n", True))
    assert failed[0].message["message"] == "error: rank 0, instruction 2: FWD: no such token"
    assert failed[0].message["extraInfo"]["py_callstack"].startswith("Traceback")
    assert failed[0].timestamp > 0


def test_an_error_file_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/nowhere/error.json")
    failures.write_error_file("error")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")
    failures.write_error_file("error")


def test_a_restart_that_a_host_does_not_join_in_time_is_reported_with_the_option_that_limits_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher.torchrun, "run", Mock(side_effect=RendezvousTimeoutError))
    monkeypatch.setattr(launcher.Agent, "has_reported", True)  # ranks have failed before, so this is a restart
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
    """addresses: what getaddrinfo returns for the name of the host, or the error that it raises."""
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
    """Some tools for clusters set RANK and WORLD_SIZE for launchers. Then run.py takes itself for a rank."""

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
        ([__file__], "1"),  # another script than run.py: torchrun's default
    ],
)
def test_the_number_of_ranks_of_a_host_is_the_given_one_or_what_the_program_needs(
    arguments: list[str], number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    assert launcher._options(arguments).nproc_per_node == number
