"""The example of docs/any_model.md: a Hugging Face model from its configuration, trained by two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("transformers", reason="needs the extra huggingface")


@pytest.mark.distributed
def test_the_example_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = ROOT / "docs/examples/any_model/train.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run([*command, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    losses = [float(loss) for loss in re.findall(r"iteration \d   loss (\S+)", ran.stdout)]
    assert len(losses) == 10 and losses[0] > 5.4 and losses[-1] < 4.2, "it learns"
