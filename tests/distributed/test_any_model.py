"""The example of docs/any_model.md: a Hugging Face model from its configuration, trained by two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers_processes import run_script

pytest.importorskip("transformers", reason="needs the extra huggingface")


@pytest.mark.distributed
def test_the_example_trains(tmp_path: Path) -> None:
    output = run_script("docs/examples/any_model/train.py", 2, folder=tmp_path, HF_HUB_OFFLINE="1")
    losses = [float(loss) for loss in re.findall(r"iteration \d   loss (\S+)", output)]
    assert len(losses) == 10 and losses[0] > 5.4 and losses[-1] < 4.2, "it begins near log 256 = 5.55, and learns"
