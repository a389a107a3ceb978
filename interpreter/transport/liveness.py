"""The end of a failed job, agreed upon through the store: one rank reports the first cause, and every rank ends.

A rank that fails sets an abort flag in the store. In every rank a thread polls the flag and answers with what its rank is
doing. A rank that is stopped or gone does not answer. The first rank to claim the report writes the message of the job. All
others end without a message, also those that compute or wait inside torch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from chimerac.interpreter.transport.progress import Progress, Status

EVERY_S = 0.5  # interval at which a rank polls the abort flag
STORE_S = 4.0  # how long the store has to answer one question
LINGER_S = 3.0  # how long a rank that reports nothing goes on after the report
LOST_S = 10.0  # after how long without an answer of the store a rank that was asked to end does so
REPORT_S = 20.0  # longer than a rank needs to report: the answers of the others, and its own text
ABORT_FLAG = "abort"  # key in the store: how many ranks have set the flag
REPORT = "report"  # key in the store: how many ranks have claimed the report


class LivenessCheck:
    """Finds out through the store which ranks answer, and which one reports.

    hosted: rank 0 hosts the store; otherwise torchrun does. claim: a file that does not exist yet, the same one for all ranks
    of this machine: they claim the report with it if the store does not answer; None if there is none. end: ends this process;
    None: it goes on, as in a user's own process group.
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
        self._answered_s = time.monotonic()  # when the store answered last
        self._stopped = threading.Event()
        self._terminated = threading.Event()
        self._failed = threading.Event()
        self._poller: threading.Thread | None = None
        self._unanswered: threading.Thread | None = None  # the latest question that may have no answer yet

    def start(self) -> None:
        """Start the thread that answers once the abort flag is set, and then ends this process."""
        self._poller = threading.Thread(target=self._poll, name="liveness check", daemon=True)
        self._poller.start()

    def stop(self) -> None:
        """Stop the thread. A thread that is inside a call of the store when Python exits would crash the process."""
        self._stopped.set()
        if self._poller is not None:
            self._poller.join(STORE_S)

    @property
    def is_store_host(self) -> bool:
        """Whether the store ends with this process."""
        return self.hosted and self.rank == 0

    def terminate(self) -> None:
        """Record that this process was asked to end (SIGTERM). It then ends as soon as it knows of a failure.

        It also ends if the store is lost, because then it cannot learn of a failure.
        """
        self._terminated.set()
        threading.Thread(target=self._end_without_store, daemon=True).start()

    def fail(self) -> None:
        """Record that the main thread ends this process because of a failure, and set the abort flag."""
        self._failed.set()
        self._ask(lambda: self.store.add(ABORT_FLAG, 1), STORE_S)

    def claims_report(self) -> bool:
        """Return whether this rank is the first to claim the report of the job.

        If the store does not answer, its machine may be lost. Then one rank of each of the other machines reports.
        """
        claims: list[int] = []
        if self._ask(lambda: claims.append(self.store.add(REPORT, 1)), STORE_S):
            return claims == [1]
        return self._claims_here()

    def _claims_here(self) -> bool:
        """Return whether this rank is the first of its machine to claim the report; True if they have no common file."""
        if self._claim is None:
            return True
        try:
            self._claim.touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            pass  # two messages are better than none
        return True

    def is_reported(self, within_s: float) -> bool:
        """Return whether another rank claims the report within this time."""
        found: list[bool] = []
        return self._ask(lambda: found.append(self._wait_for_report(within_s)), within_s + STORE_S) and found == [True]

    def linger(self) -> None:
        """Wait until this process is asked to end, or LINGER_S: torchrun should see first the rank that failed first."""
        self._terminated.wait(LINGER_S)

    def answers(self, within_s: float) -> Mapping[int, Status] | None:
        """Set the abort flag, and return what the ranks are doing that answer in time. None if the store does not answer.

        It returns at once if another rank reports: that rank may have ended, and does not answer then.
        """
        statuses = {self.rank: self.progress.status()}
        self.fail()
        if not self._ask(lambda: self._collect(statuses, within_s), within_s + STORE_S):
            return None
        return dict(sorted(statuses.items()))

    def _poll(self) -> None:
        aborted = False
        try:
            while not self._stopped.wait(EVERY_S):
                aborts = self.store.check([ABORT_FLAG])
                self._answered_s = time.monotonic()
                if aborts:
                    aborted = True
                    self.store.set(f"rank {self.rank}", self.progress.status().to_json())
                    if self._end is None:
                        return
                    self._wait_for_report(REPORT_S)
                    break
        except RuntimeError:
            pass  # the store is gone, as at the end of rank 0, which may host it
        if aborted and self._end is not None:
            self._terminated.wait(LINGER_S)
            if not self._failed.is_set() and not self._stopped.is_set():
                self._end(1)

    def _end_without_store(self) -> None:
        while not self._stopped.wait(EVERY_S):
            if time.monotonic() - self._answered_s > LOST_S:
                if not self._failed.is_set() and self._end is not None:
                    self._end(1)
                return

    def _wait_for_report(self, within_s: float = REPORT_S) -> bool:
        until = time.monotonic() + within_s
        while not (found := self.store.check([REPORT])) and time.monotonic() < until:
            time.sleep(EVERY_S / 5)
        return bool(found)

    def _ask(self, question: Callable[[], object], within_s: float) -> bool:
        """Return whether the store answered in time. The process that hosts it may be stopped, or its machine gone.

        The connection is blocked by a question that has no answer yet, so no other one is asked then.
        """
        if self._unanswered is not None and self._unanswered.is_alive():
            return False
        answered = threading.Event()

        def ask() -> None:
            try:
                question()
                answered.set()
            except RuntimeError:
                pass

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(within_s)
        self._unanswered = thread
        return answered.is_set()

    def _collect(self, statuses: dict[int, Status], within_s: float) -> None:
        missing, until = [r for r in range(self.world) if r != self.rank], time.monotonic() + within_s
        while missing and time.monotonic() < until and not self.store.check([REPORT]):
            for rank in [r for r in missing if self.store.check([f"rank {r}"])]:
                statuses[rank] = Status.from_json(self.store.get(f"rank {rank}").decode())
                missing.remove(rank)
            time.sleep(EVERY_S / 5 if missing else 0)
