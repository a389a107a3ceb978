"""A pass raises findings without help that must be searched for; the functions to compile, format and verify add this help."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable

import pytest

from chimerac import compiler
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source
from chimerac.chimera_ir.program import Program
from chimerac.compiler.explain.entries import entries
from chimerac.compiler.format import format_schedule
from chimerac.compiler.order.greedy import SchedulerStuckError
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.pipeline import compile_source, parse_source
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.syntax.parse import ParseError, parse
from chimerac.compiler.tasks import checked_times
from chimerac.compiler.verify import verify
from tests.helpers import program, streams, with_move, with_streams
from tools import ROOT

TWO_ERRORS = Source("a.sched", "schedule x\nparam D == 4\nranks D\nstages D )\n")


def error_of(function: Callable[[], object]) -> ChimeraError:
    with pytest.raises(ChimeraError) as caught:
        function()
    return caught.value


def finding(function: Callable[[], object]) -> Diagnostic:
    """Return the only finding of the error that a function raises."""
    (only,) = error_of(function).diagnostics
    return only


def test_the_parser_raises_the_first_syntax_error_without_help_and_users_get_all_and_help() -> None:
    plain = error_of(lambda: parse(TWO_ERRORS))
    assert isinstance(plain, ParseError) and [d.help for d in plain.diagnostics] == [""]
    for call in (parse_source, format_schedule, lambda source: compile_source(source, {})):
        error = error_of(lambda call=call: call(TWO_ERRORS))  # type: ignore[misc]
        assert len(error.diagnostics) == 2 and error.diagnostics[0].help.startswith("write '='")
        assert error.diagnostics[0].span is not None and plain.diagnostics[0].span is not None
        assert error.diagnostics[0].span.line == plain.diagnostics[0].span.line == 2


@pytest.mark.parametrize(
    "text", ["", "schedule", "schedule x $", "schedule x size 1 / 2 param D = 1/2", "# only words", "\n\n"]
)
def test_the_parser_and_the_compiler_report_the_same_first_syntax_error(text: str) -> None:
    plain, helped = (error_of(lambda f=f: f(Source("a.sched", text))) for f in (parse, parse_source))  # type: ignore[misc]
    assert isinstance(plain, ParseError)
    assert plain.diagnostics[0].code == helped.diagnostics[0].code
    assert plain.diagnostics[0].message == helped.diagnostics[0].message


def test_a_scheduler_that_is_stuck_has_help_only_from_the_compiler() -> None:
    source = Source("a.sched", entries()["E305"].wrong)
    plain = error_of(lambda: order_tasks(resolve(parse(source), {}, Budget()), Budget()))
    assert isinstance(plain, SchedulerStuckError) and not plain.diagnostics[0].help
    helped = finding(lambda: compile_source(source, {}))
    assert helped.message == plain.diagnostics[0].message and "tried" in helped.help


def test_an_order_that_deadlocks_has_help_only_from_the_compiler() -> None:
    source = Source("a.sched", entries()["E304"].wrong)
    plain = finding(lambda: checked_times(order_tasks(resolve(parse(source), {}, Budget()), Budget()).program))
    assert plain.code == "E304" and not plain.help
    helped = finding(lambda: compile_source(source, {}))
    assert helped.code == "E304" and helped.help and helped.notes


def hanging() -> Program:
    """Return a program that hangs on its machine."""
    return program("chimera", D=4).with_header(machine="serial")


def without_a_common_order() -> Program:
    """Return a program in which ranks 1 and 2 launch the all-reduces of their two stages in opposite orders."""
    p = program("chimera", D=4)
    changed = streams(p)
    changed[1] = with_move(changed[1], source=-1, target=len(changed[1]) - 2)
    return with_streams(p, changed)


@pytest.mark.parametrize(("wrong", "code"), [(hanging, "E440"), (without_a_common_order, "E453")])
def test_a_program_that_hangs_or_has_no_common_order_has_help_only_from_the_api(
    wrong: Callable[[], Program], code: str
) -> None:
    plain = finding(lambda: verify(wrong()))
    assert plain.code == code and plain.notes and not plain.help
    helped = finding(lambda: compiler.verify(wrong()))
    assert helped.code == code and "tried" in helped.help and helped.about


def test_the_verifier_imports_only_itself_chimera_ir_numpy_and_the_standard_library() -> None:
    for path in (ROOT / "compiler" / "verify").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                is_allowed = name.startswith(("chimerac.chimera_ir.", "chimerac.compiler.verify"))
                assert is_allowed or name.split(".")[0] in {*sys.stdlib_module_names, "numpy"}, f"{path.name} imports {name}"


def test_a_correct_program_runs_no_code_for_help() -> None:
    code = "from chimerac.compiler import compile_schedule; import sys; compile_schedule('chimera'); print(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {name for name in completed.stdout.split() if name.startswith("chimerac.compiler.diagnose.")}
    assert loaded == {"chimerac.compiler.diagnose.pass_results"}  # it imports the code for help when a pass fails
