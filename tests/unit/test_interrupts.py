"""Ctrl-C while packages are loaded takes effect afterwards; a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from chimerac.compiler.command.interrupts import interrupts_deferred


@pytest.fixture(autouse=True)
def ctrl_c_is_not_ignored() -> Iterator[None]:
    """Give SIGINT Python's own handler: a shell lets a command in the background ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_takes_effect_at_the_end() -> None:
    before, is_complete = signal.getsignal(signal.SIGINT), False
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        is_complete = True
    assert is_complete and signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_takes_effect_at_once() -> None:
    is_complete = False
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        is_complete = True
    assert not is_complete


def test_an_error_inside_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), interrupts_deferred():
        raise ZeroDivisionError


def test_another_thread_may_use_the_context_too() -> None:
    entered: list[bool] = []

    def enter() -> None:
        with interrupts_deferred():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
