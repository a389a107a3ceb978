"""The example of docs/runtime.md: a user's own model and loop, in a project with packages called models and data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers_processes import run_in_own_loop_project


@pytest.mark.distributed
def test_the_example_trains_as_under_torch_distributed_pipelining(tmp_path: Path) -> None:
    project = run_in_own_loop_project("own_loop.py", 2, tmp_path)
    found = json.loads((project / "result.json").read_text())
    # By script and schedule, the loss and the gradient norm of each iteration. By "torch", the loss of each iteration in which
    # torch trains the model of train.py.
    chimera, one_f_one_b = found["train.py"]["chimera"], found["train.py"]["1f1b"]
    assert len(chimera) == 10 and chimera[0][0] > 2 and chimera[-1][0] < 0.5, "it learns"
    assert [loss for loss, _ in one_f_one_b] == pytest.approx(found["torch"], rel=1e-4, abs=2e-6)
    assert [loss for loss, _ in chimera] == pytest.approx(found["torch"], rel=1e-4, abs=2e-6)
    chimera, one_f_one_b = found["stages.py"]["chimera"], found["stages.py"]["1f1b"]
    assert len(chimera) == 4 and chimera[-1][0] < chimera[0][0], "it learns"
    assert chimera == [pytest.approx(iteration, rel=1e-3) for iteration in one_f_one_b]
