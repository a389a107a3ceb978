"""The small example programs of docs/examples.md do what they say. All examples are listed there.

An example that needs torchrun says how to start it.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.small_examples import SMALL
from tests.helpers_processes import results_of
from tools import ROOT


def numbers(lines: list[str], word: str) -> list[float]:
    """Return for each line the first number that follows this word."""
    return [float(re.findall(rf"{word} ([\d.]+)", line)[0]) for line in lines]


@pytest.mark.distributed
def test_the_small_examples_run_and_learn(tmp_path: Path) -> None:
    printed = results_of("small_examples.py", 2, tmp_path / "printed.json")
    assert sorted(printed) == sorted(path.stem for path in SMALL.glob("*.py"))
    for name in ("sequential", "any_module", "evaluation"):
        losses = numbers(printed[name], "loss")
        assert len(losses) >= 3 and losses[-1] < 0.7 * losses[0], (name, losses)
    losses = numbers(printed["other_schedule"], "loss")
    assert len(losses) == 10 and losses == sorted(losses, reverse=True), "1f1b goes on where chimera stopped"
    assert losses[4] - losses[5] < 2 * (losses[3] - losses[4]), "the loss does not jump where 1f1b begins"
    none, everything = printed["recomputation"]
    assert none.split("loss")[1] == everything.split("loss")[1], "the same loss and gradients, to the last digit"
    assert "recompute none" in none and "recompute all" in everything
    own_schedule = re.fullmatch(
        r"makespans \{1: (\d+), 2: (\d+), 3: (\d+), 4: (\d+)\}: (\d) forwards first   loss .*", printed["own_schedule"][0]
    )
    assert own_schedule is not None
    makespans = [int(x) for x in own_schedule.groups()[:4]]
    assert makespans[0] > min(makespans), "one forward first is not the best"
    assert makespans[int(own_schedule[5]) - 1] == min(makespans), "the best number of forwards is taken"


def test_an_example_without_torchrun_says_in_one_line_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    examples = ROOT / "docs/examples"
    scripts = [p for p in examples.rglob("*.py") if "torchrun" in p.read_text(encoding="utf-8").split("\n")[0]]
    assert len(scripts) > 8
    for path in scripts:
        command = re.findall(r"torchrun .* " + path.name, path.read_text(encoding="utf-8").split("\n")[0])[0]
        with monkeypatch.context() as context:
            for package in ("data", "models"):  # of docs/examples/own_loop
                context.delitem(sys.modules, package, raising=False)
            context.syspath_prepend(str(path.parent))
            with pytest.raises(SystemExit) as stopped:
                runpy.run_path(str(path), run_name="__main__")
        assert stopped.value.code == f"start it with: {command}"


def test_the_example_that_inspects_a_program_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch is imported')\n")
    script = SMALL / "inspect_program.py"
    code = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({str(script)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "rank 3: 8 forwards, 8 backwards" in done.stdout
    assert "hop 0: makespan 30, bubble ratio 0.200" in done.stdout


def test_every_example_is_linked_in_docs_examples_and_the_small_ones_have_at_most_44_lines() -> None:
    page = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs/examples").rglob("*.py"):
        if path.name != "__init__.py":
            assert f"](examples/{path.relative_to(ROOT / 'docs/examples')})" in page, path
        if path.parent == SMALL:
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 44, path
