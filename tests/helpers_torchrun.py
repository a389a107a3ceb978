"""Runs a script under torchrun for a test. The script writes its results as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def results_of(script: str, ranks: int, out: Path, restarts: int = 0) -> Any:
    """Run a script of tests/distributed on `ranks` ranks of this machine; return the JSON that it writes to `out`.

    restarts: how often torchrun starts the ranks again after a failure.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", str(restarts)]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, f"tests/distributed/{script}", str(out)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=100 * (1 + restarts),
    )
    assert run.returncode == 0, run.stderr
    return json.loads(out.read_text())
