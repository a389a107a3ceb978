"""Runs the programs of docs/examples/small one after the other in the same ranks; rank 0 writes what it printed, as JSON.

Usage: PYTHONPATH=. torchrun --nproc-per-node 2 tests/distributed/small_examples.py OUT
"""

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tools import ROOT

SMALL = ROOT / "docs/examples/small"


def main() -> None:
    """Run all programs. No program may leave a process group behind."""
    torch.set_num_threads(1)
    printed = {}
    for script in sorted(SMALL.glob("*.py")):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(str(script), run_name="__main__")
        assert not dist.is_initialized(), script
        printed[script.stem] = output.getvalue().splitlines()
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps(printed))


if __name__ == "__main__":
    main()
