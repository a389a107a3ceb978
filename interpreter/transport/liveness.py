"""How the ranks of a failed job end: through the store they decide which rank reports the failure, and then every rank exits.

A rank that fails sets the abort flag in the store. In every rank a thread polls this flag. When it is set, the thread writes
to the store what its rank is doing. A rank that is suspended or gone writes nothing. The first rank to claim the report reports
the failure. All others exit without a message, also those that compute or wait inside torch.

A pipeline in a user's process group uses only the flag, and what the ranks write to the store. No process is ended there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from chimerac.interpreter.transport.progress import Progress, Status

POLL_INTERVAL_S = 0.5  # interval at which a rank polls the abort flag
STORE_TIMEOUT_S = 4.0  # how long the main thread waits for the answer to one call of the store
LINGER_S = 3.0  # how long a rank waits for SIGTERM before it exits, so that another one exits first
STORE_LOST_S = 10.0  # a rank that got SIGTERM exits if the store has not answered for this long
REPORT_TIMEOUT_S = 20.0  # how long a rank waits for a claim of the report; the claiming rank first collects the statuses
ABORT_FLAG = "abort"  # key in the store: how often the flag has been set
REPORT = "report"  # key in the store: how many ranks have claimed the report


class LivenessCheck:
    """Determines through the store which ranks answer, and which one reports.

    Args:
        hosted: rank 0 hosts the store; False: torchrun does, or the store is that of a user's process group.
        claim: a path that does not exist yet, the same one for all ranks of this host. If the store does not answer, the rank
            that creates this file reports. None: every rank then reports.
        end: ends this process with an exit code; None: this process writes its status and goes on, as in a user's process
            group.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        hosted: bool,
        progress: Progress,
        end: Callable[[int], object] | None = os._exit,
        claim: Path | None = None,
    ) -> None:
        self.store, self.rank, self.world, self.hosted, self.progress = store, rank, world, hosted, progress
        self._claim, self._end = claim, end
        self._last_answer_s = time.monotonic()  # when the store answered last
        self._stopped = threading.Event()
        self._terminated = threading.Event()  # this process got SIGTERM
        self._failed = threading.Event()  # this rank has failed, so only the main thread may end this process
        self._poller: threading.Thread | None = None
        self._unanswered: threading.Thread | None = None  # the latest call of the store that was not answered in time

    def start(self) -> None:
        """Start the thread that polls the abort flag. Once the flag is set, the thread writes the status of this rank.

        Then it ends this process, unless `end` is None, the main thread ends it, or the check is stopped.
        """
        self._poller = threading.Thread(target=self._poll, name="liveness check", daemon=True)
        self._poller.start()

    def stop(self) -> None:
        """Stop the thread. A thread that is inside a call of the store when Python exits would crash the process."""
        self._stopped.set()
        if self._poller is not None:
            self._poller.join(STORE_TIMEOUT_S)

    def _poll(self) -> None:
        """Poll the abort flag until the check is stopped. Once the flag is set, act as `start` says. Runs in the thread."""
        aborted = False
        try:
            while not self._stopped.wait(POLL_INTERVAL_S):
                aborted = self.store.check([ABORT_FLAG])
                self._last_answer_s = time.monotonic()
                if aborted:
                    self.store.set(f"rank {self.rank}", self.progress.status().to_json())
                    if self._end is None:
                        return
                    self._poll_report(REPORT_TIMEOUT_S)
                    break
        except RuntimeError:
            pass  # the store is gone, as at the end of rank 0, which may host it
        if aborted and self._end is not None:
            self._terminated.wait(LINGER_S)
            if not self._failed.is_set() and not self._stopped.is_set():
                self._end(1)

    @property
    def is_store_host(self) -> bool:
        """Return whether the store ends with this process."""
        return self.hosted and self.rank == 0

    def terminate(self) -> None:
        """Record that this process got SIGTERM: if another rank fails, this process then exits without waiting LINGER_S.

        It also exits if the store is lost, because then it cannot notice a failure.
        """
        self._terminated.set()
        threading.Thread(target=self._end_without_store, daemon=True).start()

    def _end_without_store(self) -> None:
        """End this process if the store is lost. Runs in a thread after SIGTERM."""
        while not self._stopped.wait(POLL_INTERVAL_S):
            if time.monotonic() - self._last_answer_s > STORE_LOST_S:
                if not self._failed.is_set() and self._end is not None:
                    self._end(1)
                return

    def fail(self) -> None:
        """Set the abort flag, because this rank has failed. From now on only the main thread may end this process."""
        self._failed.set()
        self._call_store(lambda: self.store.add(ABORT_FLAG, 1), STORE_TIMEOUT_S)

    def claim_report(self) -> bool:
        """Claim the report of the job. Return whether this rank is the first to do so, and has to report.

        If the store does not answer, its host may be lost. Then one rank of each host reports; without a path `claim`, every
        rank does.
        """
        claims: list[int] = []
        if self._call_store(lambda: claims.append(self.store.add(REPORT, 1)), STORE_TIMEOUT_S):
            return claims == [1]
        return self._claim_file()

    def _claim_file(self) -> bool:
        """Return whether this rank has to report without the store: it is the first of its host to create the file `claim`.

        It also has to report if there is no path, or if the file cannot be created.
        """
        if self._claim is None:
            return True
        try:
            self._claim.touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            pass  # then several ranks may report; otherwise none would
        return True

    def wait_for_report(self, within_s: float) -> bool:
        """Return whether another rank claims the report within this time."""
        claimed: list[bool] = []
        answered = self._call_store(lambda: claimed.append(self._poll_report(within_s)), within_s + STORE_TIMEOUT_S)
        return answered and claimed == [True]

    def _poll_report(self, within_s: float) -> bool:
        """Return whether a rank claims the report within this time. It calls the store in this thread."""
        until = time.monotonic() + within_s
        while not (claimed := self.store.check([REPORT])) and time.monotonic() < until:
            time.sleep(POLL_INTERVAL_S / 5)
        return bool(claimed)

    def linger(self) -> None:
        """Wait for SIGTERM, at most LINGER_S. So the rank that failed first exits first, and torchrun names it."""
        self._terminated.wait(LINGER_S)

    def collect_statuses(self, within_s: float) -> Mapping[int, Status] | None:
        """Set the abort flag, and return by rank the statuses that arrive within this time. None if the store does not answer.

        Once a rank has claimed the report, this method waits no longer: that rank may have exited, and then writes no status.
        """
        statuses = {self.rank: self.progress.status()}
        self.fail()
        if not self._call_store(lambda: self._collect(statuses, within_s), within_s + STORE_TIMEOUT_S):
            return None
        return dict(sorted(statuses.items()))

    def _collect(self, statuses: dict[int, Status], within_s: float) -> None:
        """Add the statuses of the other ranks to `statuses`."""
        missing, until = [r for r in range(self.world) if r != self.rank], time.monotonic() + within_s
        while missing and time.monotonic() < until and not self.store.check([REPORT]):
            for rank in [r for r in missing if self.store.check([f"rank {r}"])]:
                statuses[rank] = Status.from_json(self.store.get(f"rank {rank}").decode())
                missing.remove(rank)
            time.sleep(POLL_INTERVAL_S / 5 if missing else 0)

    def _call_store(self, call: Callable[[], object], within_s: float) -> bool:
        """Call the store in a thread, and return whether it answered in time. The store's process or host may be lost.

        A call that was not answered blocks the connection. So while there is one, no other call is made, and False is returned.
        """
        if self._unanswered is not None and self._unanswered.is_alive():
            return False
        answered = threading.Event()

        def run() -> None:
            try:
                call()
                answered.set()
            except RuntimeError:
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(within_s)
        if thread.is_alive():
            self._unanswered = thread
        return answered.is_set()
