"""The command line of run.py, and the names of the files in its folder."""

import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from chimerac import interpreter
from chimerac.interpreter.launch.options import SCHEDULE, parse_options


def test_the_options_of_the_first_command() -> None:
    options = parse_options(["schedules/chimera.sched", "-p", "D=2", "-p", "N=8"])
    assert options.schedule == Path("schedules/chimera.sched")
    assert dict(options.parameters) == {"D": 2, "N": 8}
    assert (options.width, options.data, options.check_gradients) == (None, None, None)


def test_without_arguments_it_is_chimera() -> None:
    options = parse_options([])
    assert (options.schedule, options.parameters, options.iterations) == (SCHEDULE, (), None)
    assert options.model == "gpt-small" and not options.loopback and options.timed is None


def test_torchrun_takes_no_option_of_run_py() -> None:
    """The parser of torchrun also reads the options after the script, and refuses an ambiguous prefix of its own options."""
    options_of_torchrun = [word for action in get_args_parser()._actions for word in action.option_strings]
    options_of_run = re.findall(r"--[a-z][a-z-]+", capture_help())
    assert "--log-file" in options_of_run
    for option in set(options_of_run) - {"--nproc-per-node", "--emit", "--help"}:
        assert not [word for word in options_of_torchrun if word.startswith(option)], option


def capture_help() -> str:
    with redirect_stdout(StringIO()) as out, pytest.raises(SystemExit, match="0"):
        parse_options(["--help"])
    return out.getvalue()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "D=2", "-p", "N=2", "-p", "D=4"], "-p D is given twice"),
        (["--width", "0"], "0 is less than 1"),
        (["--timed", "0"], "0 is not a positive number"),
        (["--transport", "mpi"], "invalid choice: 'mpi'"),
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
    # `torchrun interpreter/run.py` puts this folder first on sys.path.
    files = {p.stem for p in Path(interpreter.__path__[0]).iterdir() if p.stem != "__init__"}
    assert "run" in files and not files & set(sys.stdlib_module_names)
