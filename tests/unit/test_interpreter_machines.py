"""Programs for another machine than that of the transport: one that hangs or may hang there is refused (E816)."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.compiler import compile_schedule, load_program, simulate
from chimerac.compiler.command.main import main as chimerac
from chimerac.compiler.explain.entries import entries
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_classifier import SAMPLES, batch, net, pipeline
from tests.helpers_plan import plan


def crossing_program(tmp_path: Path) -> Path:
    """Return the path of a program in which both ranks send before they receive.

    It ends on the machine `posted`, where no SEND waits, and hangs on window(0).
    """
    path = tmp_path / "my crossing.streams"
    path.write_text(entries()["E816"].wrong)
    return path


def test_a_program_that_hangs_on_the_transport_is_refused_and_arranging_it_was_tried(tmp_path: Path) -> None:
    path = crossing_program(tmp_path)
    for words in ([], ["--transport", "nccl"], ["--timed", "5"]):
        with pytest.raises(ChimeraError, match="E816") as error:
            plan(str(path), *words)
        (found,) = error.value.diagnostics
        transport = "nccl" if "nccl" in words else "gloo"
        assert found.message == f"{path} is for the posted machine, and ranks over {transport} run window(0)"
        assert found.notes == ("deadlock on the window(0) machine: ranks 0, 1 wait for each other in a cycle",)
    command, result = found.help.removeprefix("run ").split(", then use arranged.json: ")
    assert result == "it was verified for the window machine"
    output = tmp_path / "arranged.json"
    assert chimerac([*shlex.split(command)[1:-1], str(output)]) == 0  # with another path to write
    assert plan(str(output)).evaluation.header.machine == "window"
    # Loopback runs every machine: that of the header, or that of --machine. The evaluation is for the same machine.
    assert plan(str(path), "--loopback").evaluation.header.machine == "posted"
    assert plan(str(path), "--loopback", "--machine", "serial").evaluation.header.machine == "serial"


def test_the_help_says_so_if_arranging_fails(tmp_path: Path) -> None:
    """One receive buffer is enough for RECVs that are posted late. `--for window` posts them early, and needs more."""
    path = crossing_program(tmp_path)
    text = path.read_text().replace("pipe down", "limits receive_buffers=1\npipe down", 1)
    for gradient, last_send in (  # on each rank, the RECV of the gradient is moved right after the last SEND
        ("grad down s0 m0 <- 1", "SEND grad up s0 m1 -> 1"),
        ("grad up s0 m1 <- 0", "SEND grad down s0 m0 -> 0"),
    ):
        text = text.replace(f"; RECV {gradient}", "").replace(last_send, f"{last_send}; RECV {gradient}")
    path.write_text(text)
    with pytest.raises(ChimeraError, match="E816") as error:
        plan(str(path))
    assert error.value.diagnostics[0].help == "add --loopback; --for window was tried, and results in E460"


@pytest.mark.parametrize("machine", ["posted", "window", "rendezvous", "paired", "serial"])
def test_a_program_that_ends_on_the_transport_is_accepted_for_any_machine_in_the_header(machine: str, tmp_path: Path) -> None:
    program = compile_schedule("chimera", {"D": 2}, machine=machine, arrange=True).program
    path = tmp_path / "p.json"
    path.write_text(program_to_json(program))
    found = plan(str(path))
    assert found.program == program and found.evaluation.header.machine == "window"
    timed = plan(str(path), "--timed", "5").predicted
    assert timed.last_task_end == simulate(program.with_header(machine="window")).makespan


def test_without_the_compiler_only_programs_for_posted_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    program = compile_schedule("chimera", {"D": 2}).program
    monkeypatch.setitem(sys.modules, "chimerac.interpreter.launch.compiling", None)  # its import now fails
    for machine in ("window", "rendezvous", "paired", "serial"):
        path.write_text(program_to_json(program.with_header(machine=machine)))
        assert plan(str(path)).program.header.machine == machine
    path.write_text(program_to_json(program.with_header(machine="posted")))
    with pytest.raises(ChimeraError, match="E816") as error:
        plan(str(path))
    assert error.value.diagnostics[0].notes == ("only the compiler can check whether it ends there",)
    assert plan(str(path), "--loopback").program.header.machine == "posted"


@pytest.mark.parametrize("given", ["program", "text", "path"])
def test_a_pipeline_of_a_program_that_hangs_on_its_transport_is_refused(given: str, tmp_path: Path) -> None:
    path = crossing_program(tmp_path)
    crossing = load_program(path)
    schedule: Any = {"program": crossing, "text": path.read_text(), "path": path}[given]

    x, y = batch(SAMPLES * 2)

    def run(transport: Transport) -> float:
        return pipeline(schedule, transport).step(x, y)

    expected = F.cross_entropy(net()(x), y).item()
    assert run_in_loopback(crossing, run) == pytest.approx([expected] * 2, rel=1e-5), "the program ends on posted"
    with pytest.raises(ChimeraError, match="E816") as error:
        run_in_loopback(crossing, run, machine="window")
    (found,) = error.value.diagnostics
    assert found.message == "copies is for the posted machine, and the ranks of this pipeline run window(0)"
    command, result = found.help.removeprefix("run ").split(", then use arranged.json: ")
    assert result == "it was verified for the window machine"
    if given == "path":
        output = tmp_path / "arranged.json"
        assert chimerac([*shlex.split(command)[1:-1], str(output)]) == 0  # with another path to write
        losses = run_in_loopback(crossing, lambda transport: pipeline(output, transport).step(x, y), machine="window")
        assert losses == pytest.approx([expected] * 2, rel=1e-5)
    else:
        assert command.startswith("chimerac PROGRAM --for window")
