"""What run.py makes from its options: the plan and the model of the run. Of several mistakes it reports one."""

from dataclasses import replace
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler import compile_schedule
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.workloads import model_of
from chimerac.interpreter.runtime.times import IterationTimes
from tests.helpers import findings_of_call
from tests.helpers_plan import plan


def test_d_follows_from_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert plan().program.header.parameters["D"] == 6
    assert plan("--width", "3").program.header.ranks == 2
    assert plan("-p", "D=8").program.world == 8
    assert plan("--loopback").program.world == 4, "the schedule's default D, because loopback starts no processes"
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ChimeraError, match="E210") as error:
        plan()
    assert error.value.diagnostics[0].notes == ("D = 5 follows from the 5 ranks",)


def test_a_schedule_without_d_keeps_its_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "two.sched"
    path.write_text(
        "schedule two\nranks 2\nstages 2\npipe main { stage s on rank s   micro_batches 1 }\n"
        "order ticks {\n    F(s, m) at s\n    B(s, m) at 3 - s\n}\n"
    )
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert plan(str(path)).program.world == 2


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_compiled_program_is_read_in_either_form_and_verified(form: str, tmp_path: Path) -> None:
    program = compile_schedule("chimera", {"D": 2}).program
    text = {"json": program_to_json, "text": program_to_text}[form](program)
    path = tmp_path / "program"
    path.write_text(text)
    made = plan(str(path))
    assert made.program == program and made.evaluation.header.kind == "evaluation" and made.predicted is not None
    for words in (["-p", "D=2"], ["--width", "1"]):
        with pytest.raises(ChimeraError, match="E808"):
            plan(str(path), *words)
    path.write_text(text.replace('"peer": 1', '"peer": 0') if form == "json" else text.replace("-> 1", "-> 0"))
    with pytest.raises(ChimeraError, match="E4"):  # a finding of the verifier
        plan(str(path))


def test_a_timed_plan_has_the_simulators_times() -> None:
    timed = plan("--timed", "20")
    assert timed.evaluation is None
    assert timed.predicted == IterationTimes(last_task_end=16, bubbles=(0.25,) * 4)  # in units of cost


def test_a_mistake_is_reported_and_of_two_mistakes_the_one_that_is_checked_first(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short")
    for words, code in (
        (["--log-file", "/nowhere/log", "--model", "gpt-smal"], "E811"),
        (["--export", "/nowhere/w.pt", "--model", "gpt-smal"], "E835"),
        (["--model", "gpt-smal", "-p", "N=3"], "E801"),
        (["--model", "gpt-small/0"], "E801"),
        (["--model", "gpt-small/-1"], "E801"),
        (["--model", "gpt-small/10001"], "E801"),
        (["--data", str(tmp_path / "gone"), "-p", "N=3"], "E802"),
        (["--data", str(tmp_path / "short"), "-p", "N=3"], "E803"),
        (["-p", "N=3"], "E210"),
        (["schedules/chimera_halving.sched", "--micro-batch", "3"], "E804"),
        (["schedules/zb_v.sched", "-p", "D=4", "--model", "gpt-small"], "E705"),
    ):
        assert [d.code for d in findings_of_call(plan, *words)] == [code]


def test_the_default_model_has_at_least_one_layer_for_each_stage_and_a_given_model_is_kept() -> None:
    """NAME/K has K blocks, and K + 2 layers."""
    for words, name in (
        (["schedules/zb_v.sched", "-p", "D=4"], "gpt-small/6"),
        (["schedules/zb_v.sched", "-p", "D=2"], "gpt-small"),
        (["schedules/gpipe.sched", "-p", "D=40", "--micro-batch", "1"], "gpt-small/38"),
        (["schedules/zb_v.sched", "-p", "D=2", "--model", "gpt-nano/9"], "gpt-nano/9"),
    ):
        settings = parse_options(words)
        program = make_plan(settings).program
        model = model_of(settings, program)
        assert model.name == name
        assert len(model.layers) >= program.header.stages


def test_a_program_with_a_partition_gets_the_model_of_the_partition_if_it_is_a_preset() -> None:
    program = compile_schedule("chimera", {"D": 4}).program
    # No preset has the name "mine", so the program gets the default model.
    for model_of_partition, expected in (("gpt-micro", "gpt-micro"), ("mine", "gpt-small")):
        partitioned = replace(program, partition=Partition(model_of_partition, ((0, 2), (2, 3), (3, 4), (4, 6))))
        assert model_of(parse_options([]), partitioned).name == expected
