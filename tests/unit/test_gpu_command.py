"""The command for a host with a GPU (tools/gpu.py): it refuses to run without one; a failed check does not stop the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.proof.record import rows
from tools import gpu


def test_without_a_gpu_nothing_is_run_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("<!-- recorded: gpu -->\nold\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr(gpu, "PAGE", page)
    monkeypatch.setattr(gpu, "outcomes", None)  # to run the checks would be an error
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments in ([], ["--write"]):
        assert gpu.main(arguments) == 2
        error = capsys.readouterr().err.splitlines()
        assert len(error) == 2 and error[0].startswith("error: no CUDA device: ") and error[1].startswith("help: ")
    assert "old" in page.read_text(encoding="utf-8")


def fails() -> str:
    raise gpu.FailedError("a | b")


def breaks() -> str:
    raise RuntimeError("CUDA error\nmore of it")


def test_a_failed_check_is_recorded_and_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("<!-- recorded: gpu -->\nNot recorded yet.\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr(gpu, "PAGE", page)
    # The name of each check, the number of GPUs that it needs, and its function.
    checks = (("first", 1, fails), ("second", 1, breaks), ("third", 2, fails), ("fourth", 1, lambda: "good"))
    run_checks = gpu.outcomes
    monkeypatch.setattr(gpu, "outcomes", lambda gpus: run_checks(gpus, checks))
    monkeypatch.setattr(gpu, "hardware", lambda: "GPUs: one.")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpu.main(["--write"]) == 1
    text = page.read_text(encoding="utf-8")
    assert "| first | a \\| b | failed |" in text
    assert "| second | RuntimeError: CUDA error | failed |" in text
    assert "| third | needs 2 GPUs, found 1 | not run |" in text
    assert "| fourth | good | passed |" in text
    assert re.search(r"Recorded \d{4}-\d\d-\d\d, .*torch", text) and "GPUs: one." in text and "Not recorded" not in text


def test_a_command_that_fails_is_named_with_its_last_line() -> None:
    with pytest.raises(gpu.FailedError, match=r"exit status 1: -c .*: ValueError: wrong"):
        gpu.run_command("-c", "raise ValueError('wrong')")


def test_the_page_describes_every_check() -> None:
    page = gpu.ROOT / "docs" / "gpu.md"
    above = page.read_text(encoding="utf-8").split("<!-- recorded: gpu -->")[0]
    _, *described = re.findall(r"^\| ([^|]+?) \| ", above, re.MULTILINE)  # the first is the head of the table
    assert described == [name for name, _, _ in gpu.CHECKS]
    recorded = rows("gpu", page)
    assert not recorded or [row["check"] for row in recorded[0]] == described


def test_tests_that_were_all_skipped_have_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "run_command", lambda *arguments: "ssss\n4 skipped in 1.00s\n")
    with pytest.raises(gpu.FailedError, match="no test was run: 4 skipped"):
        gpu.tests()
    monkeypatch.setattr(gpu, "run_command", lambda *arguments: "ss..\n2 passed, 2 skipped in 1.00s\n")
    assert gpu.tests() == "2 passed, 2 skipped in 1.00s"
