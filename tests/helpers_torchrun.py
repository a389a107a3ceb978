"""Runs a script under torchrun for a test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_script(script: str, ranks: int, *arguments: str, folder: Path = ROOT, restarts: int = 0, **environment: str) -> str:
    """Run a script of this project on `ranks` ranks of this machine; return its output. Fails if the script fails.

    script: its path in the project; folder: the one that it runs in; restarts: how often torchrun starts the ranks again after
    a failure.
    """
    inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    run = subprocess.run(
        [*torchrun, "--max-restarts", str(restarts), str(ROOT / script), *arguments],
        cwd=folder,
        env=inherited | own | environment,
        text=True,
        capture_output=True,
        timeout=100 * (1 + restarts),
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def results_of(script: str, ranks: int, out: Path, restarts: int = 0) -> Any:
    """Run a script of tests/distributed; return the JSON that it writes to `out`, its only argument."""
    run_script(f"tests/distributed/{script}", ranks, str(out), restarts=restarts)
    return json.loads(out.read_text())


def run_in_own_loop_project(script: str, ranks: int, folder: Path) -> Path:
    """Run a script of tests/distributed in a copy of docs/examples/own_loop below this folder; return the copy."""
    project = folder / "project"
    shutil.copytree(ROOT / "docs/examples/own_loop", project, ignore=shutil.ignore_patterns("__pycache__"))
    run_script(f"tests/distributed/{script}", ranks, folder=project)
    return project
