"""How a rank exits after a failure: whether it prints the message of the job, when it exits, and its exit code.

A rank also writes torchrun's error file, unless it leaves the report to another rank. From these files torchrun determines
which rank failed first, and the launcher whether the message has been printed. For a rank without a file torchrun takes the
time of its exit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, Protocol

from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import write_stderr
from chimerac.interpreter.errors import InterpreterError, PeerLostError, RankError

# How long a rank leaves the report and the first exit to another rank. torchrun ends all ranks when one has failed.
EXIT_DELAY_S = 20
HOST_DELAY_S = 1.0  # how long the rank that hosts the store waits before it exits, so that the others see a claimed report
LAUNCHER = "LAUNCHER_REPORTS_KILLED_RANKS"  # in the environment of ranks whose launcher prints the message for killed ranks


class JobEnd(Protocol):
    """The part of LivenessCheck (transport/liveness.py) with which the ranks of a failed job decide which of them reports."""

    @property
    def is_store_host(self) -> bool:
        """Whether the store ends with this process."""

    def fail(self) -> None:
        """Make the failure of this rank known to the others."""

    def claim_report(self) -> bool:
        """Claim the report of the job. Return whether this rank is the first to do so, and has to report."""

    def wait_for_report(self, within_s: float) -> bool:
        """Return whether another rank claims the report within this time."""

    def linger(self) -> None:
        """Wait for SIGTERM, a few seconds at most."""


def end(code: int, after_s: float = 0) -> NoReturn:
    """End this process without waiting for transfers: a peer may never post its side.

    Args:
        after_s: how long to sleep before.
    """
    time.sleep(after_s)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # what is left in the buffer of a closed or full stream is lost
            if stream is not None:
                stream.flush()
    os._exit(code)


def end_with(error: Exception, is_first_here: bool, job: JobEnd | None = None) -> NoReturn:
    """Report an error, unless another rank or the launcher does, and end this process with code 1.

    Args:
        is_first_here: this rank is the first of its host.
        job: None before the rendezvous of the ranks.
    """
    if job is not None:
        job.fail()
    if not is_first_here and (job is None or isinstance(error, ChimeraError)):
        # Usually all ranks have the same findings, and the first rank of the host reports them. If this rank is still running
        # after the delay, the first one does not have these findings. Before the rendezvous, the same holds for every error.
        if job is None:
            time.sleep(EXIT_DELAY_S)
        elif job.wait_for_report(EXIT_DELAY_S):
            job.linger()
            end(1)
    text, cause = error_text(error), error.cause if isinstance(error, RankError) else error
    peer_ended = isinstance(cause, PeerLostError) and cause.peer_ended
    claimed = job is None or job.claim_report()
    prints = claimed and not (peer_ended and LAUNCHER in os.environ)  # the launcher prints why the peer ended, or this text
    if prints:
        write_stderr(text)
    if job is not None and (peer_ended or not claimed):
        job.linger()  # for torchrun a rank that exits before another one writes its error file would be the first cause
    if claimed:
        write_error_file(f"its message is above: {_headline(error)}" if prints else text, prints)
        if isinstance(cause, PeerLostError):
            kill(cause.hanging)
    if job is not None and job.is_store_host:
        time.sleep(HOST_DELAY_S)
    end(1)


def _headline(error: Exception) -> str:
    """Return the codes, the place or the class of an error whose message has been printed."""
    if isinstance(error, ChimeraError):
        return ", ".join(f"error[{d.code}]" for d in error.diagnostics)
    return error.place if isinstance(error, RankError) else type(error).__name__


def end_silently(text: str, job: JobEnd | None) -> NoReturn:
    """End this process with code 1, and with it the whole job, without a message.

    Args:
        text: the reason, for the error file.
    """
    if job is not None:
        job.fail()
        job.claim_report()
    write_error_file(text)
    os._exit(1)


def error_text(error: Exception) -> str:
    """Return what is printed for an error: its message, in some cases after a traceback. The text ends with a newline.

    Findings have no traceback, and neither has an InterpreterError. But a RankError has the traceback of its cause,
    unless the cause is one of these. If the cause is findings, these are printed, with a note of where they were raised.
    """
    cause, notes = (error.cause, (f"in {error.place}",)) if isinstance(error, RankError) else (error, ())
    if isinstance(cause, ChimeraError):
        findings = [replace(d, notes=notes + d.notes) for d in cause.diagnostics]
        return render(findings, sys.stderr is not None and sys.stderr.isatty())
    trace = "" if isinstance(cause, InterpreterError) else "".join(traceback.format_exception(cause))
    return f"{trace}error: {error}\n"


def kill(processes: Iterable[int]) -> None:
    """Kill ranks of this host that do not answer, because torchrun would wait half a minute for them.

    Args:
        processes: their ids.
    """
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def write_error_file(text: str, printed: bool = True) -> None:
    """Write torchrun's error file, in the form of torch.distributed.elastic.

    Args:
        printed: the user has seen the message, or needs none.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": text.rstrip("\n"), "timestamp": str(int(time.time())), "printed": printed}
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"message": {"message": text.strip().split("\n")[-1], "extraInfo": extra}}, file)
        except OSError:
            pass  # torchrun then says only that the rank has failed
