"""The import rules hold, the command imports few packages, the API has its functions, and no data from outside is executed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import networkx as nx
import pytest

from tools import ROOT
from tools.imports import graph, imports, modules

SCRIPT = """
import sys
from chimerac.compiler.command.main import main
status = main(sys.argv[1:])
sys.stderr.write(" ".join(sorted({name.removeprefix("chimerac.").split(".")[0] for name in sys.modules})))
sys.exit(status)
"""


def imported(*argv: str) -> set[str]:
    """Return the top-level packages that a command imports; of this project the packages below `chimerac`."""
    completed = subprocess.run([sys.executable, "-c", SCRIPT, *argv], capture_output=True, text=True, cwd=ROOT, check=True)
    assert completed.stdout
    return set(completed.stderr.split())


@pytest.mark.parametrize("emit", ["streams", "json", "timeline"])
def test_small_commands_do_not_import_large_packages(emit: str) -> None:
    loaded = imported("chimera", "--emit", emit)
    assert {"numpy", "lark", "pydantic"} <= loaded
    assert not loaded & {"torch", "networkx", "scipy", "pandas", "matplotlib", "sympy", "hypothesis", "interpreter", "models"}


def test_the_list_and_a_report_do_not_import_torch() -> None:
    for argv in (["--list"], ["chimera", "--emit", "report"]):
        assert not imported(*argv) & {"torch", "interpreter", "models"}


def test_import_linter_finds_no_broken_rule() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert " 0 broken" in completed.stdout


@pytest.mark.parametrize("of_parts", [False, True], ids=["modules", "parts"])
def test_imports_have_no_cycle(of_parts: bool) -> None:
    """Imports inside functions and for the type checker count too.

    Args:
        of_parts: see tools.imports.graph.
    """
    cycles = [" -> ".join([*cycle, cycle[0]]) for cycle in nx.simple_cycles(graph(of_parts))]
    assert not cycles, "\n".join(cycles)


def test_an_import_inside_a_function_has_a_comment_with_a_measured_time() -> None:
    """Only imports of modules of this project count.

    The comment is on the line of the import, on an earlier line of its group of imports, or on the line above the group.
    """
    without_comment = []
    for found in imports():
        lines = modules()[found.source].read_text(encoding="utf-8").splitlines()
        at = found.line - 1  # index of the line that should have the comment
        while at and lines[at].lstrip().startswith(("from ", "import ")) and "#" not in lines[at]:
            at -= 1
        if found.lazy and not re.search(r"#.* \d+(\.\d+)? m?s\b", lines[at]):
            without_comment.append(f"{found.source}:{found.line} imports {found.target}")
    assert not without_comment, "\n".join(without_comment)


def test_a_compilation_imports_nothing_more() -> None:
    """A compilation imports only what `import chimerac.compiler` imports.

    This includes the modules of numpy: for instance, numpy.unique without return_index would import numpy.ma. The
    schedule has a limit, so that the lifetimes are computed too.
    """
    code = """
import sys, chimerac.compiler as compiler
before = set(sys.modules)
compiler.compile_schedule("chimera_fill", {"D": 4, "N": 8})
print(*sorted(set(sys.modules) - before))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert completed.stdout.split() == []


def test_tools_imports_finds_the_imports_that_python_executes() -> None:
    """The modules that Python loads for compiler/pipeline.py are those that tools/imports.py finds in the source."""
    code = "import sys, chimerac.compiler.pipeline; print(*(m for m in sys.modules if m.startswith('chimerac.')))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {m for m in completed.stdout.split() if modules()[m].name != "__init__.py"}
    eager = nx.DiGraph([(i.source, i.target) for i in imports() if not i.lazy and not i.typing])
    # The import of a module imports its package first.
    eager.add_edges_from((m, m.rpartition(".")[0]) for m in modules() if m.rpartition(".")[0] in modules())
    needed = nx.descendants(eager, "chimerac.compiler.pipeline") | {"chimerac.compiler.pipeline"}
    assert loaded == {m for m in needed if modules()[m].name != "__init__.py"}


def test_simulate_and_verify_stay_functions_after_an_import_of_modules_of_the_same_names() -> None:
    """`chimerac.compiler.verify` is also a package, and `chimerac.compiler.analyze.simulate` a module."""
    for first in ("verify", "analyze.simulate", "pipeline"):
        code = (
            f"import chimerac.compiler.{first}; from chimerac import compiler; from chimerac.compiler import simulate, verify; "
        )
        code += "print(callable(simulate), callable(verify), callable(compiler.verify))"
        completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        assert completed.stdout.split() == ["True"] * 3, first


@pytest.mark.parametrize("package", ["chimera_ir", "compiler", "interpreter", "models", "schedules", "experiments"])
def test_only_the_reader_of_cifar_uses_pickle_and_nothing_uses_eval(package: str) -> None:
    """Data from outside is parsed, and runs no code. np.load can unpickle, and so can torch.load without weights_only.

    The files of CIFAR-10 are pickles: interpreter/data/cifar.py reads them with an Unpickler whose `find_class` is its own, and
    uses nothing else of pickle. The package yaml can build any object, so it is forbidden too. This test does not see what
    libraries unpickle: lark reads the saved parser, which comes with the project (compiler/syntax/grammar.py), and
    torch.distributed.checkpoint reads its own file .metadata (docs/checkpoints.md).
    """
    forbidden = {"eval", "exec", "compile", "__import__", "pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
    for path in (ROOT / package).rglob("*.py"):
        allowed = set[str]()
        if path.match("interpreter/data/cifar.py"):
            text = path.read_text(encoding="utf-8")
            assert set(re.findall(r"\bpickle\.\w+", text)) == {"pickle.Unpickler"} and "def find_class" in text
            allowed = {"pickle"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    used = {name}
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np"), attr="load"), keywords=kwargs):
                    safe = any(k.arg == "weights_only" and isinstance(k.value, ast.Constant) and k.value.value for k in kwargs)
                    used = set() if safe else {"pickle"}
                case ast.Import(names=names):
                    used = {x.name.split(".")[0] for x in names}
                case ast.ImportFrom(module=str(module)):
                    used = {module.split(".")[0]}
                case _:
                    used = set()
            assert not used & (forbidden - allowed), f"{path}:{node.lineno}"  # type: ignore[attr-defined]
