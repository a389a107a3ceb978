"""For tests of how ranks notice that others are lost, without torchrun: short time limits, and a store that never answers."""

from __future__ import annotations

import threading

import pytest

from chimerac.interpreter.transport import liveness, rendezvous


class LostStore:
    """The store of a host that is lost: it never answers."""

    def check(self, keys: list[str]) -> bool:
        threading.Event().wait()
        return True

    def add(self, key: str, amount: int) -> int:
        threading.Event().wait()
        return 1


def answer_quickly(monkeypatch: pytest.MonkeyPatch, within_s: float) -> None:
    """Set to `within_s` seconds how long other ranks have to answer, and how long the store has. Make this process rank 0."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(liveness, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(liveness, "STORE_TIMEOUT_S", within_s)
    monkeypatch.setattr(rendezvous, "ANSWER_AFTER_TIMEOUT_S", within_s)
    monkeypatch.setattr(rendezvous, "ANSWER_AFTER_CLOSE_S", within_s)
