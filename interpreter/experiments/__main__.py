"""Runs experiments: `python -m chimerac.interpreter.experiments FILE.yaml`. docs/experiments.md describes it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import discard_output, write_stderr
from chimerac.interpreter.experiments.file import Experiment, find, read_experiment, shipped
from chimerac.interpreter.experiments.local import Progress, run_all, state_of
from chimerac.interpreter.experiments.report import write_report
from chimerac.interpreter.experiments.runs import Impossible, check_comparison, plan_runs
from chimerac.interpreter.experiments.slurm import Cluster, read_cluster, submit, write_scripts
from chimerac.interpreter.experiments.table import results, write_table
from chimerac.interpreter.launch.startup import INTERRUPTED
from chimerac.interpreter.launch.storage import VARIABLES

WORK_DIR = VARIABLES["work_dir"]  # the environment variable with the folder of results
EPILOG = """\
An experiment is a YAML file, or one of those that come with the project (--list). The results are in runs/NAME in the
folder of --work-dir: a folder for each run, table.csv, report.md and report.html. The same command goes on where it was
stopped.

exit status: 0; 1 if runs failed, or for other errors; 2 for a wrong command line or file; 130 after Ctrl-C"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        discard_output(sys.stdout)
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        for name in shipped():
            print(f"{name:<24}{read_experiment(find(name)).title}")
        return 0
    if not options.experiments:
        parser.error("name an experiment: a file, or one of --list")
    if options.submit and options.slurm is None:
        parser.error("--submit needs --slurm CLUSTER")
    try:
        cluster = None if options.slurm is None else read_cluster(Path(options.slurm))
        work_dir = Path(options.work_dir or (cluster and cluster.work_dir) or os.environ.get(WORK_DIR) or ".").absolute()
        planned = [PlannedExperiment(read_experiment(find(name)), work_dir) for name in options.experiments]
    except ValueError as error:
        parser.error(str(error))
    except ChimeraError as error:
        write_stderr(render(error.diagnostics))
        return 1
    except OSError as error:  # the folder of results cannot be used
        return _failed(error, options.work_dir or "the folder of results")
    return max(experiment.do(options, cluster) for experiment in planned)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m chimerac.interpreter.experiments",
        description="Run the runs of an experiment, collect their figures in a table, and write a report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiments", metavar="EXPERIMENT", nargs="*", help="a YAML file, or a name of --list")
    parser.add_argument("--list", action="store_true", help="list the experiments that come with the project")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and their states, and run nothing")
    parser.add_argument(
        "--report", action="store_true", help="write the table and the report of the runs done so far, and run nothing"
    )
    parser.add_argument("--retry-failed", action="store_true", help="also run those that have failed, once more")
    parser.add_argument(
        "--work-dir",
        metavar="PATH",
        help=f"where results are written (default: the folder given in CLUSTER, else ${WORK_DIR}, else the current folder)",
    )
    parser.add_argument(
        "--slurm",
        metavar="CLUSTER",
        help="write SLURM scripts instead, for the cluster that the file CLUSTER describes; "
        "docs/examples/slurm/cluster.sh is an example",
    )
    parser.add_argument("--submit", action="store_true", help="with --slurm: submit the scripts too")
    return parser


class PlannedExperiment:
    """An experiment with its planned runs. Raises what `plan_runs` and `check_comparison` raise."""

    def __init__(self, experiment: Experiment, work_dir: Path) -> None:
        self.experiment = experiment
        self.folder = work_dir / "runs" / experiment.name
        self.runs, self.impossible = plan_runs(experiment, self.folder)
        check_comparison(experiment, self.runs)

    def do(self, options: argparse.Namespace, cluster: Cluster | None) -> int:
        """Do what the command line asks for, and return the exit status."""
        experiment = self.experiment
        try:
            if options.dry_run:
                self._list()
                return 0
            self.folder.mkdir(parents=True, exist_ok=True)
            if cluster is not None and not options.report:
                return self._to_slurm(options, cluster)
            if not options.report:
                write_stderr(f"{experiment.name}: {experiment.title}; {len(self.runs)} runs\n")
                run_all(self.runs, experiment.discard, experiment.minutes, options.retry_failed)
            return self._report()
        except ChimeraError as error:
            write_stderr(render(error.diagnostics))
            return 1
        except ValueError as error:
            write_stderr(f"error: {error}\n")
            return 1
        except BrokenPipeError:  # of stdout, not of a file
            raise
        except OSError as error:
            return _failed(error, self.folder)

    def _list(self) -> None:
        states = [state_of(run) for run in self.runs]
        print(f"{self.experiment.name}: {self.experiment.title}")
        for number, (run, state) in enumerate(zip(self.runs, states, strict=True), 1):
            print(f"{number:>4}  {state:<8} {run.ranks:>4} ranks  {run.title}")
        _print_impossible(self.impossible)
        pending = [run for run, state in zip(self.runs, states, strict=True) if state == "pending"]
        left = Progress(self.runs).time_left(pending)
        print(f"{len(pending)} of {len(self.runs)} runs are pending{f', {left}' if left else ''}; results in {self.folder}")

    def _to_slurm(self, options: argparse.Namespace, cluster: Cluster) -> int:
        scripts = write_scripts(self.runs, self.experiment, cluster, self.folder, options.retry_failed)
        how = "" if options.submit or not scripts else f"; submit them with: sh {shlex.quote(str(self.folder / 'submit.sh'))}"
        write_stderr(f"scripts for {len(scripts)} of {len(self.runs)} runs{how}\n")
        failed = submit(scripts, cluster) if options.submit else 0  # the number of failures
        return 1 if failed else 0

    def _report(self) -> int:
        found = results(self.runs, self.experiment.discard)
        paths = [*write_table(found.rows, self.folder)]
        paths += write_report(self.experiment, self.runs, self.impossible, found, self.folder)
        _print_impossible(self.impossible)
        for run, reason in found.failed:
            write_stderr(f"failed: {run.title}: {reason}; {run.output}\n")
        # `found.failed` also has runs that are done but whose logs cannot be read. --retry-failed does not run these again.
        if any(state_of(run) == "failed" for run, _ in found.failed):
            write_stderr("--retry-failed runs these again, except those that are done but whose logs cannot be read\n")
        if found.missing:
            write_stderr(f"{len(found.missing)} runs have not ended yet\n")
        for path in paths:
            print(path)
        return 1 if found.failed else 0


def _failed(error: OSError, path: object) -> int:
    """Print an error of the system, and return the exit status.

    Args:
        path: shown if the error itself names no file.
    """
    write_stderr(f"error: {error.filename or path}: {error.strerror}\n")
    return 1


def _print_impossible(impossible: Sequence[Impossible]) -> None:
    for run in impossible:
        write_stderr(f"not possible: {run.title}: {run.reason}\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        write_stderr("\ninterrupted; the same command goes on where it was stopped\n")
        sys.exit(INTERRUPTED)
