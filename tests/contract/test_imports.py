"""What may import what, and how little the command needs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from chimerac.compiler.command.main import main
status = main(sys.argv[1:])
sys.stderr.write(" ".join(sorted({name.removeprefix("chimerac.").split(".")[0] for name in sys.modules})))
sys.exit(status)
"""


def imported(*argv: str) -> set[str]:
    """Return the top-level modules that a command has imported when it is done."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT, *argv], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout
    return set(ran.stderr.split())


@pytest.mark.parametrize("emit", ["streams", "json", "timeline"])
def test_what_a_small_command_needs_not_import(emit: str) -> None:
    modules = imported("chimera", "--emit", emit)
    assert {"numpy", "lark", "pydantic"} <= modules
    assert not modules & {"torch", "networkx", "scipy", "pandas", "matplotlib", "sympy", "hypothesis", "interpreter", "models"}


def test_nothing_at_all_imports_torch() -> None:
    for argv in (["--list"], ["chimera", "--emit", "report"]):
        assert not imported(*argv) & {"torch", "interpreter", "models"}


def test_import_contracts() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " 0 broken" in ran.stdout


def test_the_api_is_functions_whatever_was_imported_before() -> None:
    """`chimerac.compiler.verify` and `chimerac.compiler.analyze.simulate` are also packages: the names must stay functions."""
    for first in (
        "",
        "import chimerac.compiler.verify, chimerac.compiler.analyze.simulate; ",
        "from chimerac.compiler import compile_schedule; ",
    ):
        code = (
            first
            + "from chimerac import compiler; from chimerac.compiler import simulate, verify; print(callable(simulate), callable(verify), "
        )
        code += "callable(compiler.verify))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        assert ran.stdout.split() == ["True"] * 3, first


@pytest.mark.parametrize("package", ["chimera_ir", "compiler", "interpreter", "models", "schedules"])
def test_nothing_is_unpickled_or_evaluated(package: str) -> None:
    """What a stranger wrote is read by a parser, never by Python itself; torch's own loaders unpickle."""
    forbidden = {"eval", "exec", "compile", "__import__", "pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    used = {name}
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np"), attr="load")):
                    used = {"pickle"}
                case ast.Import(names=names):
                    used = {x.name.split(".")[0] for x in names}
                case ast.ImportFrom(module=str(module)):
                    used = {module.split(".")[0]}
                case _:
                    used = set()
            assert not used & forbidden, f"{path}:{node.lineno}"  # type: ignore[attr-defined]
