"""The command line of run.py, and the names of the files beside it."""

import sys
from pathlib import Path

import pytest

import interpreter
from interpreter.options import parse_options


def test_the_options_of_the_first_command() -> None:
    options = parse_options(["schedules/chimera.sched", "-p", "D=2", "-p", "N=8"])
    assert options.schedule == Path("schedules/chimera.sched")
    assert dict(options.parameters) == {"D": 2, "N": 8}
    assert (options.width, options.data, options.check_gradients) == (1, None, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "arguments are required: schedule"),
        (["-p", "D"], "'D' is not NAME=VALUE"),
        (["-p", "D=two"], "the value of D is 'two', not an integer"),
        (["--iterations", "0"], "0 is less than 1"),
        (["--iterations", "x"], "invalid integer value: 'x'"),
        (["--lr", "nan"], "nan is not a positive number"),
        (["--lr", "inf"], "inf is not a positive number"),
        (["--dropout", "1"], "1 is not a share from 0 to below 1"),
    ],
)
def test_a_wrong_option_ends_with_code_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_no_file_beside_run_py_hides_a_standard_module() -> None:
    # `torchrun interpreter/run.py` puts this folder first on the path.
    files = {p.stem for p in Path(*interpreter.__path__).iterdir() if p.stem != "__init__"}
    assert "run" in files and not files & set(sys.stdlib_module_names)
