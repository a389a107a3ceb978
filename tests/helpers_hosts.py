"""Two simulated hosts for tests: each has its own network, host name and processes. Needs root on Linux.

Both run on one computer. A simulated host is a set of namespaces of its kernel. A veth pair connects the two hosts. The first
process of a host is a child of `unshare`. When the process of the test ends, however that happens, the kernel kills
`unshare` and its child. With them the namespaces, their processes and the link disappear. So nothing has to be cleaned up. Only
if the test is killed does a small file remain in the folder for temporary files: the one that the hosts see as /etc/hosts. Each
host has its own /proc and its own mount on /etc/hosts. Everything else in the file system is shared.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from tests.helpers_processes import open_process
from tools import ROOT

NAMES = ("node1", "node2")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "eth0"  # of the link between the hosts
NAMESPACES = ("--net", "--uts", "--mount", "--pid")
FIRST_PROCESS = "hostname {name} && mount --bind {hosts} /etc/hosts && ip link set lo up && echo ready && exec sleep infinity"


class Host:
    """One simulated host.

    Args:
        name: its host name, which both hosts can resolve.
        first: the id of its first process, as it is outside the namespaces.
    """

    def __init__(self, name: str, first: int) -> None:
        self.name, self.first = name, first
        self._namespace = os.readlink(f"/proc/{first}/ns/pid")

    def command(self, *command: str) -> list[str]:
        """Return a command that is started outside the namespaces and runs the given command on this host."""
        return ["nsenter", "--target", str(self.first), *NAMESPACES, "env", "--chdir", str(ROOT), *command]

    def run(self, *command: str) -> str:
        """Run a command on this host; return its output."""
        return subprocess.run(self.command(*command), check=True, text=True, capture_output=True, timeout=30).stdout

    def processes(self) -> list[int]:
        """Return the ids, as they are outside the namespaces, of the processes of this host.

        The first process and zombies are left out.
        """
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") == self._namespace and _runs(path):
                    pids.append(int(path.name))
            except OSError:
                pass  # the process has ended
        return [pid for pid in pids if pid != self.first]

    def crash(self) -> None:
        """Kill the first process of this host. The kernel then kills all others and closes their connections."""
        os.kill(self.first, signal.SIGKILL)

    def disconnect(self) -> None:
        """Take the link down. Both hosts go on, and no connection is closed."""
        self.run("ip", "link", "set", INTERFACE, "down")

    def limit_bandwidth(self, megabits: int) -> None:
        """Limit what this host sends.

        Args:
            megabits: per second.
        """
        rate = ["rate", f"{megabits}mbit", "burst", "256kb", "latency", "100ms"]
        self.run("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *rate)

    @contextmanager
    def start(self, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command on this host; at the end kill all processes of this host but the first one."""
        process = open_process(self.command(*command), environment)
        try:
            yield process
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.communicate()


def _runs(path: Path) -> bool:
    """Return whether a process is no zombie.

    Args:
        path: its folder in /proc. The file `stat` there has the state of the process after its name, which is in parentheses.
    """
    return (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Start two hosts with a link between them; at the end, end all their processes."""
    with ExitStack() as stack:
        file = stack.enter_context(NamedTemporaryFile("w", prefix="hosts_"))
        lines = [f"{address} {name}" for address, name in zip(ADDRESSES, NAMES, strict=True)]
        file.write("\n".join(["127.0.0.1 localhost", *lines, ""]))
        file.flush()
        first, second = (stack.enter_context(_host(name, file.name)) for name in NAMES)
        ends = [("netns", str(host.first)) for host in (first, second)]
        link = ["ip", "link", "add", "name", INTERFACE, *ends[0], "type", "veth", "peer", "name", INTERFACE, *ends[1]]
        subprocess.run(link, check=True)
        for host, address in zip((first, second), ADDRESSES, strict=True):
            host.run("ip", "address", "add", f"{address}/24", "dev", INTERFACE)
            host.run("ip", "link", "set", INTERFACE, "up")
        yield first, second


@contextmanager
def _host(name: str, hosts: str) -> Iterator[Host]:
    """Start a host without a link.

    Args:
        hosts: the file that it sees as /etc/hosts.
    """
    script = FIRST_PROCESS.format(name=name, hosts=hosts)
    unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    # The kernel kills `unshare` when the process of the test ends, and with it the first process of the host.
    with subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *unshare], text=True, stdout=subprocess.PIPE) as outer:
        try:
            assert outer.stdout is not None and outer.stdout.readline() == "ready\n", "the host did not start"
            first = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
            # An open file keeps the network, so that the link stays up if all processes of the host are killed.
            with open(f"/proc/{first}/ns/net"):
                yield Host(name, first)
        finally:
            outer.kill()
