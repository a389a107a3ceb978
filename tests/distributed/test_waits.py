"""Every wait ends: if one of two ranks stops or never starts, the other one names it soon after --timeout."""

import json
import os
import signal
import time

import pytest

from tests.helpers_processes import (
    TINY,
    UNCHECKED,
    free_port,
    script_rank_of_two,
    start_process,
    training_rank_of_two,
    wait_for_iteration,
)

pytestmark = pytest.mark.distributed


def test_every_wait_has_a_timeout_and_a_slow_rank_is_waited_for() -> None:
    port = free_port()
    (command_0, environment_0), (command_1, environment_1) = (
        script_rank_of_two(rank, "tests/distributed/waits.py", port=port) for rank in (0, 1)
    )
    with start_process(*command_0, **environment_0) as process_0, start_process(*command_1, **environment_1) as process_1:
        out, err = process_0.communicate(timeout=60)
        assert process_0.returncode == 0, err + process_1.communicate()[1]
    found = json.loads(out)
    assert {name: message for name, (message, _) in found.items()} == {
        "receive": "the receive from rank 1 is not complete after 2 s: rank 1 does not answer",
        "sends": "the send to rank 1 is not complete after 2 s: rank 1 does not answer",
        "all-reduce": "the all-reduce over ranks 0, 1 is not complete after 2 s: rank 1 does not answer",
        "all-reduce through shared memory": "the all-reduce over ranks 0, 1 is not complete after 2 s: rank 1 does not answer",
        "all-reduce over all ranks": "an all-reduce over all ranks is not complete after 2 s: rank 1 does not answer",
        "connection": "connecting ranks 0, 1 is not complete after 2 s: rank 1 does not answer",
    }
    assert all(seconds < 8 for _, seconds in found.values()), "each wait ends soon after its limit of 2 s"


def test_if_a_rank_stops_the_other_one_names_it_and_ends_but_a_pause_ends_no_rank() -> None:
    port, words = free_port(), ["-p", "D=2", *TINY, *UNCHECKED, "--iterations", "1000000", "--timeout", "6"]
    (command_0, environment_0), (command_1, environment_1) = (training_rank_of_two(rank, *words, port=port) for rank in (0, 1))
    with start_process(*command_0, **environment_0) as process_0, start_process(*command_1, **environment_1) as process_1:
        wait_for_iteration(process_0)
        os.kill(process_1.pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(process_1.pid, signal.SIGCONT)
        time.sleep(1)
        assert process_0.poll() is None and process_1.poll() is None
        os.kill(process_1.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        _, message = process_0.communicate(timeout=60)
        assert process_0.returncode == 1 and time.monotonic() - stopped < 20
    (line,) = message.splitlines()
    assert line.startswith("error: rank 0, ") and line.endswith(" is not complete after 6 s: rank 1 does not answer")


def test_a_rank_that_never_starts_is_named() -> None:
    command, environment = training_rank_of_two(0, "-p", "D=2", *TINY, "--timeout", "1", port=free_port())
    with start_process(*command, **environment) as process_0:
        _, message = process_0.communicate(timeout=60)
    assert process_0.returncode == 1 and "Traceback" not in message
    assert message.splitlines()[-1] == "error: the rendezvous of all ranks is not complete after 1 s: rank 1 does not answer"
