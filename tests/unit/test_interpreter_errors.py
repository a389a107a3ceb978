"""The errors of a run: their texts, and how a rank ends after one: what it prints, and for whom it waits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.errors import InterpreterError, PeerLostError, RankError, StuckError
from chimerac.interpreter.launch import failures


class EndedError(Exception):
    """Raised where the process would end."""


def test_a_rank_error_says_where_and_why() -> None:
    cause = KeyError("act of pipe 0, s1, m0 is not there")
    error = RankError(1, 4, "BWD main s1 m0", cause)
    assert (error.rank, error.number, error.text, error.cause) == (1, 4, "BWD main s1 m0", cause)
    assert str(error) == "rank 1, instruction 4: BWD main s1 m0: act of pipe 0, s1, m0 is not there"
    assert str(RankError(0, None, "epilogue", ValueError(1, 2))) == "rank 0, epilogue: ValueError(1, 2)"
    assert all(issubclass(kind, InterpreterError) for kind in (RankError, PeerLostError, StuckError))


class Job:
    """A JobEnd (failures.py) with fixed answers.

    Args:
        claims: whether this rank is the first to claim the report.
        reported: whether another rank claims it in time.
        host: whether this rank hosts the store.

    Attributes:
        calls: the methods that the rank called, in order.
    """

    def __init__(self, claims: bool = True, reported: bool = False, host: bool = False) -> None:
        self.calls: list[str] = []
        self.claims, self.reported, self.is_store_host = claims, reported, host

    def fail(self) -> None:
        self.calls.append("fail")

    def claim_report(self) -> bool:
        self.calls.append("claim")
        return self.claims

    def wait_for_report(self, within_s: float) -> bool:
        self.calls.append(f"wait {within_s:g} s")
        return self.reported

    def linger(self) -> None:
        self.calls.append("linger")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that ends this rank with an error, and returns what it printed."""

    def end(code: int, after_s: float = 0) -> None:
        raise EndedError(code)

    def ended_with(error: Exception, is_first_here: bool = True, job: Job | None = None) -> str:
        with pytest.raises(EndedError, match="1"):
            failures.end_with(error, is_first_here, job)
        return capsys.readouterr().err

    monkeypatch.setattr(failures, "end", end)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.delenv(failures.LAUNCHER, raising=False)
    return ended_with


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        (PeerLostError("the send to rank 1 failed"), False),
        (RankError(0, 3, "SEND", PeerLostError("the send to rank 1 failed", peer_ended=True)), False),
        (RankError(0, 3, "SEND", StuckError("deadlock")), False),
        (StuckError("deadlock"), False),
        (RankError(0, 3, "FWD", RuntimeError("of torch")), True),
        (OSError("of the system"), True),
        (refuse("E812", "the loss is nan"), False),
        (RankError(0, 3, "FWD", refuse("E853", "after layers.1 the model ends")), False),
    ],
)
def test_a_traceback_is_printed_unless_the_cause_is_a_finding_or_an_error_of_the_interpreter(
    error: Exception, has_traceback: bool, ended: Callable[..., str]
) -> None:
    printed = ended(error, job=Job())
    assert ("Error: " in printed) == has_traceback, "the last line of a traceback names the class"
    assert "error" in printed and printed.endswith("\n")


def test_findings_in_an_instruction_are_printed_as_findings_with_the_place(ended: Callable[..., str]) -> None:
    cause = refuse("E853", "after layers.1 the model ends", notes=("a note",), help="switch it off")
    error = RankError(1, 3, "FWD main s1 m0", cause)
    assert ended(error, job=Job()) == (
        "error[E853]: after layers.1 the model ends\n"
        " = note: in rank 1, instruction 3: FWD main s1 m0\n = note: a note\n = help: switch it off\n"
    )
    assert str(error).startswith("rank 1, instruction 3: FWD main s1 m0: E853: after layers.1 the model ends\n")


def test_the_message_is_one_call_of_write(monkeypatch: pytest.MonkeyPatch, ended: Callable[..., str]) -> None:
    """Messages of several processes would mix otherwise."""
    calls: list[str] = []
    monkeypatch.setattr(sys.stderr, "write", calls.append)
    ended(RankError(0, 3, "FWD", RuntimeError("of torch")))
    assert len(calls) == 1 and calls[0].startswith("RuntimeError: of torch\nerror: rank 0, instruction 3: FWD: of torch\n")


def test_a_rank_prints_nothing_if_another_one_has_claimed_the_report(ended: Callable[..., str]) -> None:
    job = Job(claims=False)
    assert ended(RankError(0, 3, "FWD", RuntimeError("of torch")), job=job) == ""
    assert job.calls == ["fail", "claim", "linger"]


def test_a_rank_waits_before_it_ends_if_another_one_has_ended(ended: Callable[..., str]) -> None:
    """torchrun names the process that exits first as the cause. This must be the one whose end this rank noticed."""
    error = PeerLostError("the send to rank 1 failed: rank 1 has ended", peer_ended=True)
    job = Job()
    assert "rank 1 has ended" in ended(error, job=job)
    assert job.calls == ["fail", "claim", "linger"]
    job = Job()
    assert "not complete" in ended(PeerLostError("the send is not complete"), job=job)
    assert job.calls == ["fail", "claim"]


def test_under_the_launcher_the_message_about_an_ended_rank_is_only_written_to_the_error_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Callable[..., str]
) -> None:
    monkeypatch.setenv(failures.LAUNCHER, "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert ended(PeerLostError("rank 1 has ended", peer_ended=True), job=Job()) == ""
    written = json.loads((tmp_path / "error.json").read_text())["message"]["extraInfo"]
    assert (written["py_callstack"], written["printed"]) == ("error: rank 1 has ended", False)


def test_findings_are_reported_by_the_first_rank_of_a_host(ended: Callable[..., str]) -> None:
    found = refuse("E812", "the loss is nan")
    first, second, third = Job(), Job(reported=True), Job(reported=False)
    assert "E812" in ended(found, job=first)
    assert ended(found, is_first_here=False, job=second) == ""
    assert "E812" in ended(found, is_first_here=False, job=third), "no other rank has reported it"
    assert [job.calls for job in (first, second, third)] == [
        ["fail", "claim"],
        ["fail", "wait 20 s", "linger"],
        ["fail", "wait 20 s", "claim"],
    ]


def test_a_rank_that_does_not_answer_is_killed(ended: Callable[..., str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"]) as hanging:
        ended(RankError(0, 3, "FWD", PeerLostError("rank 1 does not answer", hanging=[hanging.pid])), job=Job())
        assert hanging.wait(timeout=10) == -signal.SIGKILL


def test_the_rank_that_hosts_the_store_ends_later(monkeypatch: pytest.MonkeyPatch, ended: Callable[..., str]) -> None:
    """Until then the other ranks can read in the store that the report is claimed."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    ended(ValueError("wrong"), job=Job(host=True))
    assert slept == [failures.HOST_DELAY_S]
