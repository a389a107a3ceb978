"""The wheel has every file of the packages, and every command runs from the wheel without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from chimerac.compiler.command.emit import EMITTERS
from chimerac.compiler.command.main import VERBS
from tools import ROOT

FOLDERS = sorted(path.name for path in (ROOT / "chimerac").iterdir() if path.is_symlink())
PACKED = ["pyproject.toml", "README.md", "LICENSE", "chimerac", *FOLDERS]
NOT_PACKED = ("__pycache__", "*.pyc", "*.egg-info")
NEEDED = ("lark", "networkx", "numpy", "pydantic", "torch")  # the folders of these hold all packages that the wheel needs
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
# A program that builds the sdist of the current folder in the folder that its argument names.
SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# A program that prints the file of each module that its arguments name.
WHERE = "import sys; from importlib.util import find_spec; print(*(find_spec(x).origin for x in sys.argv[1:]), sep='\\n')"
ARGUMENTS = {"fmt": ["mine.sched"], "explain": ["E303"]}  # by verb; all other verbs are run with --help
MORE = {"report": ["--model", "model.json"], "torch-comms": ["--for", "serial"]}  # further options, by product of --emit


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the environment variables that may lead to the checkout; return its stdout.

    Fails if the command fails.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    completed = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, f"{[*command]}\n{completed.stdout[-2000:]}{completed.stderr[-4000:]}"
    return completed.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the sdist of the checkout and the wheel of that sdist, built without network access."""
    work = tmp_path_factory.mktemp("built")
    source = work / "checkout"
    source.mkdir()
    for name in PACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns(*NOT_PACKED))
        else:
            shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "__init__.py", source / "tests")
    run(sys.executable, "-c", SDIST, work, cwd=source)
    (sdist,) = work.glob("*.tar.gz")
    run(*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", work, sdist, cwd=work)
    (wheel,) = work.glob("*.whl")
    return sdist, wheel


def files() -> set[str]:
    """Return the paths that the files of the project's packages must have in a wheel."""
    found = {f"chimerac/{path.name}" for path in (ROOT / "chimerac").iterdir() if path.is_file()}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not any(path.match(f"{x}/*") or path.match(x) for x in NOT_PACKED):
                found.add(f"chimerac/{path.relative_to(ROOT).as_posix()}")
    return found


def test_the_sdist_and_the_wheel_have_every_file_of_the_packages_and_no_test(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        packed = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {f"chimerac/{name}" for name in ("compiler/format/units.py", "schedules/chimera.sched", "py.typed")} <= files()
    assert inside == files()
    assert files() <= packed and not any(name.startswith("tests/") for name in packed)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel and its dependencies, but without the checkout."""
    _, wheel = built
    env = tmp_path_factory.mktemp("installed") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=env.parent)
    run(*PIP, "--python", env / "bin" / "python", "install", "--no-deps", "--no-index", wheel, cwd=env.parent)
    # Python searches the folders that a .pth file names, but reads no .pth files in them. The checkout is installed by
    # a .pth file, so it is not found.
    packages = {str(Path(str(spec.origin)).parents[1]) for name in NEEDED if (spec := find_spec(name))}
    (site,) = (env / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(packages)))
    return env


# Names that packages of a user's project may have. The fixture `project` makes such packages, whose import fails.
PACKAGES_OF_A_PROJECT = (
    "chimera_ir",
    "compiler",
    "data",
    "experiments",
    "interpreter",
    "models",
    "schedules",
    "runtime",
    "training",
    "launch",
    "tools",
    "tests",
)
API = """
from chimerac.compiler import compile_schedule, simulate
from chimerac.chimera_ir.diagnostics import ChimeraError
print(simulate(compile_schedule("chimera", {"D": 2, "N": 2}).program).makespan)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a user's project, with a schedule and with PACKAGES_OF_A_PROJECT."""
    for name in PACKAGES_OF_A_PROJECT:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the project was imported')\n")
    # `chimerac fmt` removes the empty lines.
    (tmp_path / "mine.sched").write_text((ROOT / "schedules" / "1f1b.sched").read_text() + "\n\n")
    return tmp_path


RUN = ["mine.sched", "-p", "D=2", "-p", "N=2", "--iterations", "2", "--model", "gpt-nano"]  # options of a short run


def test_every_command_runs_from_the_wheel_alone(installed: Path, project: Path) -> None:
    """The packages of `project` are not imported. Verbs that are not in ARGUMENTS only print their help."""
    python, chimerac = (installed / "bin" / name for name in ("python", "chimerac"))
    homes = run(python, "-c", WHERE, *(f"chimerac.{folder}" for folder in FOLDERS), cwd=project).splitlines()
    (site,) = (installed / "lib").glob("python*/site-packages")
    assert homes == [str(site / "chimerac" / folder / "__init__.py") for folder in FOLDERS]
    assert "chimera_zb" in run(chimerac, "--list", cwd=project)
    for verb in VERBS:
        assert run(chimerac, verb, *ARGUMENTS.get(verb, ["--help"]), cwd=project)
    assert (project / "mine.sched").read_text() == (ROOT / "schedules" / "1f1b.sched").read_text()
    (project / "model.json").write_text(run(python, "-m", "chimerac.models", "describe", "--model", "gpt-nano", cwd=project))
    for emit in EMITTERS:
        path = "a.dot" if emit == "dag" else f"a.{emit}"
        run(chimerac, "mine.sched", "-p", "D=2", "--emit", emit, "-o", path, *MORE.get(emit, []), cwd=project)
        assert (project / path).stat().st_size
    assert "loss" in run(python, "-m", "chimerac.interpreter.run", *RUN, "--loopback", cwd=project)
    assert "9 of 9 runs are pending" in run(
        python, "-m", "chimerac.interpreter.experiments", "baseline", "--dry-run", cwd=project
    )


@pytest.mark.distributed
def test_the_checkout_imports_no_package_of_a_project_with_the_same_name(project: Path) -> None:
    assert run(sys.executable, "-m", "chimerac", "mine.sched", "-p", "D=2", cwd=project)
    assert int(run(sys.executable, "-c", API, cwd=project)) > 0
    assert "loss" in run(sys.executable, ROOT / "interpreter" / "run.py", *RUN, cwd=project)


def test_a_checkout_without_links_has_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "chimerac").mkdir()
    shutil.copy(ROOT / "chimerac" / "__init__.py", tmp_path / "chimerac")
    (tmp_path / "chimerac" / "compiler").write_text("../compiler")  # as git writes a link with core.symlinks=false
    completed = subprocess.run([sys.executable, "-c", "import chimerac"], cwd=tmp_path, capture_output=True, text=True)
    assert completed.returncode == 1 and "without links" in completed.stderr and "core.symlinks=true" in completed.stderr
