"""Orders of tasks that torch.distributed.pipelining and `Pipeline` both run, with gradients that are equal up to rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.exchange.torch_csv import program_to_csv
from chimerac.compiler.lower.relower import arranged
from tests.helpers_processes import run_script

# An order that `chimerac search interleaved -p D=2 -p N=4 --split --hop 0.5` found; the library does not have it.
SEARCHED = Path(__file__).with_name("searched.sched")
EXPORTED = {"gpipe": {}, "1f1b": {}, "interleaved": {"v": 2}, "zb_v": {}}


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [2, 4])
def test_torch_and_pipeline_compute_the_same_gradients_in_each_order(ranks: int, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    programs = {name: compile_schedule(name, {"D": ranks, "N": 2 * ranks, **more}).program for name, more in EXPORTED.items()}
    if ranks == 2:
        programs["searched"] = compile_text(SEARCHED.read_text()).program
    for name, program in programs.items():
        (folder / f"{name}.json").write_text(program.json())
        (folder / f"{name}.csv").write_text(program_to_csv(program, with_communication=False))
        with_messages = arranged(program, "serial")  # torch executes the messages of a rank one after another
        assert with_messages is not None
        (folder / f"{name}.comms.csv").write_text(program_to_csv(with_messages, with_communication=True))
    run_script("tests/distributed/torch_csv_ranks.py", ranks, str(folder), str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    imported = ["ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"]
    assert set(found) == {*(f"{name} {form}" for name in programs for form in ("compute_only", "compute_comms")), *imported}
    assert max(found.values()) < 1e-5, found
