"""Transports without a network: `Processes` on fake connections, and the scheduler and the machines of the loopback."""

from __future__ import annotations

import re
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import AllReduce
from chimerac.chimera_ir.program import Machine
from chimerac.interpreter.errors import PeerLostError, StuckError
from chimerac.interpreter.transport import Transport, loopback, processes
from chimerac.interpreter.transport.addresses import INTERFACE
from chimerac.interpreter.transport.backends import all_reduce, create_backend, gloo_devices
from chimerac.interpreter.transport.gloo import Gloo
from chimerac.interpreter.transport.liveness import LivenessCheck
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.interpreter.transport.nccl import Nccl, connections, join
from chimerac.interpreter.transport.processes import Processes
from chimerac.interpreter.transport.progress import Progress
from chimerac.interpreter.transport.rendezvous import Rendezvous
from chimerac.interpreter.transport.scheduler import Scheduler
from tests.distributed.programs import TWO_RANKS
from tests.helpers import program


class Work:
    """A fake operation that completes when it is waited for: a receive then sets its buffer to 7, a sum doubles it.

    Args:
        what: the operation (send, recv or sum), the ranks of its group, and its buffer.
    """

    def __init__(self, log: list[Any], what: tuple[Any, ...]) -> None:
        self.log, self.what = log, what

    def wait(self) -> None:
        self.log.append(("wait", *self.what))
        if self.what[0] == "recv":
            self.what[2].fill_(7)
        if self.what[0] == "sum":
            self.what[2].mul_(2)


class Group:
    """A fake backend of some ranks, which logs its calls."""

    def __init__(self, log: list[Any], ranks: list[int]) -> None:
        self.log, self.ranks = log, ranks

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        self.log.append(("send", tuple(self.ranks), self.ranks[peer]))
        return Work(self.log, ("send", tuple(self.ranks), tensors[0]))

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        self.log.append(("recv", tuple(self.ranks), self.ranks[peer]))
        return Work(self.log, ("recv", tuple(self.ranks), tensors[0]))


def fake_network(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> list[Any]:
    """Replace the backends of a rank by fakes, and return their log.

    Its entries are ("new", ranks, name) for a backend that is created, except that of all ranks, ("send" or "recv", ranks,
    peer), ("sum", ranks), and ("wait", operation, ranks, buffer).
    """
    log: list[Any] = []

    def create_backend(name: str, store: Any, number: int, size: int, limit: Any, devices: Any) -> Group:
        kind, *ranks = store.prefix.split()
        assert (int(ranks[number]), len(ranks)) == (rank, size)
        if kind != "all":  # the backend of all ranks is not logged
            log.append(("new", tuple(map(int, ranks)), name))
        return Group(log, [int(r) for r in ranks])

    def all_reduce(group: Group, buffer: torch.Tensor) -> Work:
        log.append(("sum", tuple(group.ranks)))
        return Work(log, ("sum", tuple(group.ranks), buffer))

    monkeypatch.setattr(processes, "create_backend", create_backend)
    monkeypatch.setattr(processes, "all_reduce", all_reduce)
    monkeypatch.setattr(processes, "share_memory", lambda *_: None)  # as for ranks that cannot share memory
    monkeypatch.setattr(processes, "PrefixStore", lambda prefix, store: SimpleNamespace(prefix=prefix))
    liveness = LivenessCheck(HashStore(), rank, world, hosted=False, progress=Progress())
    rendezvous = Rendezvous(None, liveness, store=HashStore())
    monkeypatch.setattr(processes, "rendezvous", lambda: rendezvous)
    return log


def created_groups(log: list[Any]) -> list[Any]:
    return [entry for entry in log if entry[0] == "new"]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_every_channel_and_collective_has_a_backend_that_is_created_and_used_once_in_one_order(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = program("chimera", D=4, N=4, width=2)
    logs = []
    for rank in range(p.world):
        log = fake_network(monkeypatch, rank, p.world)
        Processes(backend, torch.device("cpu"), staged=False).connect(p)
        logs.append(log)
    orders = [created_groups(log) for log in logs]
    channels = {(g, i.peer) for g in range(p.world) for i in p.stream(g) if i.op == "SEND"}
    all_reduces = {i.ranks for g in range(p.world) for i in p.stream(g) if isinstance(i, AllReduce)}
    for rank, order in enumerate(orders):  # each rank creates the backends to which it belongs, in one global order
        own = [ranks for ranks in [*sorted(channels), *sorted(all_reduces)] if rank in ranks]
        assert order == [("new", ranks, backend) for ranks in own]
        assert connections(p, rank) == max(8, 2 + len(order)), "a hardware queue for each of them, and two for the computation"
    assert len(channels) == 12, "two directions for each of three pairs of neighbours, in two replicas"
    for rank, log in enumerate(logs):
        after = log[len(orders[rank]) :]
        used = [entry for entry in after if entry[0] != "wait"]
        # The rank uses its channels in the global order, then its collectives, and waits for each before the next.
        transfers = [
            ("send" if a == rank else "recv", (a, b), b if a == rank else a) for a, b in sorted(channels) if rank in (a, b)
        ]
        assert used == [*transfers, *(("sum", ranks) for ranks in sorted(all_reduces) if rank in ranks)]
        assert [entry[0] for entry in after[1::2]] == ["wait"] * len(used)


def test_a_second_program_adds_only_the_channels_and_collectives_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = fake_network(monkeypatch, rank=0, world=2)
    transport = Processes("gloo", torch.device("cpu"), staged=False)
    transport.connect(TWO_RANKS["1f1b"])
    transport.connect(TWO_RANKS["two pipes"])
    assert [ranks for _, ranks, _ in created_groups(log)] == [(0, 1), (1, 0), (0, 1)], "two channels, then one collective"


def test_a_send_waits_for_the_oldest_send_if_the_window_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    for window in (0, 1, 2):
        log = fake_network(monkeypatch, rank=0, world=2)
        transport = Processes("gloo", torch.device("cpu"), staged=False)
        transport.connect(TWO_RANKS["1f1b"].with_header(window=window))
        log.clear()
        for _ in range(4):
            transport.send(1, torch.zeros(1))
        kinds = "".join(entry[0][0] for entry in log)  # s: a send, w: a wait
        assert kinds == {0: "swswswsw", 1: "swswsws", 2: "sswsws"}[window]
        transport.flush()
        assert sum(entry[0] == "wait" for entry in log) == 4


def test_staged_messages_pass_through_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    log = fake_network(monkeypatch, rank=0, world=2)
    transport = Processes("gloo", torch.device("cpu"), staged=True)
    transport.connect(TWO_RANKS["two pipes"])
    value, buffer, total = torch.ones(3), torch.zeros(3), torch.full((3,), 4.0)
    for _ in range(2):
        transport.send(1, value)
        buffer.zero_()
        transport.recv(1, buffer).wait()
        assert buffer.tolist() == [7.0] * 3
        transport.flush()
    transport.launch_all_reduce((0, 1), total).wait()
    assert total.tolist() == [8.0] * 3
    assert value.tolist() == [1.0] * 3
    waited = {tensor.data_ptr() for kind, _, _, tensor in (entry for entry in log if entry[0] == "wait")}
    assert not waited & {t.data_ptr() for t in (value, buffer, total)}, "the backend sees only host buffers"


def test_the_error_of_a_transfer_names_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_network(monkeypatch, rank=0, world=2)
    transport = Processes("gloo", torch.device("cpu"), staged=False)
    transport.connect(TWO_RANKS["1f1b"])

    def lose_peer(*_: Any) -> None:
        raise RuntimeError("[/pytorch/gloo/pair.cc:1] Connection closed by peer. This may be anything")

    monkeypatch.setattr(Group, "send", lose_peer)
    with pytest.raises(PeerLostError, match=r"^the send to rank 1 failed: Connection closed by peer$"):
        transport.send(1, torch.zeros(1))
    monkeypatch.setattr(Work, "wait", lose_peer)
    with pytest.raises(PeerLostError, match=r"^the receive from rank 1 failed: Connection closed by peer$"):
        transport.recv(1, torch.zeros(1)).wait()


def test_gloo_stages_messages_that_are_not_on_the_cpu_and_nccl_stages_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_network(monkeypatch, rank=0, world=2)
    assert not Gloo()._staged and Gloo(torch.device("cuda", 0))._staged and Gloo(staged=True)._staged
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    nccl = Nccl()
    assert nccl.device == torch.device("cuda", 3) and nccl._backend == "nccl" and not nccl._staged


def test_in_a_rehearsal_over_nccl_nothing_is_sent_and_messages_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    log = fake_network(monkeypatch, rank=0, world=2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("the GPU"))
    monkeypatch.setattr(Nccl, "_use_once", lambda *_: None)
    nccl = Nccl()
    nccl.connect(TWO_RANKS["two pipes"])
    log.clear()
    buffer, total = torch.ones(3), torch.ones(3)
    assert nccl.rehearsal is not None
    with nccl.rehearsal():
        nccl.send(1, torch.ones(3))
        nccl.recv(1, buffer).wait()
        nccl.launch_all_reduce((0, 1), total).wait()
        nccl.flush()
    assert not log and waits == ["the GPU"]
    assert (buffer.tolist(), total.tolist()) == ([0.0] * 3, [1.0] * 3)
    nccl.recv(1, buffer).wait()
    assert buffer.tolist() == [7.0] * 3


def test_nccl_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimerac.interpreter.transport.nccl.dist.is_nccl_available", lambda: False)
    with pytest.raises(ChimeraError, match="E815: this torch is built without NCCL"):
        join(timeout_s=1, local_rank=0)
    monkeypatch.setattr("chimerac.interpreter.transport.nccl.dist.is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ChimeraError, match="E815: rank 2 of this host needs a GPU of its own, and the host has only 2 GPUs"):
        join(timeout_s=1, local_rank=2)


def test_only_one_rank_runs_at_a_time_and_an_error_ends_all() -> None:
    scheduler, running, done = Scheduler(3, seed=0), [], []

    def body(me: int) -> None:
        for _ in range(50):
            running.append(me)
            assert len(running) == 1
            running.remove(me)
            scheduler.pause(me)
        if me == 1:
            raise ValueError("one of them")
        scheduler.wait(me, lambda: False, "an event that never occurs")
        done.append(me)

    scheduler.run([lambda me=me: body(me) for me in range(3)])
    assert not done and isinstance(scheduler.errors[1], ValueError) and len(scheduler.errors) == 3


def test_a_receive_of_another_size_than_its_send_is_an_error() -> None:
    def run_rank(transport: Any) -> None:
        if transport.rank == 0:
            transport.send(1, torch.zeros(3))
        else:
            transport.recv(0, torch.zeros(6)).wait()

    with pytest.raises(ValueError, match=re.escape("a receive of torch.float32[6] meets a send of torch.float32[3]")):
        run_in_loopback(TWO_RANKS["1f1b"], run_rank)


def test_collectives_whose_orders_form_a_cycle_hang_on_every_machine() -> None:
    p = program("gpipe", D=3, N=1)
    # By rank, its all-reduces in their order, each over two ranks. Each of the three is behind another on one rank.
    pairs = {0: [(0, 2), (0, 1)], 1: [(0, 1), (1, 2)], 2: [(1, 2), (0, 2)]}

    def run_rank(transport: Any) -> None:
        for pending in [transport.launch_all_reduce(ranks, torch.ones(1)) for ranks in pairs[transport.rank]]:
            pending.wait()

    for machine in ("posted", "window", "rendezvous", "paired", "serial"):
        with pytest.raises(StuckError, match="deadlock"):
            run_in_loopback(p, run_rank, machine=machine)


def test_collectives_outside_the_streams_reach_every_rank() -> None:
    def run_rank(transport: Any) -> tuple[list[str], list[float]]:
        total = torch.full((2,), float(transport.rank))
        transport.all_reduce(total)
        return transport.all_gather(f"rank {transport.rank}"), total.tolist()

    by_rank = run_in_loopback(program("gpipe", D=3, N=1), run_rank, every_post=True)
    assert by_rank == [(["rank 0", "rank 1", "rank 2"], [3.0, 3.0])] * 3


def test_a_poisoned_buffer_is_nan_and_autograd_detects_it() -> None:
    buffer = torch.ones(3)
    x = buffer.detach().requires_grad_()
    y = (x * x).sum()
    loopback.poison(buffer)
    assert buffer.isnan().all()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


UNLIMITED = 9  # sends; stands for any number


@pytest.mark.parametrize(
    ("machine", "window", "max_sends"),
    [("posted", 2, UNLIMITED), ("window", 2, 2), ("window", 0, 0), ("rendezvous", 2, 0), ("paired", 2, 2), ("serial", 1, 1)],
)
def test_each_machine_allows_its_number_of_sends_before_the_first_receive(
    machine: Machine, window: int, max_sends: int
) -> None:
    p = TWO_RANKS["1f1b"].with_header(window=window)

    def run_rank(transport: Any, count: int) -> None:
        if transport.rank == 0:
            for _ in range(count):
                transport.send(1, torch.zeros(1))
        transport.all_gather("rank 1 receives from here on")
        if transport.rank == 1:
            for _ in range(count):
                transport.recv(0, torch.zeros(1)).wait()

    run_in_loopback(p, partial(run_rank, count=max_sends), machine=machine)
    if max_sends != UNLIMITED:
        with pytest.raises(StuckError):
            run_in_loopback(p, partial(run_rank, count=max_sends + 1), machine=machine)


def test_a_full_window_of_a_machine_with_queues_waits_for_earlier_operations() -> None:
    p = program("gpipe", D=3, N=1).with_header(window=1)
    done: list[str] = []

    def run_rank(transport: Any) -> None:
        if transport.rank == 0:
            first = transport.recv(2, torch.zeros(1))
            transport.send(1, torch.zeros(1))
            transport.send(1, torch.zeros(1))  # the first send is behind the receive from rank 2 in the queue
            done.append("second send")
            first.wait()
        elif transport.rank == 1:
            for pending in [transport.recv(0, torch.zeros(1)) for _ in range(2)]:
                pending.wait()
        else:
            done.append("send of rank 2")
            transport.send(0, torch.zeros(1))

    for seed in range(60):
        run_in_loopback(p, run_rank, seed, machine="serial", every_post=True)
    assert done == ["send of rank 2", "second send"] * 60


def test_a_posted_buffer_holds_nan_until_its_message_arrives() -> None:
    def run_rank(transport: Any) -> None:
        if transport.rank == 0:
            transport.all_gather("posted")
            transport.send(1, torch.ones(2))
        else:
            buffer = torch.zeros(2)
            pending = transport.recv(0, buffer)
            assert buffer.isnan().all()
            transport.all_gather("posted")
            pending.wait()
            assert buffer.tolist() == [1, 1]

    run_in_loopback(TWO_RANKS["1f1b"], run_rank)


def test_the_error_names_the_ranks_whose_connection_cannot_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_network(monkeypatch, rank=0, world=2)

    def lose_peer(*_: Any) -> Group:
        raise RuntimeError("[/gloo/pair.cc:537] Connection closed by peer [127.0.0.1]:4711. And more")

    transport = Processes("gloo", torch.device("cpu"), staged=False)
    monkeypatch.setattr(processes, "create_backend", lose_peer)
    with pytest.raises(PeerLostError, match=r"connecting ranks 0, 1 failed: Connection closed by peer"):
        transport.connect(program("chimera", D=2))


def test_without_a_default_group_a_rank_makes_devices_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback_interface = socket.if_nameindex()[0][1]
    for value, count in (("", 1), (f"{loopback_interface},{loopback_interface}", 2)):
        monkeypatch.setenv(INTERFACE, value)
        devices = gloo_devices()
        assert len(devices) == count
        values = torch.ones(2)
        all_reduce(create_backend("gloo", HashStore(), 0, 1, None, devices), values).wait()
        assert values.tolist() == [1, 1]
    monkeypatch.setenv(INTERFACE, "no_such_interface")
    with pytest.raises(RuntimeError, match="no_such_interface"):
        gloo_devices()


@pytest.mark.parametrize("machine", ["window", "serial"])
def test_many_operations_become_complete_at_once(machine: Machine) -> None:
    """The operations of ranks 0 and 1 are behind one that rank 2 posts late."""
    p, count = program("gpipe", D=3, N=1), 2000

    def run_rank(transport: Transport) -> float:
        ranks = (0, 1, 2)
        buffers = [torch.ones(1) for _ in range(count)]
        if transport.rank == 2:
            transport.all_gather("")  # the others have posted all their operations before this rank posts one
            transport.launch_all_reduce(ranks, buffers[0]).wait()
            return float(buffers[0])
        pending = [transport.launch_all_reduce(ranks if k == 0 else (0, 1), b) for k, b in enumerate(buffers)]
        transport.all_gather("")
        for operation in pending:
            operation.wait()
        return float(sum(buffers))

    assert run_in_loopback(p, run_rank, machine=machine) == [3 + 2 * (count - 1)] * 2 + [3]
