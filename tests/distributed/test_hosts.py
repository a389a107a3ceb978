"""Training on two hosts: its losses, the example for SLURM, and the messages when a host, its name or the link fails.

The hosts are namespaces of this host (tests/helpers_hosts.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers_hosts import NAMES, Host, two_hosts
from tests.helpers_processes import RUN, TINY, run_command, wait_for_iteration
from tests.helpers_slurm import WITHOUT_OPTIONS, write_commands
from tools import ROOT

SLURM = ROOT / "docs" / "examples" / "slurm"
# The modules that start the ranks of a host, by the name that tests give them.
AGENTS = {"launcher": "chimerac.interpreter.launch.launcher", "torchrun": "torch.distributed.run"}
TIMEOUT_S = 5  # how long a rank of a long training waits for another one


def run_arguments(*more: str, ranks: int) -> list[str]:
    """Return the script of a training and its arguments.

    Args:
        more: further options.
    """
    program = ["schedules/chimera.sched", "-p", f"D={ranks}", "-p", f"N={ranks}"]
    return [RUN, *program, *TINY, "--no-check-gradients", "--eval-samples", "1", *more]


def on_two_hosts(agent: str, *more: str, ranks_per_host: int) -> list[str]:
    """Return the command that is given on both hosts, as in docs/running.md.

    Args:
        more: options of the training.
    """
    options = ["--nnodes", "2", "--nproc-per-node", str(ranks_per_host)]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{NAMES[0]}:29500", "--rdzv-id", "run1"]
    return [sys.executable, "-m", AGENTS[agent], *options, *run_arguments(*more, ranks=2 * ranks_per_host)]


def losses(log: Path) -> list[float]:
    """Return the losses that a training has written to its log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def check_losses(found: list[float], ranks: int, folder: Path) -> None:
    """Check that the losses are those of four iterations on one host.

    A rank that shares its host with fewer ranks has more threads, which add numbers in another order. So the relative tolerance
    is 1e-6.
    """
    log = folder / "one.jsonl"
    run = run_command(sys.executable, *run_arguments("--iterations", "4", "--log-file", str(log), ranks=ranks))
    assert (run.returncode, run.stderr) == (0, "")
    assert found == pytest.approx(losses(log), rel=1e-6, abs=0) and len(found) == 4


@pytest.mark.root
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_a_training_on_two_hosts_with_a_slow_link_has_the_losses_of_one_host(tmp_path: Path) -> None:
    log = tmp_path / "two.jsonl"
    command = on_two_hosts("torchrun", "--iterations", "4", "--log-file", str(log), ranks_per_host=1)
    with two_hosts() as hosts:
        for host in hosts:
            host.limit_bandwidth(megabits=100)
        first, second = hosts
        with first.start(*command) as on_first, second.start(*command) as on_second:
            for process in (on_first, on_second):
                assert process.wait(timeout=100) == 0, process.communicate()
    check_losses(losses(log), ranks=2, folder=tmp_path)


@pytest.mark.root
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_script_for_slurm_trains_on_two_hosts_with_two_ranks_each(tmp_path: Path) -> None:
    """The test replaces `scontrol` and `srun` by scripts, which know only the two hosts of the test."""
    log = tmp_path / "two.jsonl"
    with two_hosts() as hosts:
        nodes = [" ".join(host.command('"$@"')) for host in hosts]
        srun = ["#!/bin/bash", WITHOUT_OPTIONS, *(f"{node} & ids+=($!)" for node in nodes)]
        srun += ['for id in "${ids[@]}"; do wait "$id" || exit; done', ""]
        write_commands(tmp_path, {"srun": "\n".join(srun), "scontrol": "#!/bin/sh\nprintf 'node1\\nnode2\\n'\n"})
        job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
        environment = job | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
        _, *arguments = run_arguments("--iterations", "4", "--log-file", str(log), ranks=4)
        run = run_command("bash", str(SLURM / "train.sbatch"), *arguments, timeout_s=100, **environment)
        assert (run.returncode, run.stderr) == (0, "")
        assert "chimera: 4 ranks" in run.stdout
        assert not hosts[0].processes() and not hosts[1].processes()
    check_losses(losses(log), ranks=4, folder=tmp_path)


@contextmanager
def long_training() -> Iterator[tuple[list[Host], list[subprocess.Popen[str]]]]:
    """Start a long training with two ranks per host, and wait for its first iteration. Ranks 0 and 1 are on the first host."""
    command = on_two_hosts("launcher", "--iterations", "1000000", "--timeout", str(TIMEOUT_S), ranks_per_host=2)
    with two_hosts() as hosts, hosts[0].start(*command) as on_first, hosts[1].start(*command) as on_second:
        wait_for_iteration(on_first)
        yield list(hosts), [on_first, on_second]


@pytest.mark.root
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_a_host_whose_name_resolves_to_a_loopback_address_is_named_and_gloo_socket_ifname_helps(tmp_path: Path) -> None:
    log = tmp_path / "two.jsonl"
    command = on_two_hosts("launcher", "--iterations", "1", "--log-file", str(log), ranks_per_host=1)
    hosts_file = tmp_path / "hosts"
    hosts_file.write_text("127.0.0.1 localhost\n127.0.1.1 node2\n10.77.0.1 node1\n")
    with two_hosts() as (first, second):
        second.run("mount", "--bind", str(hosts_file), "/etc/hosts")
        with first.start(*command) as on_first, second.start(*command) as on_second:
            messages = [process.communicate(timeout=100)[1] for process in (on_first, on_second)]
        fact = "error[E819]: the other hosts cannot connect to host node2: its own name resolves to 127.0.1.1\n"
        assert messages[0] == "" and messages[1].startswith(fact)
        with first.start(*command) as on_first, second.start(*command, GLOO_SOCKET_IFNAME="eth0") as on_second:
            assert [process.communicate(timeout=100)[1] for process in (on_first, on_second)] == ["", ""]
    assert len(losses(log)) == 1


# The beginning of a message: the rank that prints it, the host of the rank if the rank knows it, and where the rank was.
PLACE = r"rank {ranks}( \(node[12]\))?, (instruction \d+: [A-Z]+ .*|epilogue): .*"


def check_message(process: subprocess.Popen[str], host: Host, ranks: str, reason: str) -> None:
    """Check that the launcher of a host ends with one message, and that no process is left on this host.

    Args:
        ranks: a pattern for a rank of this host.
        reason: a pattern for what the message says about the other host, at its end.
    """
    _, message = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch(rf"error: {PLACE.format(ranks=ranks)}{reason}\n", message), message
    assert not host.processes()


STORE = r"the store of torchrun, on the host of ranks 0, 1 \(node1\), "


@pytest.mark.root
@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("killed", "ranks", "reason"),
    [(0, "[23]", rf"failed: {STORE}has ended"), (1, "[01]", r"failed: ranks 2, 3 \(node2\) have ended")],
    ids=["with the store", "without the store"],
)
def test_if_all_processes_of_a_host_are_killed_the_other_host_names_the_killed_ranks(
    killed: int, ranks: str, reason: str
) -> None:
    with long_training() as (hosts, launchers):
        hosts[killed].crash()
        check_message(launchers[1 - killed], hosts[1 - killed], ranks, reason)


@pytest.mark.root
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_if_the_link_goes_down_both_hosts_name_the_ranks_of_the_other_one() -> None:
    with long_training() as (hosts, launchers):
        hosts[1].disconnect()
        timeout = f"is not complete after {TIMEOUT_S} s: "
        check_message(launchers[0], hosts[0], "[01]", rf"{timeout}ranks 2, 3 \(node2\) do not answer")
        check_message(launchers[1], hosts[1], "[23]", rf"{timeout}{STORE}does not answer")
