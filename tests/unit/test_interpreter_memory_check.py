"""The check that the ranks of a host have the memory that they need: what they need, and how much is available."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.program import Machine
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.memory import memory
from chimerac.interpreter.launch import available_memory, job
from chimerac.interpreter.launch.job import TrainingJob
from chimerac.interpreter.launch.memory_check import check_memory
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.start import make_job
from chimerac.interpreter.runtime.describe import describe
from chimerac.models.gpt import gpt
from tests.helpers import findings_of_call

NANO = describe(gpt("gpt-nano", sequence_length=32), samples=4)
WORDS = ["schedules/chimera.sched", "-p", "D=4", "--model", "gpt-nano", "--seq-len", "32"]
BY_RANK = memory(compile_schedule("chimera", {"D": 4}).program, NANO)
# The bytes that each rank needs: its peak, and AdamW's state, which is twice as large as the gradients.
NEEDED = [r.peak + 2 * r.gradients for r in BY_RANK]


def check(
    available: int, monkeypatch: pytest.MonkeyPatch, *words: str, ranks_here: int = 4, checks_gradients: bool = False
) -> None:
    """Check the memory of a run on a host, or on a GPU, with this many bytes available.

    Args:
        words: more options of the run.
        ranks_here: how many ranks the host has.
        checks_gradients: as in `check_memory`.
    """
    settings = parse_options([*WORDS, *words])
    monkeypatch.setattr(available_memory, "available_memory_bytes", lambda _: available)
    check_memory(make_plan(settings), settings, NANO, ranks_here, checks_gradients)


def test_ranks_that_need_too_much_are_refused_with_the_bytes_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    check(sum(NEEDED), monkeypatch)
    [found] = findings_of_call(check, sum(NEEDED) - 1, monkeypatch)
    assert found.code == "E818"
    assert found.message == (
        f"this host has {sum(NEEDED) - 1:,} bytes available, and its 4 ranks need {sum(NEEDED):,} to train gpt-nano"
    )
    weights, gradients = (sum(getattr(r, name) for r in BY_RANK) for name in ("weights", "gradients"))
    rest = sum(NEEDED) - weights - 3 * gradients
    assert found.notes == (
        f"weights {weights:,}, gradients {gradients:,}, optimizer state {2 * gradients:,}, activations and messages {rest:,}",
    )
    check(0, monkeypatch, "--no-memory-check")


@pytest.mark.parametrize("machine", ["posted", "rendezvous"])
def test_the_bytes_are_those_of_the_machine_that_runs_the_program(machine: Machine, tmp_path: Path) -> None:
    """A message is held until its SEND is known to be complete. The machine decides at which instruction that is."""
    path, program = tmp_path / "p.json", compile_schedule("chimera", {"D": 2, "N": 8}, machine=machine).program
    path.write_text(program_to_json(program))
    bytes_on = {m: [r.peak for r in memory(program.with_header(machine=m), NANO)] for m in ("window", machine)}
    assert bytes_on["window"] != bytes_on[machine]
    for words, runs_on in (([], "window"), (["--loopback"], machine), (["--loopback", "--machine", "window"], "window")):
        settings = parse_options([str(path), *words])
        found = make_plan(settings).memory(NANO, settings.zero)
        assert [r.weights + r.gradients + r.others for r in found] == bytes_on[runs_on]


def test_only_the_ranks_of_this_host_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")  # this host has ranks 2 and 3
    here = NEEDED[2] + NEEDED[3]
    check(here, monkeypatch, ranks_here=2)
    with pytest.raises(ChimeraError, match=f"its 2 ranks need {here:,}"):
        check(here - 1, monkeypatch, ranks_here=2)
    with pytest.raises(ChimeraError, match=f"its 4 ranks need {sum(NEEDED):,}"):
        check(here, monkeypatch, "--loopback")  # then this process has all ranks


def test_ranks_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")  # GPU 1 has ranks 1 and 3
    shared = NEEDED[1] + NEEDED[3]
    check(shared, monkeypatch, "--transport", "staged")
    with pytest.raises(ChimeraError, match=f"E818: GPU 1 of this host has .* its 2 ranks need {shared:,}"):
        check(shared - 1, monkeypatch, "--transport", "staged")


def test_the_whole_model_of_the_gradient_check_and_sharded_state_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = 2 * 4 * NANO.parameters  # weights and gradients, in float32; they are freed before AdamW has state
    needed = sum(r.peak + max(2 * r.gradients, whole) for r in BY_RANK)
    check(needed, monkeypatch, checks_gradients=True)
    with pytest.raises(ChimeraError, match="E818") as error:
        check(needed - 1, monkeypatch, checks_gradients=True)
    assert f"the check of the gradients: {whole:,} for each rank once" in error.value.diagnostics[0].notes[1]
    sharded = sum(r.peak for r in BY_RANK) + 2 * 4 * NANO.parameters  # all ranks together have AdamW's state once
    check(sharded, monkeypatch, "--zero")
    with pytest.raises(ChimeraError, match="E818"):
        check(sharded - 1, monkeypatch, "--zero")


def test_a_job_is_refused_before_any_weight_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_job` refuses it. For a preset it builds no weights: they are built when the job runs."""
    settings = parse_options([*WORDS, "--loopback"])
    plan = make_plan(settings)
    assert isinstance(make_job(plan, settings, ranks_here=4), TrainingJob)
    monkeypatch.setattr(available_memory, "available_memory_bytes", lambda _: 1000)
    with pytest.raises(ChimeraError, match="E818"):
        make_job(plan, settings, ranks_here=4)


def test_activations_are_counted_in_the_dtype_in_which_the_device_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def activation_bytes(*words: str) -> int:
        settings = parse_options([*WORDS, "--loopback", "--no-check-gradients", *words])
        with pytest.raises(ChimeraError, match="E818") as error:
            make_job(make_plan(settings), settings, ranks_here=4)
        (text,) = re.findall(r"activations and messages ([\d,]+)", error.value.diagnostics[0].notes[0])
        return int(text.replace(",", ""))

    monkeypatch.setattr(available_memory, "available_memory_bytes", lambda _: 1000)
    assert activation_bytes("--dtype", "bf16") < 0.8 * activation_bytes()
    devices = []  # for each job, the device for which its model is described
    monkeypatch.setattr(job, "describe", lambda model, size, device: devices.append(device) or describe(model, size))
    for words in (["--dtype", "bf16", "--transport", "nccl"], ["--dtype", "bf16"], ["--transport", "nccl"]):
        settings = parse_options([*WORDS, "--no-memory-check", *words])
        make_job(make_plan(settings), settings, ranks_here=4)
    assert devices == [torch.device("cuda"), None, None]


def test_the_available_memory_is_limited_by_the_host_and_by_each_cgroup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(available_memory, "cgroups", lambda _: [])
    of_host = available_memory.available_memory_bytes(cpu)
    assert 0 < of_host <= psutil.virtual_memory().total
    inner, outer, old = tmp_path / "a" / "b", tmp_path / "a", tmp_path / "old"
    for folder, limit, used, stat in (
        (inner, "max", 5, "inactive_file 1"),
        (outer, 1000, 700, "anon 3\ninactive_file 40"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("memory.max", limit), ("memory.current", used), ("memory.stat", stat)):
            (folder / name).write_text(f"{value}\n")
    old.mkdir()
    for name, value in (("limit_in_bytes", 100), ("usage_in_bytes", 60), ("stat", "inactive_file 1\ntotal_inactive_file 5")):
        (old / f"memory.{name}").write_text(f"{value}\n")
    groups = [(inner, 2), (outer, 2), (tmp_path / "none", 2), (old, 1)]  # folders with their versions of cgroups
    monkeypatch.setattr(available_memory, "cgroups", lambda _: groups)
    assert available_memory._available_in_cgroups() == [1000 - (700 - 40), 100 - (60 - 5)], "the cache of files can be freed"
    assert available_memory.available_memory_bytes(cpu) == 100 - (60 - 5), "the smallest of them"
