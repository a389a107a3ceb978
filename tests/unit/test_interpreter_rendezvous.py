"""If a wait for other ranks fails, the error names the missing rank, one rank reports, and the others end.

Also the positions of ranks in files, and what `initialize` refuses.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Queue

import pytest
from torch.distributed import HashStore

from chimerac.compiler import compile_schedule
from chimerac.interpreter.errors import PeerLostError
from chimerac.interpreter.transport import liveness
from chimerac.interpreter.transport.liveness import LivenessCheck
from chimerac.interpreter.transport.progress import NUMBER, Awaited, Progress, read_position
from chimerac.interpreter.transport.rendezvous import Rendezvous, initialize
from tests.helpers_liveness import LostStore, answer_quickly

# Errors of torch: a wait that times out, a connection that is closed, and the setup of a connection that times out.
LATE = RuntimeError("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete")
CLOSED = RuntimeError("[/gloo/pair.cc:537] Connection closed by peer [127.0.0.1]:4711. And more")
LATE_SETUP = RuntimeError("wait timeout after 2000ms, keys: /default_pg/0//cpu//0/1")


class Job:
    """The ranks of a job, with a store that they share.

    Args:
        answering: the ranks whose liveness check is started, in a thread. The others are like ranks that are suspended or gone.
        hosted: whether rank 0 hosts the store.

    Attributes:
        ended: gets the number of each rank whose thread would end its process. No process ends.
    """

    def __init__(self, store: object, world: int, answering: list[int], hosted: bool = False) -> None:
        self.answering = answering
        self.ended: Queue[int] = Queue()
        ends = [partial(self._end, rank) for rank in range(world)]
        progress = [Progress() for _ in range(world)]
        self.checks = [LivenessCheck(store, r, world, hosted, progress[r], ends[r]) for r in range(world)]
        self.ranks = [Rendezvous(timedelta(seconds=2), self.checks[r], progress[r]) for r in range(world)]
        for rank in answering:
            self.checks[rank].start()

    def _end(self, rank: int, code: int) -> None:
        assert code == 1
        self.ended.put(rank)

    def join(self, rank: int) -> None:
        """Wait until the thread of a rank has ended."""
        thread = self.checks[rank]._poller
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()

    def close(self) -> None:
        """Stop all threads. After a failure they wait until a rank claims the report. So each answering rank claims it here."""
        for rank in self.answering:
            self.checks[rank].claim_report()
            self.checks[rank].stop()


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(quick: None) -> Iterator[MakeJob]:
    """Return a function that makes a Job from its arguments. The threads of all jobs are stopped after the test."""
    made: list[Job] = []

    def make(store: object, world: int, answering: list[int], hosted: bool = False) -> Job:
        made.append(Job(store, world, answering, hosted))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for answers of the ranks and of the store, and the wait for SIGTERM."""
    answer_quickly(monkeypatch, within_s=0.5)
    monkeypatch.setattr(liveness, "LINGER_S", 0.1)


@pytest.mark.parametrize("timeout_s", [0, -1, 1e10, 1e14, float("inf"), float("nan")])
def test_a_timeout_outside_the_limits_is_refused(timeout_s: float) -> None:
    """The limits are a millisecond and a year."""
    with pytest.raises(ValueError, match=r"the timeout of a wait is .* s: give a number from 0.001 to 31,536,000"):
        initialize(timeout_s)


def error_of_a_wait(rank: Rendezvous, awaited: Awaited, error: RuntimeError) -> PeerLostError:
    """Return the error of a rank whose wait has failed with this error of torch."""
    rank.progress.begin_wait(awaited, 0)
    return rank.lost(awaited, error)


def receive(peer: int) -> Awaited:
    return Awaited(f"the receive from rank {peer}", "receive", (peer,))


def test_the_error_names_the_rank_that_does_not_answer_though_the_wait_is_for_another_one(make_job: MakeJob) -> None:
    job = make_job(HashStore(), 4, answering=[0, 1, 3])
    error = error_of_a_wait(job.ranks[0], receive(1), LATE)
    assert str(error) == "the receive from rank 1 is not complete after 2 s: rank 2 does not answer"
    assert not error.peer_ended and not error.hanging


def test_several_ranks_that_do_not_answer_are_named(make_job: MakeJob) -> None:
    job = make_job(HashStore(), 3, answering=[0])
    everybody = Awaited("an all-reduce over all ranks", "all", (1, 2))
    assert str(error_of_a_wait(job.ranks[0], everybody, LATE)).endswith("after 2 s: ranks 1, 2 do not answer")


def test_the_position_of_a_rank_of_this_host_is_read_from_its_file(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0/error.json"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    (tmp_path / "1").mkdir()
    job, program = make_job(HashStore(), 2, answering=[0]), compile_schedule("gpipe", {"D": 2, "N": 1}).program
    key = job.ranks[0].progress.add(program)
    Progress(tmp_path / "1/progress").begin(key)[NUMBER] = 1  # as rank 1 would write it
    error = error_of_a_wait(job.ranks[0], receive(1), LATE)
    assert str(error).endswith(": rank 1 does not answer, in instruction 1: FWD main s1 m0")
    assert error.hanging == (os.getpid(),), "the process that wrote the file"


@pytest.mark.root
def test_a_full_disk_does_not_kill_a_rank_and_leaves_no_position(tmp_path: Path) -> None:
    """If a file is mapped into memory and its disk has no space for it, a write to the memory is a bus error."""
    code = (
        "import sys; from pathlib import Path\n"
        "from chimerac.interpreter.transport.progress import NUMBER, Progress, read_position\n"
        "path = Path(sys.argv[1]) / 'progress'; position = Progress(path).position; position[NUMBER] = 3\n"
        "print(position[NUMBER], read_position(path))"
    )
    # In a mount namespace of its own: a file system of 64 KiB that is full.
    commands = 'mount -t tmpfs -o size=64k none "$1" && { head -c 1M /dev/zero > "$1/fill"; exec "$2" -c "$3" "$1"; }'
    words = ["unshare", "--mount", "sh", "-c", commands, "sh", str(tmp_path), sys.executable, code]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "3 None\n"), ended.stderr


@pytest.mark.parametrize("length", [0, 8, 39, 41])  # a position has 40 bytes
def test_a_file_of_another_length_has_no_position(length: int, tmp_path: Path) -> None:
    (tmp_path / "progress").write_bytes(bytes(length))
    assert read_position(tmp_path / "progress") is None


def test_a_closed_connection_names_the_rank_that_has_ended(make_job: MakeJob) -> None:
    """The wait is for a receive from one rank, or for an all-reduce over several ranks."""
    error = error_of_a_wait(make_job(HashStore(), 2, answering=[0]).ranks[0], receive(1), CLOSED)
    assert (str(error), error.peer_ended) == ("the receive from rank 1 failed: rank 1 has ended", True)
    everybody = Awaited("an all-reduce over all ranks", "all", (1, 2))
    error = error_of_a_wait(make_job(HashStore(), 3, answering=[0, 1]).ranks[0], everybody, CLOSED)
    assert str(error) == "an all-reduce over all ranks failed: rank 2 has ended"


def test_a_connection_that_closes_while_both_ranks_answer_is_reported_with_the_error_of_torch(make_job: MakeJob) -> None:
    error = error_of_a_wait(make_job(HashStore(), 2, answering=[0, 1]).ranks[0], receive(1), CLOSED)
    assert str(error) == "the receive from rank 1 failed: Connection closed by peer [127.0.0.1]:4711; every rank answers"


def test_the_message_leaves_out_the_keys_of_the_store(make_job: MakeJob) -> None:
    job = make_job(HashStore(), 2, answering=[0])
    setup = Awaited("connecting ranks 0, 1", "other", (1,))
    assert (
        str(error_of_a_wait(job.ranks[0], setup, LATE_SETUP))
        == "connecting ranks 0, 1 is not complete after 2 s: rank 1 does not answer"
    )
    assert str(error_of_a_wait(Rendezvous(), setup, LATE_SETUP)) == "connecting ranks 0, 1 failed: wait timeout after 2000ms"


@pytest.mark.parametrize(("hosted", "name"), [(True, "rank 0"), (False, "the store of torchrun")])
def test_a_store_that_does_not_answer_is_not_waited_for_forever(make_job: MakeJob, hosted: bool, name: str) -> None:
    job = make_job(LostStore(), 2, answering=[], hosted=hosted)
    assert str(error_of_a_wait(job.ranks[1], receive(0), LATE)).endswith(f"after 2 s: {name} does not answer")
    assert job.checks[1].claim_report(), "a rank without a claim file reports"


def test_one_rank_reports_and_the_others_end(make_job: MakeJob) -> None:
    job = make_job(HashStore(), 3, answering=[0, 1, 2])
    job.checks[1].fail()
    assert [check.claim_report() for check in (job.checks[1], job.checks[0])] == [True, False]
    assert job.checks[2].wait_for_report(10)
    assert {job.ended.get(timeout=10) for _ in range(2)} == {0, 2}
    job.join(1)
    assert job.ended.empty(), "the thread leaves the end of rank 1 to its main thread"


def test_a_rank_that_got_sigterm_does_not_linger(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that lingers waits 600 s here, which is longer than a test may take."""
    monkeypatch.setattr(liveness, "LINGER_S", 600)
    monkeypatch.setattr(liveness, "STORE_LOST_S", 600)
    job = make_job(HashStore(), 2, answering=[0, 1])
    job.ranks[0].terminate()
    job.checks[1].fail()
    assert job.checks[1].claim_report() and job.ended.get(timeout=10) == 0
    job.checks[1].terminate()
    job.checks[1].linger()


def test_a_thread_that_is_stopped_while_it_lingers_ends_no_process(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LINGER_S", 600)
    store = HashStore()
    job = make_job(store, 2, answering=[0])
    job.checks[1].fail()
    store.wait(["rank 0"], timedelta(seconds=10))  # until the thread of rank 0 has written its status
    job.checks[1].claim_report()
    job.checks[0].stop()
    job.checks[0].terminate()  # ends the lingering of the thread
    job.join(0)
    assert job.ended.empty()


def test_the_error_names_the_environment_variables_that_the_rendezvous_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(PeerLostError, match="in the environment, which lacks MASTER_ADDR, MASTER_PORT, WORLD_SIZE"):
        initialize(1)
