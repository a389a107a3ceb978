"""Runs that are refused or that fail: their findings and messages, and how their ranks end.

One run, with an uneven partition, succeeds. Further tests of processes that fail are in test_faults.py, test_first_run.py and
test_waits.py.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.partition import Partition
from chimerac.compiler import compile_schedule, evaluation_of
from chimerac.interpreter.launch.compiling import plan_of
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.start import make_job, start
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.programs import TWO_RANKS
from tests.helpers_processes import (
    CHIMERA,
    LONG,
    RUN,
    TINY,
    TORCHRUN,
    children,
    free_port,
    have_ended,
    run_command,
    start_process,
    training_rank_of_two,
)

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("different", "finding"),
    [
        (["-p", "N=4"], "E806: rank 0 and rank 1 have a different program: "),
        (["--model", "gpt-micro"], "E807: rank 0 and rank 1 have a different table of boundary values: "),
        (["--seq-len", "16"], "E807: rank 0 and rank 1 have a different table of boundary values: "),
        (["--lr", "1e-2"], r"E809: .* training \(settings\): --lr is 0.001 on rank 0 and 0.01 on rank 1"),
        (["--dropout", "0.1"], "E809: .*: --dropout is 0.0 on rank 0 and 0.1 on rank 1"),
        (["--eval-every", "3"], "E809: .*: --eval-every is not given on rank 0 and 3 on rank 1"),
        (["--no-check-gradients"], "E809: .*: --check-gradients is yes on rank 0 and no on rank 1"),
        (["--timeout", "9"], "E809: .*: --timeout is 300.0 on rank 0 and 9.0 on rank 1"),
        (["--iterations", "9"], "E809: .*: --iterations is 200 on rank 0 and 9 on rank 1"),
        (["--data", "DATA"], r"E809: rank 0 and rank 1 have a different training \(model or data\)"),
        (["--seed", "1"], "E809: rank 0 and rank 1 have a different training"),
    ],
)
def test_ranks_with_different_settings_are_refused(different: list[str], finding: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("to be or not to be " * 99)
    words = [str(tmp_path / "data") if word == "DATA" else word for word in different]
    jobs, plans = [], []
    for extra in ([], words):
        settings = parse_options(["-p", "D=2", *TINY, *extra])
        plans.append(make_plan(settings))
        jobs.append(make_job(plans[-1], settings, ranks_here=2))

    def rank(transport: Transport) -> int:
        return jobs[transport.rank].run(transport)

    with pytest.raises(ChimeraError, match=finding):
        run_in_loopback(plans[0].program, rank)


def test_ranks_with_different_partitions_are_refused(tmp_path: Path) -> None:
    """E817: their programs have the same digest, and their messages the same size, so no other check finds this."""
    program, jobs = compile_schedule("gpipe", {"D": 2}).program, []
    for rank, end in enumerate((1, 2)):
        path = tmp_path / f"{rank}.json"
        path.write_text(program_to_json(replace(program, partition=Partition("gpt-nano", ((0, end), (end, 4))))))
        settings = parse_options([str(path), *TINY])
        jobs.append(make_job(make_plan(settings), settings, ranks_here=2))
    with pytest.raises(ChimeraError) as error:
        run_in_loopback(program, lambda transport: jobs[transport.rank].run(transport))
    message = "rank 0 and rank 1 have a different partition, stage 0: layers 0 to 0 and layers 0 to 1"
    assert [(d.code, d.message) for d in error.value.diagnostics] == [("E817", message)]


def test_an_uneven_partition_in_a_program_file_is_run_and_its_gradients_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    program = compile_schedule("chimera", {"D": 2}).program
    path.write_text(program_to_json(replace(program, partition=Partition("gpt-nano", ((0, 3), (3, 4))))))
    settings = parse_options([str(path), *TINY, "--loopback", "--check-gradients"])
    assert start(make_plan(settings), settings) == 0
    assert "gradients equal one process" in capsys.readouterr().out


def test_two_real_ranks_with_different_options_are_refused_and_rank_0_says_why() -> None:
    """If only one rank evaluated, or checked gradients, the ranks would deadlock."""
    port = free_port()
    different = ["--eval-every", "1", "--no-check-gradients"]
    command_0, environment_0 = training_rank_of_two(0, "-p", "D=2", *TINY, port=port)
    command_1, environment_1 = training_rank_of_two(1, "-p", "D=2", *TINY, *different, port=port)
    with start_process(*command_0, **environment_0) as process_0, start_process(*command_1, **environment_1) as process_1:
        _, message = process_0.communicate(timeout=60)
        assert process_0.returncode == 1
        assert process_1.poll() is None, "rank 1 must not exit before rank 0 has printed its message"
    assert message == (
        "error[E809]: rank 0 and rank 1 have a different training (settings): "
        "--eval-every is not given on rank 0 and 1 on rank 1\n"
        " = note: --check-gradients is yes on rank 0 and no on rank 1\n"
        " = help: start every rank with the same files, options and versions\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--timed", "20", "--loopback"], "--timed needs ranks that sleep at the same time"),
        (["--transport", "nccl", "--loopback"], "--transport nccl is for ranks in processes"),
        (["--machine", "serial"], "--machine is for --loopback"),
    ],
)
def test_contradicting_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(words)
    assert message in capsys.readouterr().err


def test_an_option_without_its_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--log-file"])
    assert "--log-file: expected one argument" in capsys.readouterr().err


def test_the_command_has_one_message_for_contradicting_options() -> None:
    refused = run_command(sys.executable, RUN, "--loopback", "--timed", "9")
    assert refused.returncode == 2 and refused.stderr.count("error:") == 1


def test_an_evaluation_program_cannot_train(tmp_path: Path) -> None:
    program = evaluation_of(compile_schedule("chimera", {"D": 2}).program)
    with pytest.raises(ChimeraError, match="E814"):
        plan_of(program, timed=False)
    path = tmp_path / "p.json"
    path.write_text(program_to_json(program))
    with pytest.raises(ChimeraError, match="E814"):
        make_plan(parse_options([str(path)]))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["-p", "D=2", "--log-file", "/nowhere/run.jsonl"], "E811"),
        (["-p", "D=2", "--iterations", "30", "--lr", "1e30"], "E812"),
        (["-p", "D=6", *TINY], "E705"),  # more stages than the model has layers
        (["-p", "D=2", "--data", "/nowhere"], "E802"),
        (["-p", "D=2", "--data", "SHORT"], "E803"),
        (["PROGRAM", "-p", "D=2"], "E808"),
        (["/nowhere/p.json"], "E001"),
        (["-p", "D=2", "--model", "gpt"], "E801"),
        (["-p", "D=3"], "E210"),
        (["-p", "Q=3"], "E203"),
    ],
)
def test_each_mistake_is_a_finding(options: list[str], code: str, tmp_path: Path) -> None:
    files = {"SHORT": "short", "PROGRAM": program_to_json(TWO_RANKS["two replicas"])}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    words = [str(tmp_path / word) if word in files else word for word in options]
    settings = parse_options([*words, *TINY] if "--model" not in options else words)
    with pytest.raises(ChimeraError) as error:
        job = make_job(plan := make_plan(settings), settings, ranks_here=2)
        run_in_loopback(plan.program, lambda transport: job.run(transport))
    assert [d.code for d in error.value.diagnostics] == [code]


def test_a_deadlock_on_a_machine_is_reported() -> None:
    run = run_command(sys.executable, RUN, *CHIMERA, *TINY, "--loopback", "--machine", "serial")
    assert run.returncode == 1
    assert "error: deadlock on the serial machine:\n  rank 0, instruction" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_closed_output_pipe_ends_the_job_and_no_rank_prints_an_error() -> None:
    command = [*TORCHRUN, *LONG]
    with start_process(*command) as process:
        assert process.stdout is not None and "chimera: 2 ranks" in process.stdout.readline()
        ranks = children(process.pid)
        process.stdout.close()
        assert process.stderr is not None
        message = process.stderr.read()
        process.wait(timeout=60)
        assert have_ended(ranks, within_s=5)
    assert "interpreter/launch/job.py" not in message and "BrokenPipeError" not in message
    assert not re.search("^error", message, re.MULTILINE)
