"""SLURM: a script for each run of an experiment, and their submission. What differs between clusters is in one YAML file."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chimerac.chimera_ir.diagnostics import ChimeraError, did_you_mean
from chimerac.chimera_ir.files import read, write
from chimerac.interpreter.experiments.file import Experiment
from chimerac.interpreter.experiments.local import SCRIPT, state_of
from chimerac.interpreter.experiments.runs import Run
from chimerac.interpreter.launch.config import expected, mapping_of, short

MARGIN_MINUTES = 10  # of a job, beyond the longest time of its run: ranks start, and nodes are prepared
ANSWER_S = 60.0  # how long sbatch and squeue may take

SCRIPT_TEXT = """\
#!/bin/bash
# {title}
{options}
set -euo pipefail
cd {folder}
{setup}
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
exec {python} -m chimerac.interpreter.experiments.execute {run} {discard} {minutes:g} \\
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 {python} -m chimerac.interpreter.launch.launcher \\
    --nnodes {nodes} --nproc-per-node {ranks_per_node} \\
    --rdzv-backend c10d --rdzv-endpoint "$first_node:$port" --rdzv-id "$SLURM_JOB_ID" \\
    {script} --config {config}
"""


class Cluster(BaseModel):
    """What differs between clusters.

    account, partition: of sbatch; modules: to load; setup: further lines of shell before a run, such as the activation of a
    virtual environment; python: the command; ranks_per_node: at most; interface: between nodes, for gloo and NCCL;
    work_dir: where results are written; data_dir: where data lies; sbatch: further options of sbatch, without their dashes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    account: str | None = None
    partition: str | None = None
    modules: Sequence[str] = ()
    setup: Sequence[str] = ()
    python: str = "python"
    ranks_per_node: Annotated[int, Field(ge=1)] = 1
    interface: str | None = None
    work_dir: str | None = None
    data_dir: str | None = None
    sbatch: Mapping[str, str | int | None] = Field(default_factory=dict)


def read_cluster(path: Path) -> Cluster:
    """Return the cluster of a file. Raises ValueError, whose message names the file, the key and what is wrong."""
    try:
        content = mapping_of(path, read(path))
        return Cluster.model_validate_json(json.dumps(content), strict=True)
    except ChimeraError as error:
        raise ValueError(error.diagnostics[0].message) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        keys = ": ".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ValueError(f"{path}: unknown key '{keys}'; {did_you_mean(keys, Cluster.model_fields)}") from None
        raise ValueError(f"{path}: {keys}: expected {expected(first)}, found {short(first['input'])}") from None


def script_of(run: Run, experiment: Experiment, cluster: Cluster) -> str:
    """Return the batch script of a run. All nodes have as many ranks as each other."""
    per_node = next(n for n in range(min(cluster.ranks_per_node, run.ranks), 0, -1) if run.ranks % n == 0)
    nodes = run.ranks // per_node
    options: dict[str, str | int | None] = {
        "job-name": f"chimerac-{experiment.name}",
        "account": cluster.account,
        "partition": cluster.partition,
        "nodes": nodes,
        "ntasks-per-node": 1,
        "exclusive": "",
        "time": round(experiment.minutes) + MARGIN_MINUTES,
        "signal": "TERM@60",
        "output": str(run.folder / "slurm-%j.log"),
        **cluster.sbatch,
    }
    setup = [*(f"module load {shlex.quote(module)}" for module in cluster.modules), *cluster.setup]
    variables = {"CHIMERAC_WORK_DIR": cluster.work_dir, "CHIMERAC_DATA_DIR": cluster.data_dir}
    variables |= {"GLOO_SOCKET_IFNAME": cluster.interface, "NCCL_SOCKET_IFNAME": cluster.interface}
    setup += [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value is not None]
    return SCRIPT_TEXT.format(
        title=run.title,
        options="\n".join(_option(name, value) for name, value in options.items() if value is not None),
        folder=shlex.quote(os.getcwd()),
        setup="\n".join(setup),
        python=shlex.quote(cluster.python),
        run=shlex.quote(str(run.folder)),
        discard=experiment.discard,
        minutes=experiment.minutes,
        nodes=nodes,
        ranks_per_node=per_node,
        script=shlex.quote(str(SCRIPT)),
        config=shlex.quote(str(run.config)),
    )


def _option(name: str, value: str | int | None) -> str:
    return f"#SBATCH --{name}={value}" if value != "" else f"#SBATCH --{name}"


def write_scripts(
    runs: Sequence[Run], experiment: Experiment, cluster: Cluster, folder: Path, retry_failed: bool
) -> list[tuple[Run, Path]]:
    """Write the script of each run that is not done, and submit.sh, which submits them; return the runs and their scripts.

    A run that waits in the queue of SLURM, or runs, is left out. Raises ChimeraError E003.
    """
    states = ("pending", "failed") if retry_failed else ("pending",)
    found = list[tuple[Run, Path]]()
    for run in runs:
        if state_of(run) not in states or _is_queued(run):
            continue
        run.prepare()
        path = run.folder / "job.sbatch"
        write(script_of(run, experiment, cluster), str(path))
        found.append((run, path))
    lines = "".join(f"sbatch {shlex.quote(str(path))}\n" for _, path in found)
    write(f"#!/bin/sh\n{lines}", str(folder / "submit.sh"))
    return found


def submit(scripts: Sequence[tuple[Run, Path]]) -> int:
    """Submit the scripts with sbatch, record the job of each run, and return how many were refused."""
    refused = 0
    for run, path in scripts:
        try:
            command = ["sbatch", "--parsable", str(path)]
            completed = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"{run.title}: sbatch cannot be run: {error}", file=sys.stderr)
            return refused + 1
        if completed.returncode:
            refused += 1
            print(f"{run.title}: sbatch refuses it: {completed.stderr.strip()}", file=sys.stderr)
            continue
        job = completed.stdout.strip().partition(";")[0]  # the name of the cluster may follow
        write(f"{job}\n", str(run.folder / "job"))
        print(f"{run.title}: job {job}", file=sys.stderr)
    return refused


def _is_queued(run: Run) -> bool:
    """Return whether SLURM still has the job of this run."""
    try:
        job = (run.folder / "job").read_text(encoding="utf-8").strip()
    except OSError:
        return False
    command = shutil.which("squeue")
    if command is None:
        return False
    arguments = [command, "--noheader", "--format=%i", f"--jobs={job}"]
    completed = subprocess.run(arguments, capture_output=True, text=True, timeout=ANSWER_S)
    return completed.returncode == 0 and bool(completed.stdout.strip())
