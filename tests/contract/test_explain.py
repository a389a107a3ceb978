"""`chimerac explain`: the command, and its examples, which are run. Wrong ones have their finding, corrected ones have none.

For the codes of SHOWN_BY, another test raises the code instead.
"""

from __future__ import annotations

import ast
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler.command.main import main
from chimerac.compiler.explain.entries import Entry, entries, hundreds
from chimerac.compiler.explain.page import run
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.start import make_job, run_rank
from chimerac.interpreter.pipeline.world import check_world
from tools import ROOT

# Entries whose examples run as chimerac, in the process of the test.
COMPILED = [e for e in entries().values() if not e.run.startswith(("torchrun", "python"))]

# For codes whose example needs several ranks, or other hardware, files or packages: the test that raises the code instead.
SHOWN_BY = {
    "E806": "tests/distributed/test_failures.py::test_ranks_with_different_settings_are_refused",
    "E807": "tests/distributed/test_failures.py::test_ranks_with_different_settings_are_refused",
    "E809": "tests/distributed/test_failures.py::test_ranks_with_different_settings_are_refused",
    "E810": "tests/unit/test_interpreter_executor_loopback.py::test_copies_that_differ_are_named_before_the_first_iteration",
    "E811": "tests/distributed/test_failures.py::test_each_mistake_is_a_finding",
    "E812": "tests/distributed/test_failures.py::test_each_mistake_is_a_finding",
    "E813": "tests/distributed/test_training.py::test_a_program_runs_where_the_compiler_is_not",
    "E815": "tests/contract/test_explain.py::test_a_transport_that_needs_a_gpu_is_refused_without_one",
    "E817": "tests/distributed/test_failures.py::test_ranks_with_different_partitions_are_refused",
    "E818": "tests/unit/test_interpreter_memory_check.py::test_a_job_is_refused_before_any_weight_is_built",
    "E819": "tests/unit/test_interpreter_addresses.py::test_a_host_that_others_cannot_reach_is_refused",
    "E830": "tests/unit/test_interpreter_checkpoint.py::test_a_folder_that_cannot_be_written_is_refused_before_training",
    "E831": "tests/unit/test_interpreter_checkpoint.py::test_a_checkpoint_of_another_run_is_refused_with_both_values",
    "E832": "tests/unit/test_interpreter_checkpoint.py::test_if_no_checkpoint_can_be_read_the_run_does_not_start",
    "E833": "tests/unit/test_interpreter_checkpoint.py::test_a_new_run_does_not_mix_its_checkpoints_with_those_of_another",
    "E834": "tests/unit/test_interpreter_checkpoint.py::test_another_number_of_samples_is_refused_with_values_that_fit",
    "E835": "tests/unit/test_interpreter_own_loop.py::test_an_export_that_is_not_possible_is_refused_before_the_run",
    "E840": "tests/unit/test_interpreter_record.py::test_tensorboard_without_its_package_is_refused_before_anything_starts",
    "E850": "tests/unit/test_adapters_huggingface.py::test_wrong_configurations_are_refused",
    "E851": "tests/unit/test_adapters_refused.py::test_layers_that_the_module_does_not_have_are_refused",
    "E852": "tests/unit/test_adapters_refused.py::test_a_module_that_cannot_be_cut_is_refused_with_the_call",
    "E853": "tests/unit/test_adapters_refused.py::test_other_calls_than_the_traced_ones_are_refused",
    "E854": "tests/unit/test_adapters_huggingface.py::test_wrong_configurations_are_refused",
    "E855": "tests/unit/test_adapters_huggingface.py::test_weights_that_do_not_fit_are_refused",
    "E856": "tests/unit/test_adapters_own.py::test_a_loss_that_is_a_mean_is_refused",
    "E860": "tests/unit/test_data_prepared.py::test_a_folder_that_cannot_be_written_is_refused",
    "E862": "tests/unit/test_data_generate.py::test_a_file_that_does_not_fit_is_refused",
}
# Entries whose examples start a run. The tests do what a rank does up to the first communication of the ranks.
STARTED = [e for e in entries().values() if e.run.startswith("torchrun") and e.code not in SHOWN_BY]


@pytest.mark.parametrize("e", COMPILED, ids=lambda e: e.code)
def test_the_wrong_example_is_refused_and_the_corrected_one_is_not(e: Entry) -> None:
    status, output = run(e.file, e.wrong, e.run, main)
    codes = re.findall(r"^error\[(E\d{3})\]", output, re.MULTILINE)
    assert set(codes) == {e.code}, "an example has one mistake, and so one code"
    assert status == (2 if e.code.startswith("E0") else 1)  # E0xx: the command line and its files
    assert "invalid" not in output, "the message must say what would be valid"
    assert run(e.file, e.right, e.rerun, main) == (0, "")


def start(e: Entry, text: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a rank does before the ranks communicate.

    Args:
        text, command: of the wrong or of the corrected example.
    """
    if e.file:
        Path(e.file).write_text(text)
    torchrun, option, ranks, program, *words = shlex.split(command)
    assert (torchrun, option, program) == ("torchrun", "--nproc-per-node", "interpreter/run.py")
    monkeypatch.setenv("WORLD_SIZE", ranks)
    options = parse_options(words)
    plan = make_plan(options)
    check_world(plan.program, int(ranks))
    make_job(plan, options, ranks_here=int(ranks))


@pytest.mark.parametrize("e", STARTED, ids=lambda e: e.code)
def test_the_wrong_start_is_refused_and_the_corrected_one_is_not(
    e: Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ChimeraError) as error:
        start(e, e.wrong, e.run, monkeypatch)
    assert [d.code for d in error.value.diagnostics] == [e.code]
    start(e, e.right, e.rerun, monkeypatch)


def test_every_code_has_an_example_that_is_run_here_or_another_test() -> None:
    assert {e.code for e in (*COMPILED, *STARTED)} | {*SHOWN_BY} == {*entries()}


@pytest.mark.parametrize("code", SHOWN_BY)
def test_the_other_test_of_a_code_exists_and_contains_the_code(code: str) -> None:
    path, name = SHOWN_BY[code].split("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    assert code in "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def test_a_transport_that_needs_a_gpu_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, value in {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0", "RANK": "0"}.items():  # as torchrun sets them
        monkeypatch.setenv(name, value)
    *_, arguments = entries()["E815"].run.partition("interpreter/run.py")
    options = parse_options(shlex.split(arguments))
    with pytest.raises(ChimeraError, match="E815"):
        run_rank(make_plan(options), options)


# --- the command --------------------------------------------------------------------------------------------------------


def explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit status of the command, and what it writes to stdout and to stderr."""
    status = main(["explain", *words])
    return (status, *capsys.readouterr())


def test_a_code_is_explained_however_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = explain(capsys, "E303")
    assert (status, err) == (0, "")
    e = entries()["E303"]
    assert out.startswith(f"E303: {e.title}\n") and "error[E303]: rank 0 has two tasks on tick 4" in out
    assert e.corrected in out and "\n    -     B(s, m) at 2*D - s + 2*m\n    +     B(s, m) at 2*D - 1 - s + 2*m\n" in out
    for word in ("e303", "303", "error[E303]", "error[E303]:", "[e303]"):
        assert explain(capsys, word) == (0, out, "")
    both = explain(capsys, "E303", "E001")[1]
    assert both.startswith(out) and "E001: " in both


def test_an_unknown_code_names_the_nearest_and_another_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = explain(capsys, "E409")
    assert (status, out) == (2, "")
    assert "there is no code E409" in err and "E410 " + entries()["E410"].title in err
    assert explain(capsys, "deadlock")[2].startswith("error[E002]: explain deadlock: expected a code like E303")


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = explain(capsys)
    assert status == 0
    assert [line[2:6] for line in out.splitlines() if line.startswith("  E")] == sorted(entries())
    assert all(h.title in out for h in hundreds())


def test_a_file_of_that_name_does_not_replace_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("explain").write_text("schedule x")
    assert main(["explain", "E208"]) == 0
    assert "E208" in capsys.readouterr().out


def test_only_errors_on_a_terminal_refer_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, refers in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert main(["chimera", "-p", "N=6", "--color", "never"]) == 1
        assert stream.getvalue().endswith("\n\nfor more: chimerac explain E210\n") == refers


@pytest.mark.parametrize("e", entries().values(), ids=lambda e: e.code)
def test_texts_have_a_common_form(e: Entry) -> None:
    """A title begins in lower case and has no full stop. The reasons are sentences. A correction has no full stop.

    The wrong example differs from the corrected one.
    """
    assert e.title[0].islower() or not e.title[0].isalpha()
    assert not e.title.endswith(".") and len(e.title) <= 90
    assert e.why[0].isupper() or not e.why[0].isalpha()
    assert e.why.endswith(".") and len(e.why.split()) >= 10
    assert e.corrected and not e.corrected.endswith(".")
    assert (e.wrong, e.run) != (e.right, e.rerun)
