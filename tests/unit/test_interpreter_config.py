"""Config files of run.py: what they may hold, what overrides what, and the message for each mistake."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


# One value of every option that is not its default, as the words of the command line.
WORDS = shlex.split("""
s.sched -p D=4 -p N=8 --width 2 --model gpt-nano --data text --transport gloo --loopback --machine serial --iterations 9
--micro-batch 3 --accumulate 2 --seq-len 9 --dtype bf16 --lr 1e-2 --lr-schedule linear --lr-floor 0 --warm-up 0 --betas 0 0.5
--weight-decay 0 --clip 2 --skip-nonfinite --max-skipped 7 --dropout 0.5 --seed 7 --compile --zero --save-dir saved
--save-every 3 --keep 2 --async-save --resume auto --export model.pt --eval-every 2 --eval-samples 5 --log-file log
--tensorboard board --trace t.json --profile-ranges --check-gradients --no-memory-check --timeout 1e1
""")
