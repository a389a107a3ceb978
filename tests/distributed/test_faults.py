"""Jobs of two ranks that fail or hang: both ranks end, and one of them prints one message that names the first cause.

Another job is only slow: it ends without an error.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import Any

import pytest

from tests.distributed.faults import JOBS
from tests.helpers_processes import run_command

pytestmark = pytest.mark.distributed

# By job: the digits of the ranks that may print the message; the end of the line that begins with `error:`; a text that is
# somewhere in the message, "" where none is checked. If rank 1 is killed while the stream runs, a send, a receive or an
# all-reduce of rank 0 fails. Which of them it is depends on the moment, so the expected end of the line begins after its name.
ENDED = " rank 1 failed: rank 1 has ended, in "
EXPECTED = {
    "killed in FWD": ("0", f"{ENDED}instruction 2: FWD main s1 m0", ""),
    "killed in a wait": (
        "0",
        f"{ENDED}instruction 2: FWD main s1 m0, in the wait for instruction 0: RECV act main s1 m0 <- 0",
        "",
    ),
    "killed in ALLREDUCE": (
        "0",
        " failed: rank 1 has ended, in instruction 8: ALLREDUCE s0 over 0,1",
        "",
    ),
    "killed in a shared sum": (
        "0",
        " failed: rank 1 has ended, in the epilogue, in the wait for instruction 8: ALLREDUCE s0 over 0,1",
        "",
    ),
    "killed before the norm": ("0", "an all-reduce over all ranks failed: rank 1 has ended, in the epilogue", ""),
    "stopped": (
        "0",
        "the receive from rank 1 is not complete after 5 s: rank 1 does not answer, in instruction 2: FWD main s1 m0",
        "",
    ),
    "exception": ("1", "no such token: 7", ""),
    "dropped": (
        "01",
        "is not complete after 5 s: never sent: rank 0 is past instruction 5: SEND act main s1 m1 -> 1, but no message came",
        ": has waited ",
    ),
    "late": (
        "0",
        "the receive from rank 1 is not complete after 5 s: late: rank 1 still computes, instruction 2: FWD main s1 m0",
        "  rank 1, instruction 2: FWD main s1 m0: computes",
    ),
    "cycle": (
        "01",
        "is not complete after 5 s: cycle: 2 ranks wait for each other",
        "  rank 0, instruction 2: BWD main s0 m0: has waited ",
    ),
}


@pytest.fixture(scope="module")
def results() -> Any:
    """Return by job and rank the exit code and the messages."""
    run = run_command(sys.executable, "tests/distributed/faults.py")
    assert run.returncode == 0, run.stderr
    by_job = json.loads(run.stdout)
    assert set(by_job) == set(JOBS) == {*EXPECTED, "slow"}
    return by_job


@pytest.mark.parametrize("job", EXPECTED)
def test_one_rank_names_the_first_cause(job: str, results: Any) -> None:
    may_print, end_of_line, part = EXPECTED[job]
    printed = {rank: text for rank, (_, text) in results[job].items() if text}
    ((rank, text),) = printed.items()
    assert rank in may_print
    (line,) = re.findall("^error: .*", text, re.MULTILINE)
    place, cause = re.fullmatch(r"error: (rank \d, (?:instruction \d+: [A-Z][^:]*|epilogue)): (.*)", line).groups()  # type: ignore[union-attr]
    assert place.startswith(f"rank {rank}, ")
    assert cause.endswith(end_of_line)
    assert part in text
    assert ("Traceback" in text) == (job == "exception") and text.count("Traceback") <= 1


@pytest.mark.parametrize("job", EXPECTED)
def test_no_rank_ends_with_exit_code_0(job: str, results: Any) -> None:
    codes = {rank: code for rank, (code, _) in results[job].items()}
    rank_1_is_killed = job.startswith(("killed", "stopped"))  # if it is stopped, rank 0 kills it, because it does not answer
    assert codes == {"0": 1, "1": -signal.SIGKILL if rank_1_is_killed else 1}


def test_an_exception_in_a_stage_is_shown_with_the_traceback_of_the_stage(results: Any) -> None:
    text = results["exception"]["1"][1]
    assert 'in fail\n    raise ValueError("no such token: 7")\nValueError: no such token: 7\nerror: rank 1, ' in text


def test_a_rank_that_is_slow_but_alive_is_waited_for(results: Any) -> None:
    assert results["slow"] == {"0": [0, ""], "1": [0, ""]}
