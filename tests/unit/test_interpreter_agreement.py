"""Ranks compare their options, and the programs and the data that result from them, and name what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.launch.agreement import COMPARED_INDIRECTLY, NOT_COMPARED, Derived, compare
from chimerac.interpreter.launch.options import option_names, parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.start import make_job
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers import findings_of_call, program

THREE_RANKS = program("gpipe", D=3, N=1)
PROGRAM: list[Derived] = [("E806", "program", "a" * 64)]  # code of the finding, name, digest


def different_value(value: object) -> object:
    """Return another value for the option that has this value."""
    match value:
        case bool():
            return not value
        case None:
            return 7
        case int() | float():
            return value + 1
        case (float(), *rest):
            return (value[0] / 2, *rest)
        case tuple():
            return (*value, ("N", 7))
        case Path():
            return value.with_name("other")
        case _:
            return f"{value}x"


def compare_options(change: Callable[[RunSettings], Any], rank: int = 1, own_program: list[Derived] = PROGRAM) -> None:
    """Compare the options of three ranks, of which one has options of its own.

    Args:
        rank: the number of this rank.
        change: returns its options, given those of the others.
        own_program: the digest of its program, as `compare` takes it.
    """

    def run_rank(transport: Transport) -> None:
        settings: Any = parse_options(["-p", "D=2"])
        if transport.rank == rank:
            settings = change(settings)
        compared_program = own_program if transport.rank == rank else PROGRAM
        compare(transport, settings, compared_program, [("E809", "training (model or data)", "text")])

    run_in_loopback(THREE_RANKS, run_rank)


def test_equal_options_are_accepted_and_the_log_files_may_differ() -> None:
    compare_options(lambda settings: settings)
    compare_options(lambda settings: parse_options(["-p", "D=2", "--log-file", "x"]))


@pytest.mark.parametrize("name", [f.name for f in fields(RunSettings)])
def test_an_option_that_differs_is_named_unless_it_may_differ(name: str) -> None:
    before = getattr(parse_options(["-p", "D=2"]), name)

    def change(settings: RunSettings) -> RunSettings:
        return replace(settings, **{name: different_value(before)})

    if name in NOT_COMPARED:
        compare_options(change)
        return
    option = option_names()[name]
    if name in COMPARED_INDIRECTLY:
        compare_options(change)  # accepted, because the program and the data are the same
        [found] = findings_of_call(compare_options, change, own_program=[("E806", "program", "b" * 64)])
        assert found.message == f"rank 0 and rank 1 have a different program: {'a' * 12} and {'b' * 12}"
        text = found.notes[0]
    else:
        [found] = findings_of_call(compare_options, change)
        start, text = found.message.split(": ", 1)
        assert start == "rank 0 and rank 1 have a different training (settings)"
    assert text.startswith(f"{option} is ") and " on ranks 0, 2 and " in text and text.endswith(" on rank 1")


SHORT_RUN = ["--iterations", "1", "--micro-batch", "1", "--seq-len", "8", "--eval-samples", "1"]


@pytest.mark.parametrize(
    ("words", "defaults", "different", "message"),
    [
        (["--timed", "0.01"], ["--iterations", "5"], ["--iterations", "6"], "--iterations is 5 on rank 0 and 6 on rank 1"),
        (SHORT_RUN, ["--model", "gpt-small", "--warm-up", "1"], ["--warm-up", "2"], "--warm-up is 1 on rank 0 and 2 on rank 1"),
        (
            SHORT_RUN,
            ["--check-gradients"],
            ["--no-check-gradients"],
            "--check-gradients is yes on rank 0 and no on rank 1",
        ),
    ],
)
def test_an_option_that_is_left_out_equals_its_default(
    words: list[str], defaults: list[str], different: list[str], message: str
) -> None:
    """Both ranks have the options `words`. Rank 1 also has `defaults`, which agree, or `different`, which do not."""
    two_ranks = program("gpipe", D=2, N=1)

    def run_rank(transport: Transport, of_rank_1: list[str]) -> int:
        settings = parse_options(
            ["schedules/gpipe.sched", "-p", "D=2", "-p", "N=1", *words, *(of_rank_1 if transport.rank else [])]
        )
        return make_job(make_plan(settings), settings, ranks_here=2).run(transport)

    assert run_in_loopback(two_ranks, lambda t: run_rank(t, defaults)) == [0, 0]
    with pytest.raises(ChimeraError, match=f"E809: .*: {message}\n"):
        run_in_loopback(two_ranks, lambda t: run_rank(t, different))


def test_a_new_option_is_compared_without_further_code() -> None:
    later_settings = make_dataclass("later", [("not_there_yet", Any)], bases=(RunSettings,), frozen=True, kw_only=True)

    def with_new_option(settings: RunSettings, value: object) -> Any:
        return later_settings(**{f.name: getattr(settings, f.name) for f in fields(settings)}, not_there_yet=value)

    for value in (1, "x", None, True, 0.5):
        with pytest.raises(ChimeraError, match=r"E809: rank 0 and rank 2 .*: not_there_yet is unknown on ranks 0, 1 and"):
            compare_options(lambda settings, value=value: with_new_option(settings, value), rank=2)


def test_settings_cannot_be_changed() -> None:
    settings = parse_options([])
    with pytest.raises(FrozenInstanceError):
        settings.lr = 1.0


def test_several_options_that_differ_are_all_named() -> None:
    def change(settings: RunSettings) -> RunSettings:
        return replace(settings, eval_every=7, check_gradients=False, lr=0.1)

    [found] = findings_of_call(compare_options, change, rank=0)
    assert found.message.endswith("(settings): --lr is 0.1 on rank 0 and 0.001 on ranks 1, 2")
    assert found.notes == (
        "--eval-every is 7 on rank 0 and not given on ranks 1, 2",
        "--check-gradients is no on rank 0 and not given on ranks 1, 2",
    )


def test_the_order_of_parameters_has_no_effect() -> None:
    def run_rank(transport: Transport) -> None:
        words = ["-p", "D=2", "-p", "N=4"] if transport.rank else ["-p", "N=4", "-p", "D=2"]
        compare(transport, parse_options(words), PROGRAM)

    run_in_loopback(THREE_RANKS, run_rank)


def test_different_data_and_a_missing_program_of_evaluations_are_findings() -> None:
    def run_rank(transport: Transport, programs: dict[int, str], data: dict[int, str]) -> None:
        """Compare this rank with the others.

        Args:
            programs, data: by rank, the texts that identify its program and its data. The ranks that these do not name have "a"
                and "abc, of 9 bytes". A rank without a program of evaluations has "none".
        """
        derived = [("E806", "program of evaluations", programs.get(transport.rank, "a"))]
        training = [("E809", "training (model or data)", data.get(transport.rank, "abc, of 9 bytes"))]
        compare(transport, parse_options([]), derived, training)

    with pytest.raises(ChimeraError, match=r"E809: .* \(model or data\): abc, of 9 bytes and abd, of 8 bytes"):
        run_in_loopback(THREE_RANKS, lambda t: run_rank(t, {}, {2: "abd, of 8 bytes"}))
    with pytest.raises(ChimeraError, match="E806: rank 0 and rank 1 have a different program of evaluations: a and none"):
        run_in_loopback(THREE_RANKS, lambda t: run_rank(t, {1: "none"}, {}))
