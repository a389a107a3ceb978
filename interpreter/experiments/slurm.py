"""SLURM: scripts for the runs of an experiment that are to be executed, one for each run, and their submission.

What differs between clusters is in one file of bash, which all jobs of the project read. It is a copy of
docs/examples/slurm/cluster.sh, filled in.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chimerac.chimera_ir.files import reason, write, write_stderr
from chimerac.interpreter.experiments.file import Experiment
from chimerac.interpreter.experiments.local import SCRIPT, state_of, states_to_run
from chimerac.interpreter.experiments.runs import Run

# A job may take this much longer than its run may: before the run modules are loaded, and after `minutes` the run is ended.
MARGIN_MINUTES = 10
ANSWER_S = 60.0  # how long sbatch, squeue and the file of a cluster may take
# Prints the values of a cluster's file that this module needs, each with a NUL after it. What the file prints goes to stderr.
READ_CLUSTER = """
set -e
. "$1" >&2
printf '%s\\0' "${ACCOUNT:-}" "${PARTITION:-}" "${RANKS_PER_NODE:-}" "${CHIMERAC_WORK_DIR:-}" "${SBATCH_OPTIONS[@]}"
"""
SCRIPT_TEXT = """\
#!/bin/bash
# {title}
#SBATCH --job-name={job_name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time={minutes_of_job}
#SBATCH --signal=TERM@60
#SBATCH --output={output}
set -euo pipefail
cd {working_folder}
. {cluster}
if [ -n "${{MODULES:-}}" ]; then
    # shellcheck disable=SC2086  # several modules
    module load $MODULES
fi
python=${{PYTHON:-python}}
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
port=$((20000 + SLURM_JOB_ID % 10000))
exec "$python" -m chimerac.interpreter.experiments.execute {run_folder} {discard} {minutes:g} \\
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 "$python" -m chimerac.interpreter.launch.launcher \\
    --nnodes {nodes} --nproc-per-node {ranks_per_node} \\
    --rdzv-backend c10d --rdzv-endpoint "$first_node:$port" --rdzv-id "$SLURM_JOB_ID" \\
    {script} --config {config}
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the file of a cluster says.

    Attributes:
        ranks_per_node: the most ranks of a node.
        options: of sbatch.
        work_dir: the folder of results, "" if not given.
    """

    path: Path
    ranks_per_node: int
    options: tuple[str, ...]
    work_dir: str


def read_cluster(path: Path) -> Cluster:
    """Return the cluster of a file, which bash reads. Raises ValueError, whose message names the file and what is wrong."""
    try:
        command = ["bash", "-c", READ_CLUSTER, "bash", str(path.absolute())]
        # As Python reads file names: a folder's name may be no UTF-8.
        completed = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{path}: bash {_why(error)}") from None
    if completed.returncode:
        raise ValueError(f"{path}: bash cannot read it: {completed.stderr.strip() or f'status {completed.returncode}'}")
    account, partition, ranks, work_dir, *options = completed.stdout.split("\0")[:-1]
    if not ranks.isdecimal() or int(ranks) < 1:
        what = f"RANKS_PER_NODE is '{ranks}'" if ranks else "RANKS_PER_NODE is empty"
        raise ValueError(f"{path}: {what}: give the largest number of ranks of a node, such as RANKS_PER_NODE=1")
    options += [f"--account={account}"] if account else []
    options += [f"--partition={partition}"] if partition else []
    return Cluster(path.absolute(), int(ranks), tuple(option for option in options if option), work_dir)


def script_of(run: Run, experiment: Experiment, cluster: Cluster) -> str:
    """Return the batch script of a run.

    All its nodes run the same number of ranks: as many as possible, but at most `ranks_per_node` of the cluster.
    """
    per_node = next(n for n in range(min(cluster.ranks_per_node, run.ranks), 0, -1) if run.ranks % n == 0)
    return SCRIPT_TEXT.format(
        title=run.title,
        job_name=shlex.quote(f"chimerac-{experiment.name}"),
        nodes=run.ranks // per_node,
        minutes_of_job=round(experiment.minutes) + MARGIN_MINUTES,
        output=shlex.quote(str(run.folder / "slurm-%j.log")),
        working_folder=shlex.quote(os.getcwd()),
        cluster=shlex.quote(str(cluster.path)),
        run_folder=shlex.quote(str(run.folder)),
        discard=experiment.discard,
        minutes=experiment.minutes,
        ranks_per_node=per_node,
        script=shlex.quote(str(SCRIPT)),
        config=shlex.quote(str(run.config)),
    )


def write_scripts(
    runs: Sequence[Run], experiment: Experiment, cluster: Cluster, folder: Path, retry_failed: bool
) -> list[tuple[Run, Path]]:
    """Write a script for each run that is to be executed, and submit.sh, which submits them; return these runs and scripts.

    Left out are runs that are done or running, runs whose recorded job is still in the queue of SLURM, and failed runs unless
    `retry_failed`. `submit` records jobs, submit.sh does not.

    Raises ValueError for a damaged result.json, OSError or ChimeraError E003 if a file cannot be written, and OSError if squeue
    cannot be run or does not answer.
    """
    states = states_to_run(retry_failed)
    found = list[tuple[Run, Path]]()
    for run in runs:
        if state_of(run) not in states or _is_queued(run):
            continue
        run.prepare()
        path = run.folder / "job.sbatch"
        write(script_of(run, experiment, cluster), str(path))
        found.append((run, path))
    lines = "".join(f"{shlex.join([*_command(cluster), str(path)])}\n" for _, path in found)
    write(f"#!/bin/sh\n{lines}", str(folder / "submit.sh"))
    return found


def submit(scripts: Sequence[tuple[Run, Path]], cluster: Cluster) -> int:
    """Submit the scripts with sbatch, record the job of each run, and return the number of failures.

    It stops at the first script for which sbatch cannot be run or does not answer. Raises ChimeraError E003 if a job cannot be
    recorded.
    """
    failures = 0
    for run, path in scripts:
        try:
            command = [*_command(cluster), "--parsable"]
            completed = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=ANSWER_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            write_stderr(f"{run.title}: sbatch {_why(error)}\n")
            return failures + 1
        if completed.returncode:
            failures += 1
            write_stderr(f"{run.title}: sbatch refuses it: {completed.stderr.strip()}\n")
            continue
        job = completed.stdout.strip().partition(";")[0]  # the name of the cluster may follow
        write(f"{job}\n", str(run.folder / "job"))
        write_stderr(f"{run.title}: job {job}\n")
    return failures


def _why(error: OSError | subprocess.TimeoutExpired) -> str:
    """Return why a command has no answer, as what follows the name of the command in a sentence."""
    return f"cannot be run: {reason(error)}" if isinstance(error, OSError) else f"did not answer in {ANSWER_S:g} s"


def _command(cluster: Cluster) -> list[str]:
    """Return the command that submits a script, without the script."""
    return ["sbatch", *cluster.options]


def _is_queued(run: Run) -> bool:
    """Return whether SLURM still has the job of this run.

    False if no job is recorded, without squeue, or if squeue fails, as it does for a job that SLURM no longer knows.
    """
    try:
        job = (run.folder / "job").read_text(encoding="utf-8").strip()
    except OSError:
        return False
    command = shutil.which("squeue")
    if command is None:
        return False
    arguments = [command, "--noheader", "--format=%i", f"--jobs={job}"]
    try:
        completed = subprocess.run(arguments, capture_output=True, text=True, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"it did not answer in {ANSWER_S:g} s whether job {job} is queued", command) from None
    return completed.returncode == 0 and bool(completed.stdout.strip())
