"""The plan of a run: the search against brute force over programs whose width is expanded, the command, and bad input."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.profile import Link, profile_from_json
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.durations import profiled_durations
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.command import plan as command
from chimerac.compiler.command.main import main
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.library import find
from chimerac.compiler.plan.evaluate import Evaluator, Outcome
from chimerac.compiler.plan.explore import search
from chimerac.compiler.plan.space import Configuration, Problem
from chimerac.compiler.profiles import find_profile
from chimerac.interpreter.launch.options import parse_options
from tests.helpers import EXAMPLE_PROFILE, findings_of_call

SCHEDULES = ("1f1b", "chimera", "interleaved", "chimera_halving", "zb_h1")
STATE = OptimizerState(Fraction(2))
OPTIONS = {"--model": "gpt-nano", "--ranks": "4", "--batch": "16", "--profile": str(EXAMPLE_PROFILE), "--memory": "1GiB"}


def words_of(options: Mapping[str, str]) -> list[str]:
    """Return the words of these options and of those of OPTIONS that are not among them."""
    return [word for option in (OPTIONS | dict(options)).items() for word in option]


def problem(**changes: object) -> Problem:
    """Return a small problem, in which the links are slow enough to matter."""
    profile = replace(profile_from_json(EXAMPLE_PROFILE.read_text()), point_to_point=Link(1e-4, 1e8), all_reduce=())
    given = Problem({name: find(name) for name in SCHEDULES}, "gpt-nano", profile, 4, 16, 2**30, STATE)
    return replace(given, **changes)


@dataclass(frozen=True)
class Tried:
    """A configuration that brute force has tried: its iteration in nanoseconds, and the memory of the rank with most.

    shared: the memory if the state of the optimizer is shared out.
    """

    schedule: str
    sizes: dict[str, int]
    width: int
    micro_batch: int
    recompute: bool
    makespan: int
    memory: int
    shared: int = field(default=0, compare=False)


@cache
def brute_force() -> list[Tried]:
    """Return the configurations of `problem`."""
    return list(_brute_force(problem()))


def _brute_force(p: Problem) -> Iterator[Tried]:
    """Yield every configuration that compiles, from its verified program over all replicas."""
    for schedule in p.schedules:
        letter = {"chimera": "f", "interleaved": "v"}.get(schedule)
        own_sizes = [{letter: value} for value in (1, 2, 4)] if letter else [{}]
        for d, b, own, recompute in product(range(1, 5), range(1, 17), own_sizes, p.recompute):
            w = p.ranks // d
            if p.ranks % d or p.batch % (w * b):
                continue
            sizes = {"D": d, "N": p.batch // (w * b) * parts_of(schedule), **own}
            try:
                program = compile_schedule(schedule, sizes, width=w, recompute="all" if recompute else "none").program
                model = find_model(p.model, program.header.samples, b)
                costs = p.profile.layer_nanoseconds(model)
                program = program.with_partition(balanced(model, program.header.stages, costs))
                times = simulate(program, durations=profiled_durations(program, model, p.profile))
            except ChimeraError:
                continue
            states = (p.state, replace(p.state, zero=True))
            peaks = (max(x.peak for x in memory(program, model, state)) for state in states)
            yield Tried(schedule, sizes, w, b, recompute, times.makespan, *peaks)


def parts_of(schedule: str) -> int:
    """Return how many micro-batches of a schedule are one that a run is given."""
    return 2 if schedule == "chimera_halving" else 1


def as_tried(c: Configuration, makespan: int | None, peak: int) -> Tried:
    assert makespan is not None
    sizes = {"D": c.ranks, "N": c.micro_batches * parts_of(c.schedule), **dict(c.own)}
    return Tried(c.schedule, sizes, c.width, c.micro_batch, c.recompute, makespan, peak)


def test_the_best_is_that_of_brute_force_over_all_replicas() -> None:
    """Its time and its memory, and those of every other one that was tried, are those of the program over all replicas."""
    p = problem()
    known = brute_force()
    assert len(known) > 50
    found = search(p)
    best = min(known, key=lambda x: x.makespan)
    assert found.best.makespan == best.makespan
    tried = [as_tried(o.configuration, o.makespan, o.memory) for o in found.outcomes.values() if o.is_running]
    assert tried and all(x in known for x in tried)
    assert found.too_slow > 0 and len(known) == len(tried) + found.too_slow
    for d, o in found.by_ranks.items():
        assert o.makespan == min(x.makespan for x in known if x.sizes["D"] == d)


def test_with_little_memory_the_best_is_that_of_brute_force_that_fits() -> None:
    known = brute_force()
    limits = sorted({x.memory for x in known})
    for limit in (limits[0], limits[len(limits) // 4], limits[len(limits) // 2]):
        found = search(problem(limit=limit))
        assert found.best.makespan == min(x.makespan for x in known if x.memory <= limit)
        assert found.best.memory <= limit
    d = findings_of_call(search, problem(limit=limits[0] - 1))[0]
    assert d.code == "E718" and f"--memory {limits[0]}" in d.help


def test_zero_counts_the_ranks_of_all_replicas() -> None:
    """Where only a shared state fits, it is shared, and the memory is that of the program over all replicas."""
    known = [x for x in brute_force() if x.schedule == "chimera"]
    chimera = {"chimera": find("chimera")}
    least = min(x.shared for x in known)
    assert least < min(x.memory for x in known)
    found = search(problem(schedules=chimera, limit=least, zero=None))
    assert found.best.zero and found.best.memory == least
    assert not search(problem(schedules=chimera, zero=None)).best.zero, "there is enough memory without"
    always = search(problem(schedules=chimera, zero=True)).best
    assert always.zero and always.makespan is not None and always.makespan > min(x.makespan for x in known)


def test_the_number_of_processes_changes_no_result() -> None:
    p = problem()
    one, two = search(p), search(p, processes=2)
    assert (one.best, one.outcomes, one.too_slow, one.neighbours) == (two.best, two.outcomes, two.too_slow, two.neighbours)


def test_each_neighbour_differs_in_one_choice() -> None:
    found = search(problem())
    best = found.best.configuration
    assert {what for what, _ in found.neighbours} >= {"D x W", "micro-batch", "recompute", "schedule"}
    for what, o in found.neighbours:
        c = o.configuration
        same = {
            "D x W": c.ranks == best.ranks,
            "micro-batch": c.micro_batch == best.micro_batch,
            "recompute": c.recompute == best.recompute,
            "schedule": c.schedule == best.schedule,
        }
        assert [name for name, is_same in same.items() if not is_same] in ([what], [])
        assert not o.is_running or o.key > found.best.key


def test_only_given_values_are_tried() -> None:
    found = search(problem(own={"D": [2, 4], "f": [1]}, sizes=[2], recompute=[True]))
    tried = [o.configuration for o in found.outcomes.values()]
    assert tried and {c.ranks for c in tried} == {2, 4}
    assert {c.micro_batch for c in tried} == {2} and all(c.recompute for c in tried)
    assert {c.own for c in tried if c.schedule == "chimera"} <= {(("f", 1),)}


def test_the_plan_prefers_the_measured_best_where_the_published_model_does_not() -> None:
    """GPT-2 on 512 nodes: the model of the Chimera paper (SC'21) takes W=16, D=32, and the measured best is W=64, D=8."""
    profile = find_profile("gpt2-64-p100", "gpt2-64")
    given = Problem({"chimera": find("chimera")}, "gpt2-64", profile, 512, 512, 16 * 2**30)
    both = search(replace(given, own={"D": [8, 32], "f": [1]}, sizes=[1])).by_ranks
    assert both[8].makespan < both[32].makespan


def test_the_command_prints_a_table_and_writes_a_plan_that_run_py_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.yaml"
    assert main(["plan", "1f1b", "chimera", *words_of({"--processes": "1", "-o": str(path)})]) == 0
    output = capsys.readouterr()
    assert "samples/s of the best configuration for each D" in output.out and "loses by" in output.out
    settings = parse_options([str(path)])
    assert settings.model == "gpt-nano" and settings.width and settings.split
    line = output.out[output.out.index("torchrun") :].replace("\\\n", " ").split()
    assert line[:4] == ["torchrun", "--nproc-per-node", "4", "interpreter/run.py"]
    assert parse_options(line[4:]) == settings, "the file and the command line are the same run"
    assert parse_options([str(path), "--seed", "7"]).seed == 7
    with pytest.raises(SystemExit):
        parse_options([str(path), "--config", str(path)])


STUCK = """schedule stuck
param D = 4          require D >= 1
param N = 2*D        require N >= 1
ranks D
stages D
pipe main { stage s on rank s   micro_batches N }
order greedy { prefer B, F   limit F - B <= N - 4 }
"""


def test_an_order_that_gets_stuck_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stuck.sched"
    path.write_text(STUCK)
    assert main(["plan", str(path), "1f1b", *words_of({"--processes": "1", "--emit": "json"})]) == 0
    counts = json.loads(capsys.readouterr().out)["configurations"]
    assert counts["impossible"].get("E305"), counts
    others = sum(counts["impossible"].values()) + counts["too_large_before_compiling"]
    assert counts["total"] == others + counts["slower_than_the_best_in_any_case"] + counts["compiled"]


def test_json_has_the_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "1f1b", "chimera", *words_of({"--processes": "1", "--emit": "json"})]
    assert main(words) == 0
    first = capsys.readouterr().out
    file = json.loads(first)
    counts = file["configurations"]
    others = sum(counts["impossible"].values()) + counts["too_large_before_compiling"]
    assert counts["total"] == others + counts["slower_than_the_best_in_any_case"] + counts["compiled"]
    assert file["best"]["samples_per_s"] > 0 and all(x["loses_by"] for x in file["neighbours"])
    assert main(words) == 0 and capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("given", "code", "fact"),
    [
        ({"--ranks": "-4"}, "E002", "--ranks -4: expected a number from 1"),
        ({"--batch": "0"}, "E002", "--batch 0: expected a number from 1"),
        ({"--memory": "-1"}, "E002", "--memory -1: expected bytes"),
        ({"--processes": "0"}, "E002", "--processes 0"),
        ({"--micro-batch": "2,0"}, "E002", "--micro-batch 2,0: expected numbers"),
        ({"--micro-batch": "1" * 5000}, "E002", "expected numbers from 1 to 2147483648"),
        ({"--micro-batch": "1,99999999999"}, "E002", "expected numbers from 1 to 2147483648"),
        ({"-o": "none/x.yaml"}, "E003", "none/x.yaml cannot be written: there is no folder none"),
        ({"-o": str(EXAMPLE_PROFILE)}, "E002", "would write over the file of --profile"),
        ({"-p": "N=4"}, "E002", "N follows from --batch"),
        ({"-p": "ff=4"}, "E002", "no schedule has this parameter"),
        ({"-p": "f=x"}, "E002", "'x' is not an integer"),
        ({"-o": "-"}, "E002", "stdout gets the table"),
        ({"--profile": "nowhere.json"}, "E001", "nowhere.json"),
        ({"--model": "gpt-micro"}, "E714", "is one of gpt-nano, and the model is gpt-micro"),
        ({"--memory": "1000"}, "E718", "a rank has 1,000 bytes"),
        ({"--batch": "1"}, "E719", "with 1 samples"),
        ({"--ranks": "7"}, "E719", "on 7 ranks"),
    ],
)
def test_bad_input_is_a_finding(given: dict[str, str], code: str, fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["plan", "1f1b", "chimera", *words_of(given)])
    output = capsys.readouterr()
    assert status == (2 if code < "E1" else 1) and not output.out
    assert f"error[{code}]" in output.err and fact in output.err


def test_a_profile_in_a_precision_without_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "half.json"
    path.write_text(EXAMPLE_PROFILE.read_text().replace("float32", "float16"))
    assert main(["plan", "1f1b", *words_of({"--profile": str(path)})]) == 1
    assert "has times in float16, in which run.py does not train" in capsys.readouterr().err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_prints_and_writes_the_best_so_far(
    processes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int, total: int) -> None:
        assert done <= 5 < total
        if done == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "_progress", lambda stack: interrupt)
    path = tmp_path / "plan.yaml"
    assert main(["plan", *SCHEDULES, *words_of({"--processes": processes, "-o": str(path)})]) == 130
    output = capsys.readouterr()
    assert re.search(r"^interrupted: the best so far; \d+ configurations were not tried$", output.err, re.MULTILINE)
    assert "not tried" in output.out and parse_options([str(path)]).model == "gpt-nano"
    assert not multiprocessing.active_children()


def test_ctrl_c_before_anything_fits_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_progress", lambda stack: interrupt)
    given = {"--memory": "1000000", "--zero": "never", "--processes": "1"}
    assert main(["plan", *SCHEDULES, *words_of(given)]) == 130


def test_a_search_goes_on_after_one_of_its_processes_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is evaluated in this process: a broken pool neither hangs nor loses a configuration."""
    expected = search(problem())
    parent, whole = os.getpid(), Evaluator.outcome

    def outcome(self: Evaluator, c: Configuration) -> Outcome:
        if os.getpid() != parent and c.schedule == "chimera":
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, c)

    monkeypatch.setattr(Evaluator, "outcome", outcome)
    found = search(problem(), processes=2)
    assert (found.best, found.outcomes) == (expected.best, expected.outcomes)
