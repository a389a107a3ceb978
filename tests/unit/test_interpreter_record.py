"""What a run writes: the progress bar, tables, the log and TensorBoard; and paths that cannot be written."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.launch.record import Record, check_folder, check_output
from tests.helpers_plan import plan
from tests.helpers_trace import images, scalars

# A second mistake, which would be reported only after the outputs have been checked.
UNKNOWN_MODEL = ("--model", "unknown")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_only_rank_0_prints_and_only_a_terminal_gets_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, stderr, lines, has_bar in ((0, Terminal(), 1, True), (1, Terminal(), 0, False), (0, StringIO(), 1, False)):
        monkeypatch.setattr(sys, "stderr", stderr)
        record = Record(rank, iterations=2)
        record.start()
        record.draw(1, 2.5, "12,346 tokens/s")
        record.print_text("words")
        shown = stderr.getvalue()
        assert shown.endswith("\r") == has_bar, "the bar is erased before the words"
        record.draw(2, 1.0, "1 tokens/s")
        assert capsys.readouterr().out == "words\n" * lines, "piped output has no trace of the bar"
        assert ("0/2" in shown) == has_bar
        assert "\x1b[?25l" not in shown, "the cursor is not hidden: a killed rank could not show it again"


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
    # After `close` these calls do nothing.
    record.write({"iteration": 5})
    record.draw(6, 2.5, "1 tokens/s")


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_of_the_log_is_written_at_once_after_a_line_about_the_run(tmp_path: Path) -> None:
    record = Record(0, iterations=2, log=tmp_path / "log", header={"settings": {"lr": 0.1}})
    Record(1, iterations=2, log=tmp_path / "other").write({"iteration": 1})
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
        Record(0, iterations=2, log=log).write({"iteration": 3})
        lines = log.read_text().splitlines()
        assert lines[0] == '{"iteration": 1}' and json.loads(lines[-1]) == {"iteration": 3}
        assert len(lines) == (3 if end == "\n" else 4) and json.loads(lines[-2])["format"] == "chimera-log"


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    Record(0, iterations=2, log=tmp_path / "log").write({"loss": float("nan"), "bubble": [0.5, float("inf")]})
    assert lines_of(tmp_path / "log")[-1] == {"loss": None, "bubble": [0.5, None]}


def test_a_full_disk_is_reported_once_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(0, iterations=2, log=Path("/dev/full"))
    record.write({"iteration": 1})
    expected = "the log /dev/full can no longer be written: no space left on device; the run goes on\n"
    assert capsys.readouterr().out == expected
    record = Record(0, iterations=2, log=tmp_path / "log")
    record.write({"iteration": 1})

    class Full:
        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    record._log = Full()
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
            plan("--log-file", str(path), *UNKNOWN_MODEL)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ChimeraError, match=r"E811: .*permission denied"):
        check_output(tmp_path / "log", "--log-file")
    assert not (tmp_path / "log").exists()
    monkeypatch.setenv("RANK", "1")  # only rank 0 writes
    plan("--log-file", "/nowhere/log")


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
            plan(option, str(path), *UNKNOWN_MODEL)
        assert f"give {option} another path" in str(caught.value.diagnostics[0].help)
    check_folder(tmp_path / "new" / "runs", "--tensorboard")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ChimeraError, match=r"E811: .*permission denied for"):
        check_folder(tmp_path / "new", "--tensorboard")


def test_tensorboard_has_the_numbers_of_each_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "one"
    for first in (1, 3):  # two runs in one folder
        record = Record(0, iterations=4, header={"settings": {}}, tensorboard=folder)
        Record(1, iterations=4, tensorboard=tmp_path / "other")
        record.write({"iteration": first, "loss": first / 2, "bubble": [0.25, 0.5], "oversubscribed": True})
        assert scalars(folder)["loss"][-1] == (first, first / 2), "the loss is in the file before the run ends"
        record.write({"iteration": first + 1, "loss": float("nan"), "bubble": (0.5, 0.75), "peak_memory_bytes": [2**40]})
        record.close()
        record.write({"iteration": 9, "loss": 9.0})  # ignored: the record is closed
    written = scalars(folder)
    assert sorted(written) == ["bubble/rank 0", "bubble/rank 1", "loss", "peak_memory_bytes/rank 0"]
    assert written["bubble/rank 1"] == [(1, 0.5), (2, 0.75), (3, 0.5), (4, 0.75)]
    assert [step for step, _ in written["loss"]] == [1, 2, 3, 4] and math.isnan(written["loss"][1][1])
    assert written["peak_memory_bytes/rank 0"][0] == (2, 2**40) and not (tmp_path / "other").exists()
    assert capsys.readouterr().out == ""


def test_tensorboard_has_the_timeline_predicted_and_measured(tmp_path: Path) -> None:
    matplotlib_image = pytest.importorskip("matplotlib.image")
    timeline, folder = tmp_path / "t.json", tmp_path / "runs"
    # fmt: off
    words = ["chimera", "-p", "D=2", "-p", "N=2", "--loopback", "--iterations", "2", "--model", "gpt-nano",
             "--timeline", str(timeline), "--tensorboard", str(folder)]
    # fmt: on
    ran = subprocess.run(
        [sys.executable, "-m", "chimerac.interpreter.run", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = images(folder)
    assert sorted(written) == ["timeline/measured", "timeline/predicted"]
    for ((step, width, height, png),) in written.values():
        assert step == 2 and matplotlib_image.imread(BytesIO(png)).shape == (height, width, 4)
    (*_, measured_png), (*_, predicted_png) = written["timeline/measured"][0], written["timeline/predicted"][0]
    assert measured_png != predicted_png
    measured, predicted = (scalars(folder)[name] for name in ("makespan_s", "predicted_makespan_s"))
    assert [step for step, _ in measured] == [step for step, _ in predicted] == [1, 2]


def test_a_full_disk_ends_tensorboard_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(0, iterations=4, log=tmp_path / "log", tensorboard=tmp_path / "runs")
    assert record._scalars is not None
    # From here on, each write for TensorBoard fails as on a full disk.
    full = record._scalars._file = record._scalars._records._writer = open("/dev/full", "wb")  # noqa: SIM115
    for iteration in (1, 2):
        record.write({"iteration": iteration, "loss": 2.5})
    out, err = capsys.readouterr()
    assert re.fullmatch(
        "the TensorBoard folder .*runs can no longer be written: no space left on device; the run goes on\n", out
    )
    assert err == "" and full.closed and [line.get("iteration") for line in lines_of(tmp_path / "log")] == [None, 1, 2]


def test_tensorboard_without_its_package_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ChimeraError, match="E840: --tensorboard needs the package tensorboard, which is not installed"):
        plan("--tensorboard", str(tmp_path), *UNKNOWN_MODEL)


def test_the_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Record(0, iterations=1).table([("loss", "2.5", "nats"), ("tokens per second", "1,000", "")])
    assert capsys.readouterr().out == "\nloss                 2.5   nats\ntokens per second  1,000\n"
