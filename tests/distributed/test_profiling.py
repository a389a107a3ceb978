"""The command that measures a profile, on two gloo ranks, and what the compiler makes of its file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chimerac.chimera_ir.profile import profile_from_json
from chimerac.compiler.command.main import main
from tests.helpers_processes import run_command

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_profile_is_measured_and_read_by_the_compiler(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    words = ["--model", "gpt-nano", "--seq-len", "16", "--micro-batch", "2,1", "--repeats", "2", "-o", str(path)]
    words += ["--precision", precision]
    completed = run_command(sys.executable, "-m", "chimerac.interpreter.profiling", *words, timeout_s=110)
    assert completed.returncode == 0, completed.stderr
    assert f"--profile {path} --emit report" in completed.stderr
    found = profile_from_json(path.read_text())
    assert (found.model, found.seq_len, found.optimizer, found.processes) == ("gpt-nano", 16, "adamw", 2)
    assert found.precision == precision
    assert [size.samples for size in found.sizes] == [1, 2] and "torch" in found.versions
    # The first layer, the embedding, may take no more than a stage without work, whose time is subtracted.
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for size in found.sizes for layer in size.layers[1:])
    assert [entry.ranks for entry in found.all_reduce] == [2]
    assert 0 < found.point_to_point.latency_s < 1 and found.point_to_point.bytes_per_s > 1e6
    options = ["--model", "gpt-nano", "--profile", str(path), "--precision", precision, "--emit", "report"]
    assert main(["1f1b", "-p", "D=2", *options, "--micro-batch", "2"]) == 0
    assert "closed equation" in capsys.readouterr().out
    assert main(["1f1b", "-p", "D=2", *options, "--micro-batch", "4"]) == 1
    assert "it has 1 to 2" in capsys.readouterr().err
