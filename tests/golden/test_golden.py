"""The expected outputs of the command, in files. `make golden` rewrites them, and the diff shows what changed.

products/   streams and timelines of every schedule of the library, each after its command, and outputs of other commands
errors/     NAME.sched with its command in the first line, and the output of that command: NAME.txt
programs/   findings about wrong programs, most of them a correct one with a change, and messages about wrong command lines
inputs/     a schedule and a model, which commands of `PRODUCTS` read
"""

from __future__ import annotations

import difflib
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chimerac.chimera_ir.instructions import Bwd, Fwd, Instruction, Recv
from chimerac.chimera_ir.jsonform import json_schema, program_to_json
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler import compile_text
from chimerac.compiler.command.main import main
from tests.helpers import CASES, program, replaced, streams, with_streams

HERE = Path(__file__).parent
Run = Callable[[str], tuple[str, str, int]]
Compare = Callable[[str, str], None]


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """Return the comparison with a golden file; under --golden it writes the file."""

    def compare(name: str, text: str) -> None:
        path = HERE / name
        if request.config.getoption("--golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden", "found", lineterm="")
            pytest.fail(f"{name} differs; `make golden` rewrites it\n" + "\n".join(lines), pytrace=False)

    return compare


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that runs a command line in a temporary folder. It returns stdout, stderr and the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(line: str) -> tuple[str, str, int]:
        command, *argv = shlex.split(line)
        assert command == "chimerac"
        try:
            status = main(argv)
        except SystemExit as stop:  # argparse rejects the command line
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return out, err, status

    return run


def failing_command(line: str, run: Run, status: int) -> str:
    """Run a command that must fail. Return it with its output on stderr and its status; stdout must be empty."""
    out, err, found = run(line)
    assert (out, found) == ("", status)
    assert "Traceback" not in err
    return f"$ chimerac {line.removeprefix('chimerac ')}\n{err}[exit status {found}]\n"


# --- products -------------------------------------------------------------------------------------------------------


def file_of_case(schedule: str, parameters: tuple[tuple[str, int], ...]) -> str:
    return f"{schedule}_{'_'.join(f'{k}{v}' for k, v in parameters)}.txt"


@pytest.mark.parametrize(("schedule", "parameters"), CASES)
def test_streams_and_timeline_are_those_of_the_golden_file(
    schedule: str, parameters: tuple[tuple[str, int], ...], run: Run, compare: Compare
) -> None:
    given = " ".join(f"-p {k}={v}" for k, v in parameters)
    text = ""
    for options in (given, f"{given} --emit timeline --columns 120"):
        line = f"chimerac {schedule} {options}"
        out, err, status = run(line)
        assert (err, status) == ("", 0)
        text += f"$ {line}\n{out}\n"
    compare(f"products/{file_of_case(schedule, parameters)}", text)


PRODUCTS = {
    "width.txt": "chimerac chimera -p D=2 --width 2",
    "split.txt": "chimerac split.sched",
    "split_timeline.txt": "chimerac split.sched --emit timeline --columns 100 --cost hop=0.5",
    "ranks.txt": "chimerac chimera -p D=8 --emit timeline --ranks 0,3..4 --columns 60",
    "colour.txt": "chimerac chimera -p D=2 --emit timeline --color always",
    "chimera.json": "chimerac chimera -p D=2 --emit json",
    "schema.json": "chimerac --emit schema",
    "report.txt": "chimerac chimera -p D=4 -p N=8 --emit report --cost B=1.5 --cost hop=1/3",
    "report_model.txt": "chimerac 1f1b -p D=2 -p N=3 --emit report --model toy.json",
    "memory.txt": "chimerac 1f1b -p D=2 -p N=3 --emit memory --model toy.json --cost hop=0.5",
    "dag.graphml": "chimerac 1f1b -p D=2 -p N=1 --emit dag",
    "list.txt": "chimerac --list",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_the_golden_files(name: str, run: Run, compare: Compare) -> None:
    for given in ("split.sched", "toy.json"):
        shutil.copy(HERE / "inputs" / given, given)
    out, err, status = run(PRODUCTS[name])
    assert (err, status) == ("", 0)
    compare(f"products/{name}", out)


def test_with_o_the_output_is_written_to_the_file_and_not_printed(run: Run, compare: Compare) -> None:
    assert run("chimerac 1f1b -p D=2 -p N=1 --emit dag -o dag.dot") == ("", "", 0)
    # For a path that ends in .dot the DAG is written in another form than to stdout.
    compare("products/dag.dot", Path("dag.dot").read_text())
    assert run("chimerac chimera -p D=2 --emit json -o p.json") == ("", "", 0)
    assert Path("p.json").read_text() == (HERE / "products/chimera.json").read_text()


def test_a_compiled_program_has_the_output_of_its_schedule(run: Run) -> None:
    assert run("chimerac chimera -p D=2 --emit json -o p.json") == ("", "", 0)
    assert run("chimerac p.json")[0] == run("chimerac chimera -p D=2")[0]


def test_the_schema_of_the_api_is_that_of_the_command() -> None:
    assert json_schema() == (HERE / "products/schema.json").read_text()


# --- errors ---------------------------------------------------------------------------------------------------------

SCHEDULES_WITH_ERRORS = sorted((HERE / "errors").glob("*.sched"))


@pytest.mark.parametrize("path", SCHEDULES_WITH_ERRORS, ids=lambda path: path.stem)
def test_findings_of_wrong_schedules_are_those_of_the_golden_files(path: Path, run: Run, compare: Compare) -> None:
    shutil.copy(path, path.name)
    line = path.read_text().split("\n")[0].removeprefix("# $ ")
    compare(f"errors/{path.stem}.txt", failing_command(line, run, 1))


COMMANDS = {  # wrong command lines, and files that cannot be read or written: exit status 2
    "file_unknown": "chimerac nowhere/some.sched",
    "schedule_unknown": "chimerac chimara",
    "command_unknown": "chimerac explian E303",
    "file_is_a_folder": "chimerac .",
    "file_is_not_text": "chimerac noise.sched",
    "file_not_writable": "chimerac chimera -o nowhere/p.json",
    "parameter_without_value": "chimerac chimera -p N",
    "parameter_not_a_number": "chimerac chimera -p N=many",
    "parameter_in_two_words": "chimerac chimera -p D 4",
    "parameter_twice": "chimerac chimera -p N=4 -p N=8",
    "cost_unknown": "chimerac chimera --emit report --cost X=2",
    "cost_not_a_number": "chimerac chimera --emit report --cost F=-1",
    "cost_of_streams": "chimerac chimera --cost F=2",
    "model_of_streams": "chimerac chimera --model toy.json",
    "memory_without_model": "chimerac chimera --memory 24GiB",
    "memory_not_bytes": "chimerac chimera --model toy.json --memory 24G",
    "parameter_of_a_program": "chimerac p.json -p N=4",
    "model_unknown": "chimerac chimera --emit report --model nowhere.json",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_messages_for_wrong_usage_are_those_of_the_golden_files(name: str, run: Run, compare: Compare) -> None:
    Path("noise.sched").write_bytes(b"schedule \xff\xfe")
    Path("p.json").write_text(program_to_json(program("1f1b", D=2, N=2)))
    compare(f"programs/{name}.txt", failing_command(COMMANDS[name], run, 2))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chimerac", "give a schedule, for instance: chimerac chimera; or --list"),
        ("chimerac chimera --emit nonsense", "argument --emit: invalid choice: 'nonsense'"),
        ("chimerac chimera --width two", "argument --width: 'two' is not an integer of at most 18 digits"),
        ("chimerac chimera --nonsense", "unrecognized arguments: --nonsense"),
        ("chimerac chimera --emti report", "unrecognized arguments: --emti report; did you mean '--emit'?"),
        ("chimerac chimera gpipe", "unrecognized arguments: gpipe; one schedule is expected; chimerac compare chimera gpipe"),
    ],
)
def test_a_command_line_that_argparse_refuses_has_its_message(line: str, message: str, run: Run) -> None:
    """Only the beginning of the message is compared: argparse may word the rest differently in other versions of Python."""
    out, err, status = run(line)
    assert (out, status) == ("", 2)
    assert err.startswith("usage: chimerac") and err.count("\n") == 2
    assert f"chimerac: error: {message}" in err


RIGHT = program("1f1b", D=2, N=2)
TEXT, JSON = program_to_text(RIGHT), program_to_json(RIGHT)
CHIMERA = program_to_text(program("chimera", D=2))
RECOMPUTING = replaced(TEXT, ("FWD main s0 m0;", "FWD main s0 m0 recompute;"))

# Two pipes. Each rank first runs all forwards of its stage 0, so it sends three values before it reads one.
BOTH_WAYS = compile_text("""schedule both_ways
ranks 2   stages 2
pipe down { stage s on rank s       micro_batches 3 }
pipe up   { stage s on rank 1 - s   micro_batches 3 }
order ticks {
    F(s, m) at 10*s + m
    B(s, m) at 40 - 10*s + m
}""").program


def receives_late(stream: list[Instruction]) -> list[Instruction]:
    """Return the stream with every RECV right before the task that reads its value."""
    received = {(i.value, i.pipe, i.stage, i.micro_batches): i for i in stream if isinstance(i, Recv)}
    result: list[Instruction] = []
    for i in stream:
        if isinstance(i, Fwd | Bwd):
            key = ("act" if isinstance(i, Fwd) else "grad", i.pipe, i.stage, i.micro_batches)
            result += [received[key]] if key in received else []
        result += [] if isinstance(i, Recv) else [i]
    return result


def with_fields(**changes: object) -> str:
    """Return the JSON of a correct program with other values of these fields."""
    return json.dumps({**json.loads(JSON), **changes})


# Files with a wrong program, as text or as JSON, and two JSON files that are no programs.
PROGRAMS = {
    "json_cut_off": JSON[:900],
    "json_foreign": '{"name": "left-pad", "version": "1.3.0"}\n',
    "json_a_list": "[1, 2, 3]\n",
    "json_other_version": replaced(JSON, ('"version": 1', '"version": 2')),
    "json_field_missing": replaced(JSON, ('"ranks": 2,\n', "")),
    "json_field_unknown": replaced(JSON, ('"window": 2,\n', '"window": 2,\n"speed": 9,\n')),
    "json_field_wrong_type": with_fields(ranks="two", micro_batches=-1),
    "json_instruction_unknown": replaced(JSON, ('"op": "BWD"', '"op": "BACKWARD"')),
    "json_ids_missing": with_fields(micro_batches=3),
    "json_too_large": with_fields(stages=2**31 - 1),
    "text_instruction": replaced(TEXT, ("FWD main s0 m0;", "FWD main stage 0 m0;")),
    "text_instruction_unknown": replaced(TEXT, ("BWD main s0 m0", "BWDD main s0 m0")),
    "text_pipe_unknown": replaced(TEXT, ("BWD main s0 m0", "BWD mane s0 m0")),
    "text_header": replaced(TEXT, ("costs", "cost")),
    "text_rank": replaced(TEXT, ("rank 1:", "rank 2:")),
    "header_streams": with_fields(width=2),
    "header_placement": replaced(TEXT, ("on 0 1", "on 0 2")),
    "stage_unknown": replaced(TEXT, ("BWD main s0 m0", "BWD main s7 m0")),
    "micro_batch_twice": replaced(TEXT, ("BWD main s0 m0", "BWD main s0 m0,0")),
    "header_limit": replaced(TEXT, ("\npipe main", "\nlimits activation=1\npipe main")),
    "peer_unknown": replaced(TEXT, ("s1 m0 -> 1", "s1 m0 -> 5")),
    "peer_itself": replaced(TEXT, ("s1 m0 -> 1", "s1 m0 -> 0")),
    "task_missing": replaced(TEXT, ("  BWD main s0 m1\n", "")),
    "task_twice": replaced(TEXT, ("  BWD main s0 m1\n", "  BWD main s0 m1\n  BWD main s0 m1\n")),
    "task_on_a_wrong_rank": replaced(
        TEXT, ("  BWD main s0 m1\n", ""), ("  FWD main s1 m0\n", "  FWD main s1 m0\n  BWD main s0 m1\n")
    ),
    "recomputation_needless": replaced(TEXT, ("  BWD main s0 m0\n", "  RECOMPUTE main s0 m0\n  BWD main s0 m0\n")),
    "recomputation_twice": replaced(RECOMPUTING, ("  BWD main s0 m0\n", "  RECOMPUTE main s0 m0\n" * 2 + "  BWD main s0 m0\n")),
    "recomputation_first": replaced(RECOMPUTING, ("  FWD main s0 m0", "  RECOMPUTE main s0 m0\n  FWD main s0 m0")),
    "recomputation_late": replaced(RECOMPUTING, ("  BWD main s0 m0\n", "  BWD main s0 m0\n  RECOMPUTE main s0 m0\n")),
    "backward_first": replaced(TEXT, ("  BWD main s0 m0\n", ""), ("  FWD main s0 m0;", "  BWD main s0 m0\n  FWD main s0 m0;")),
    "receive_missing": replaced(TEXT, ("; RECV grad main s0 m1 <- 1", "")),
    "receive_twice": replaced(TEXT, ("RECV grad main s0 m1 <- 1", "RECV grad main s0 m1 <- 1; RECV grad main s0 m1 <- 1")),
    "receives_swapped": replaced(
        TEXT, ("act main s1 m0 <- 0", "act main s1 m1 <- 0"), ("; RECV act main s1 m1 <- 0", "; RECV act main s1 m0 <- 0")
    ),
    "send_before_its_task": replaced(
        TEXT, ("; SEND act main s1 m0 -> 1", ""), ("  FWD main s0 m0", "  SEND act main s1 m0 -> 1\n  FWD main s0 m0")
    ),
    "receive_too_late": replaced(
        TEXT, ("RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0", "RECV act main s1 m0 <- 0"),
        ("FWD main s1 m1", "FWD main s1 m1; RECV act main s1 m1 <- 0"),
    ),
    "deadlock": replaced(
        CHIMERA,
        ("  FWD down[0] s0 m0; SEND act down[0] s1 m0 -> 1\n", ""),
        ("  FWD up[0] s0 m1; SEND act up[0] s1 m1 -> 0\n", ""),
        ("  FWD up[0] s1 m1", "  FWD up[0] s1 m1\n  FWD down[0] s0 m0; SEND act down[0] s1 m0 -> 1"),
        ("  FWD down[0] s1 m0", "  FWD down[0] s1 m0\n  FWD up[0] s0 m1; SEND act up[0] s1 m1 -> 0"),
    ),
    "deadlock_of_the_window": program_to_text(with_streams(BOTH_WAYS, [receives_late(s) for s in streams(BOTH_WAYS)])),
    "sum_missing": replaced(CHIMERA, ("; ALLREDUCE s1 over 0,1", "")),
    "sum_too_early": replaced(
        CHIMERA, ("; ALLREDUCE s1 over 0,1", ""), ("  FWD up[0] s1 m1", "  FWD up[0] s1 m1; ALLREDUCE s1 over 0,1")
    ),
    "limit": replaced(TEXT, ("\npipe main", "\nlimits activations=1\npipe main")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_findings_of_wrong_programs_are_those_of_the_golden_files(name: str, run: Run, compare: Compare) -> None:
    file = f"{name}.json" if PROGRAMS[name].startswith(("{", "[")) else f"{name}.streams"
    Path(file).write_text(PROGRAMS[name])
    compare(f"programs/{name}.txt", failing_command(f"chimerac {file}", run, 1))


def test_no_golden_file_is_left_over() -> None:
    compared = {
        "products": {*PRODUCTS, *(file_of_case(*case) for case in CASES), "dag.dot"},
        "errors": {f"{path.stem}.txt" for path in SCHEDULES_WITH_ERRORS},
        "programs": {f"{name}.txt" for name in (*COMMANDS, *PROGRAMS)},
    }
    for folder, expected in compared.items():
        assert {path.name for path in (HERE / folder).iterdir() if path.suffix != ".sched"} == expected, folder
