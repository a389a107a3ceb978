"""What the interpreter imports and what it does not, and which module an import finds if several have its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chimerac import interpreter
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.interpreter import run
from tests.distributed.programs import TWO_RANKS
from tools import ROOT


def test_run_py_removes_its_folder_from_the_start_of_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(_: bool) -> None:
        raise StopError

    monkeypatch.setattr(run, "_settings", stop)
    folder, rest = str(Path(run.__file__).parent), list(sys.path)
    for path, expected in (
        ([folder, *rest], rest),
        ([str(tmp_path), folder, *rest], [str(tmp_path), folder, *rest]),
        (["", *rest], ["", *rest]),
    ):
        monkeypatch.setattr(sys, "path", path)
        with pytest.raises(StopError):
            run.main()
        assert sys.path == expected, "only the first entry, and only the folder of run.py, is removed"


def test_planning_imports_no_torch() -> None:
    code = """
import sys
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
make_plan(parse_options(["--data", "LICENSE", "--loopback", "--export", "w.safetensors"]))
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_project_with_packages_of_the_same_names_imports_the_runtime(tmp_path: Path) -> None:
    for name in ("models", "data", "interpreter", "compiler"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = '{name}'")
    code = (
        "import sys, models, data, interpreter, compiler\n"
        "from chimerac.interpreter.training.trainer import Trainer\n"
        "from chimerac.interpreter.transport import gloo, loopback\n"
        "print(models.MINE, data.MINE, interpreter.MINE, compiler.MINE)\n"
        "print([name for name in sys.modules if name.startswith(('chimerac.models', 'chimerac.compiler'))])\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    own_packages, imported = completed.stdout.splitlines()
    assert own_packages == "models data interpreter compiler"
    assert imported == "[]", "the runtime imports neither the models nor the compiler"


RUN_WITHOUT_COMPILER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("chimerac.compiler"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
from pathlib import Path
from chimerac.chimera_ir.jsonform import program_from_json
from tests.helpers_loopback import deep_model, run_and_compare
program = program_from_json(Path(sys.argv[1]).read_text(), "program.json")
run_and_compare(program, deep_model(middle=3), seed=0)
print("equal")
"""


def test_a_program_file_runs_without_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(program_to_json(TWO_RANKS["split V"]))
    command = [sys.executable, "-c", RUN_WITHOUT_COMPILER, str(path)]
    completed = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, text=True, capture_output=True)
    assert (completed.stdout, completed.stderr) == ("equal\n", "")


def test_the_help_imports_no_large_package() -> None:
    """A large package would delay the help."""
    code = """
import sys
from chimerac.interpreter import run
try:
    run.parse_options(["--help"])
except SystemExit:
    sys.exit(str({"torch", "numpy", "pydantic", "tqdm"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "--lr" in ended.stdout and ended.stderr == "set()\n", "the empty set: none of these is imported"


def test_no_file_beside_run_py_hides_a_standard_module() -> None:
    # `torchrun interpreter/run.py` puts this folder first on sys.path.
    files = {p.stem for p in Path(interpreter.__path__[0]).iterdir() if p.stem != "__init__"}
    assert "run" in files and not files & set(sys.stdlib_module_names)
