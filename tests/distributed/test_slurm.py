"""The example for SLURM: one file says what differs between clusters. Scripts written here replace SLURM's commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers_processes import TINY, run_command
from tests.helpers_slurm import WITHOUT_OPTIONS, write_commands
from tools import ROOT

SLURM = ROOT / "docs" / "examples" / "slurm"

# Writes its options to a file, copies the script of the job as SLURM does, and runs the copy on one node. The copy finds the
# variable of `--export ALL,NAME=VALUE` in its environment.
SBATCH = """#!/bin/bash
options=()
while [[ $1 == -* ]]; do
    case $1 in
        --export) export "${2#ALL,}"; options+=("$1" "$2"); shift 2;;
        --*=*|--exclusive) options+=("$1"); shift;;
        *) options+=("$1" "$2"); shift 2;;
    esac
done
printf '%s\\n' "${options[@]}" > "$STUB/options"
cp "$1" "$STUB/slurm_script"; shift
export SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=node1 SLURM_JOB_NUM_NODES=1
bash "$STUB/slurm_script" "$@"
"""
SRUN = f"""#!/bin/bash
{WITHOUT_OPTIONS}
exec "$@"
"""
SCONTROL = "#!/bin/sh\necho localhost\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which the commands of SLURM are those of this test."""
    stub = tmp_path / "stub"
    stub.mkdir()
    write_commands(stub, {"sbatch": SBATCH, "srun": SRUN, "scontrol": SCONTROL})
    return {"PATH": f"{stub}:{os.environ['PATH']}", "STUB": str(stub)}


def submit(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("bash", str(SLURM / "submit.sh"), *arguments, timeout_s=100, **environment)


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_one_file_gives_account_partition_modules_and_folders(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("some words of a text, again and again. " * 400)
    lines = [
        (SLURM / "cluster.sh").read_text(),
        "ACCOUNT=physics PARTITION='gpu long' MODULES='python/3.11 cuda'",
        "SBATCH_OPTIONS=(--qos=high)",
        f"export CHIMERAC_WORK_DIR='{tmp_path}/work of mine' CHIMERAC_DATA_DIR='{tmp_path}/data'",
        f"PYTHON={sys.executable}",
        f"module() {{ echo \"$@\" > '{tmp_path}/modules'; }}",
    ]
    (tmp_path / "my cluster.sh").write_text("\n".join(lines) + "\n")
    arguments = ["schedules/chimera.sched", "-p", "D=2", "-p", "N=2", *TINY, "--iterations", "2"]
    arguments += ["--data", "notes.txt", "--log-file", "run.jsonl"]
    run = submit(environment, str(tmp_path / "my cluster.sh"), "--nodes", "1", str(SLURM / "train.sbatch"), *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    work = f"{tmp_path}/work of mine"
    assert (tmp_path / "stub" / "options").read_text().splitlines() == [
        "--qos=high",
        *("--account", "physics", "--partition", "gpu long", "--output", f"{work}/%x-%j.log"),
        *("--export", f"ALL,CHIMERAC_CLUSTER={tmp_path}/my cluster.sh", "--nodes", "1"),
    ]
    assert (tmp_path / "modules").read_text() == "load python/3.11 cuda\n"
    log = [json.loads(line) for line in (Path(work) / "run.jsonl").read_text().splitlines()]
    assert len(log) == 3, "a line about the run, and one for each iteration"
    assert log[0]["settings"]["data"] == f"{tmp_path}/data/notes.txt"


def test_the_shipped_file_gives_no_option_but_its_own_path(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text('echo "$CHIMERAC_CLUSTER" "$@"\n')
    run = submit(environment, str(SLURM / "cluster.sh"), str(tmp_path / "job.sh"), "one", "two words")
    assert (run.returncode, run.stdout) == (0, f"{SLURM / 'cluster.sh'} one two words\n")
    options = (tmp_path / "stub" / "options").read_text().splitlines()
    assert options == ["--export", f"ALL,CHIMERAC_CLUSTER={SLURM / 'cluster.sh'}"]


def test_a_file_that_is_not_there_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    run = submit(environment, str(tmp_path / "gone.sh"), "job.sh")
    assert run.returncode == 2 and f"there is no file {tmp_path / 'gone.sh'}" in run.stderr


@pytest.mark.parametrize("file", ["train.sbatch", "cluster.sh", "submit.sh"])
def test_the_scripts_are_valid(file: str) -> None:
    subprocess.run(["bash", "-n", str(SLURM / file)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, "--shell=bash", "--external-sources", file], cwd=SLURM, check=True)
