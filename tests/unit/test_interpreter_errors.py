"""The errors of a run: their common base class, and the output of a rank before it ends."""

from __future__ import annotations

import subprocess
import sys
import time
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


@pytest.mark.parametrize(
    ("error", "slept_s", "has_traceback"),
    [
        (PeerLostError("the send to rank 1 failed", exit_delay_s=12.0), 12.0, False),
        (RankError(0, 3, "SEND", PeerLostError("the send to rank 1 failed", exit_delay_s=12.0)), 12.0, False),
        (RankError(0, 3, "SEND", StuckError("deadlock")), 0.0, False),
        (StuckError("deadlock"), 0.0, False),
        (RankError(0, 3, "FWD", RuntimeError("of torch")), 0.0, True),
        (OSError("of the system"), 0.0, True),
        (refuse("E812", "the loss is nan"), 0.0, False),
    ],
)
def test_a_traceback_is_printed_where_no_message_explains_the_failure(
    error: Exception, slept_s: float, has_traceback: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def end(code: int, after_s: float = 0) -> None:
        raise EndedError(code)

    monkeypatch.setattr(failures, "end", end)
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(EndedError, match="1"):
        failures.end_with(error, reports=True)
    output = capsys.readouterr().err
    assert ("Error: " in output) == has_traceback, "the last line of a traceback names the class"
    assert sum(slept) == slept_s and "error" in output


def test_a_project_with_packages_called_models_and_data_imports_the_runtime(tmp_path: Path) -> None:
    for name in ("models", "data", "interpreter", "compiler"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = '{name}'")
    code = (
        "import sys, models, data, interpreter, compiler\n"
        "from chimerac.interpreter.training.trainer import Trainer\n"
        "from chimerac.interpreter.transport import gloo, loopback\n"
        "print(models.MINE, data.MINE, interpreter.MINE, compiler.MINE)\n"
        "print([name for name in sys.modules if name.startswith(('chimerac.models', 'chimerac.compiler'))])\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines() == ["models data interpreter compiler", "[]"]
