"""Hostile input is refused quickly, with findings that can be shown. The fuzzing that looks for such input is tested too."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, render
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler import compile_text, is_program, read_program, verify
from chimerac.compiler.format import format_schedule
from tests.helpers import program, replaced
from tests.proof import campaign, fuzz, fuzz_engine
from tests.proof.fuzz_engine import Runner, mutated, run_builtin
from tests.proof.fuzz_targets import TARGETS, Failure, Target, check_printable, codes_of, low_limits
from tests.proof.growth_inputs import colliding

PIPE = "ranks D stages D pipe p { stage s on rank s micro_batches N }"
TICKS = "order ticks { F(s, m) at s + 2*m B(s, m) at 2*D - 1 - s + 2*m }"
SMALL = f"schedule x param D = 2 param N = 2 {PIPE} {TICKS}"
LARGE = SMALL.replace("N = 2", "N = 40000")
STREAMS = program_to_text(program("1f1b", D=2, N=2))
JSON = program_to_json(program("1f1b", D=2, N=2))


def changed(text: str, old: str, new: str) -> str:
    """Return a text in which the first `old` is replaced by `new`; `old` must be in it."""
    return replaced(text, (old, new))


def listing(actions: str) -> str:
    """Return SMALL with a listing of these actions as its order."""
    return changed(SMALL, TICKS, f"order listing for rank r {{ {actions} }}")


def before(part: str, more: str) -> str:
    """Return SMALL with more text before a part of it."""
    return changed(SMALL, part, f"{more} {part}")


def greedy(more: str) -> str:
    """Return SMALL with a greedy order that has these lines too."""
    return changed(SMALL, TICKS, f"order greedy {{ prefer B, F {more} }}")


def family(last: int) -> str:
    """Return SMALL with the pipes p[0] to p[last]."""
    return changed(SMALL, "pipe p {", f"pipe p[i in 0 .. {last}] {{")


def with_large_n(text: str) -> str:
    """Return a text with 400,000 micro-batches instead of two."""
    return changed(text, "N = 2", "N = 400000")


# Texts of schedules with which a compiler without limits could take minutes or gigabytes, end with a traceback, or send
# commands to the terminal. Each with the code that all of its findings have.
SCHEDULES = {
    "parentheses": ("schedule x let y = " + "(" * 200_000 + "1" + ")" * 200_000, "E104"),
    "signs": ("schedule x let y = " + "- " * 9_000 + "1", "E104"),
    "a sum": ("schedule x let y = " + "1 + " * 240_000 + "1", "E105"),
    "comments": ("schedule x\n" + "#\n" * 400_000, "E105"),
    "open blocks": (listing("repeat 2 { " * 20_000), "E104"),
    "a long name": (changed(SMALL, "schedule x", "schedule x" + "y" * 70_000), "E105"),
    "a long name of a pipe": (SMALL.replace("pipe p", "pipe " + "p" * 65), "E105"),
    "names": ("schedule x " + "".join(f"let y{k} = {k} " for k in range(999)), "E105"),
    "syntax errors in a long text": (SMALL + " let y = = 1" * 15_000, "E102"),
    "unknown names": (before(PIPE, "".join(f"require z{k} == 1 " for k in range(2000))), "E201"),
    "unmet requirements": (before(PIPE, "".join(f"require N == {k + 9} " for k in range(2000))), "E210"),
    "a limit of many counts": (greedy(f"limit F {'- B ' * 3000} <= 4"), "E202"),
    "many limits": (greedy("limit F - B <= 4 " * 500), "E211"),
    "many keys": (greedy(f"then {'smaller s, ' * 999} smaller m"), "E211"),
    "pipes x stages": (family(999).replace("D = 2", "D = 4096"), "E211"),
    "pipes": (family(65535), "E211"),
    "micro-batches of many pipes": (family(999).replace("N = 2", "N = 500000"), "E211"),
    "pipes x clauses": (changed(family(999), "{", "{ " + "stage s in 1 .. 0 on rank s " * 99), "E211"),
    "pipes x rules": (changed(family(99), "ticks {", "ticks { " + "F(s, m) at m " * 999), "E211"),
    "groups of groups": (with_large_n(SMALL).replace("m) at s", "m = 0 .. g) at s"), "E211"),
    "rules that repeat": (SMALL.replace("ticks {", "ticks { " + "F(s, m) at m " * 999), "E302"),
    "the least of many values": (LARGE.replace("at s", f"at min({'m, ' * 999} m) + s"), "E211"),
    "differences of many values": (LARGE.replace("at s", f"at min({'1 - m, ' * 999} m) + s"), "E211"),
    "signs of many values": (LARGE.replace("at s", f"at min({'- - - - - - m, ' * 499} m) + s"), "E211"),
    "lets where conditions hold": (
        LARGE.replace(
            "ticks {",
            "ticks { "
            + "".join(f"let y{k} = m " for k in range(250))
            + f"F(s, m) when m < 9 at {' + '.join(f'y{k}' for k in range(250))} " * 99,
        ),
        "E211",
    ),
    "unknown names in lets": (
        SMALL.replace("ticks {", f"ticks {{ let y = {' + '.join(f'z{k}' for k in range(2999))} {'F(s, m) at y ' * 99}"),
        "E201",
    ),
    "ranges that leave stages out": (
        changed(SMALL, "stage s on rank s", "".join(f"stage s in {k} .. {k} on rank 0 " for k in range(3000))).replace(
            "stages D", "stages 4000"
        ),
        "E221",
    ),
    "stages that are placed again": (
        changed(SMALL, "stage s on rank s", "stage s on rank 0 " * 9000).replace("stages D", "stages 60000"),
        "E222",
    ),
    "a formula of many terms": (with_large_n(SMALL).replace("at s", "at s " + "+ m - m " * 999), "E211"),
    "loops that do nothing": (listing("repeat 1000 { repeat 1000 { repeat 1000 { } } }"), "E306"),
    "loops over names": (listing("".join(f"let y{k} = 1 " for k in range(999)) + "repeat 99999 { repeat 2 { } }"), "E211"),
    "costs that no integer holds": (
        with_large_n(before("order", f"cost F = {2**40}, B = {2**40}, hop = {2**40} ")),
        "E211",
    ),
    "no micro-batches": (SMALL.replace("N = 2", "N = 0"), "E211"),
    "a byte order mark within": (SMALL.replace("param", "\ufeffparam"), "E101"),
    "a lone surrogate": (SMALL.replace("param", "\udc80"), "E101"),
    "a command to the terminal": (SMALL.replace("param", "\x1b]0;owned\x07"), "E101"),
    "NUL": ("\0" * 100_000, "E101"),
}

# Lists of micro-batches, as texts such as "4,7". As tuples of Python all of them have the same hash.
IDS_OF_ONE_HASH = [",".join(map(str, ids)) for ids in colliding(2**13)]
JSON_OF_ONE_HASH = [f'{{"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": [{ids}]}}' for ids in IDS_OF_ONE_HASH]
TEXT_OF_ONE_HASH = [f"  FWD main s0 m{ids}" for ids in IDS_OF_ONE_HASH]
TIED_SETS_TIMES_PIPES = changed(
    changed(STREAMS, "\nrank 0:", "".join(f"pipe q{k} on 0 1 micro_batches\n" for k in range(4000)) + "\nrank 0:"),
    "\nrank 0:",
    "".join(f"tied t{k} stages 0 1\n" for k in range(20_000)) + "\nrank 0:",
)

# The same for programs. Each with the codes that its findings may have.
FILES = {
    "a field twice": (changed(JSON, '"width": 1', '"width": 1, "width": 2'), "E603"),
    "a field twice, spelled differently": (changed(JSON, '"width": 1', '"width": 1, "\\u0077idth": 2'), "E603"),
    "a field twice in an instruction": (changed(JSON, '"pipe": 0', '"pipe": 0, "pipe": 0'), "E603"),
    "fields": (changed(JSON, '"width": 1', ", ".join(f'"f{k}": 1' for k in range(200_000))), "E603"),
    "a field with a command to the terminal": (changed(JSON, '"width"', '"\\u001b[2J"'), "E603"),
    "a field with a direction of writing": (changed(JSON, '"width"', '"\\u202e\\u061c"'), "E603"),
    "brackets": ("[" * 300_000, "E601"),
    "objects": ('{"a":' * 300_000, "E601"),
    "objects in a list": (changed(JSON, '"streams": [', '"streams": [[' + "{}," * 300_000 + "{}],"), "E603"),
    "wrong ids": (changed(JSON, '"micro_batches": [0]', '"micro_batches": [' + "true," * 300_000 + "0]"), "E604"),
    "digits": (changed(JSON, '"width": 1', '"width": ' + "1" * 100_000), "E601 E603"),
    "not a number": (changed(JSON, '"width": 1', '"width": NaN'), "E601 E603"),
    "minus infinity": (changed(JSON, '"width": 1', '"width": -Infinity'), "E601 E603"),
    "a lone surrogate": (changed(JSON, '"schedule": "', '"schedule": "\\ud800'), "E601 E603"),
    "a long name": (changed(JSON, '"schedule": "', '"schedule": "' + "x" * 2_000_000), "E603"),
    "a control character": (changed(JSON, '"schedule": "', '"schedule": "\x1b'), "E601"),
    "NUL": ("{" + "\0" * 1000, "E601"),
    "replicas without streams": (changed(JSON, '"width": 1', '"width": 2147483647'), "E604"),
    "stages without ranks": (changed(JSON, '"stages": 2', '"stages": 2147483647'), "E604"),
    "costs that no integer holds": (changed(JSON, '"hop": 0', f'"hop": {2**63}'), "E603"),
    "a size that is a word": (changed(STREAMS, "stages=2", "stages=two"), "E603"),
    "a size that is another field": (changed(STREAMS, "sizes width=1", "sizes streams=5 width=1"), "E605"),
    "a size twice": (changed(STREAMS, "width=1", "width=1 width=2"), "E605"),
    "a line twice": (changed(STREAMS, "costs", "schedule again\ncosts"), "E605"),
    "digits in a line": (changed(STREAMS, "width=1", "width=" + "1" * 5000), "E605"),
    "digits in an instruction": (changed(STREAMS, "FWD main s0", "FWD main s" + "1" * 5000), "E605"),
    "digits of another script": (changed(STREAMS, "width=1", "width=１"), "E603"),
    "pipes": (changed(STREAMS, "rank 0:", "pipe q on 0 1 micro_batches\n" * 5000 + "rank 0:"), "E604"),
    "stray quotes": (changed(JSON, '"width": 1', '"width": 1, "width": 2' + '\\" "' * 1_000_000), "E601 E603"),
    "quotes that are escaped": (changed(JSON, '"width": 1', '"width": "' + '\\"' * 2_000_000), "E601"),
    "lists of one hash in JSON": (changed(JSON, "[\n", "[\n [" + ", ".join(JSON_OF_ONE_HASH) + "],\n"), "E401"),
    "lists of one hash in the text form": (changed(STREAMS, "rank 0:", "rank 0:\n" + ";".join(TEXT_OF_ONE_HASH)), "E402"),
    "findings": (STREAMS + "  ALLREDUCE s1 over 0;" * 200_000 + "ALLREDUCE s1 over 0", "E403 E450 E604"),
    "findings about the header": (
        changed(STREAMS, "  FWD main s0 m0", "  FWD main s0 m9999999999;" * 200_000 + "FWD main s0 m0"),
        "E603",
    ),
    "tied sets times pipes": (TIED_SETS_TIMES_PIPES, "E604"),
    "a field that directs the terminal": (changed(STREAMS, "costs", "\u061c\x9b costs"), "E605"),
}


def codes(caught: ChimeraError) -> set[str]:
    """Check that findings have no control characters; return their codes."""
    check_printable(render(caught.diagnostics))
    return {d.code for d in caught.diagnostics}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", SCHEDULES)
def test_hostile_schedules_are_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORK", 2**20)  # so that it is reached quickly
    text, expected = SCHEDULES[what]
    with pytest.raises(ChimeraError) as caught:
        compile_text(text)
    assert codes(caught.value) == {expected}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", FILES)
def test_hostile_programs_are_refused(what: str) -> None:
    text, expected = FILES[what]
    assert is_program(Source("a.json", text))
    with pytest.raises(ChimeraError) as caught:
        verify(read_program(Source("a.json", text)))
    assert codes(caught.value) <= set(expected.split())


def test_a_duplicate_field_is_shown_at_its_place() -> None:
    with pytest.raises(ChimeraError) as caught:
        read_program(Source("a.json", FILES["a field twice"][0]))
    (d,) = caught.value.diagnostics
    assert "'width'" in d.message and d.span and d.span.source.line(d.span.line)[d.span.column - 1 :].startswith('"width": 2')


def test_long_chains_of_operators_compile_and_are_formatted() -> None:
    for chain in ("+ m " * 2000 + "- 2000*m", "// 1 " * 2000, "* 1 " * 2000):
        text = changed(SMALL, "at s + 2*m", f"at s + 2*m {chain}")
        assert compile_text(text).program == compile_text(SMALL).program
        assert len(format_schedule(Source("a.sched", text))) > 4000


def test_a_long_text_that_lists_every_task_is_accepted() -> None:
    """Such texts are generated, for example by a search."""
    ranks, micro_batches = 16, 250
    blocks = (  # three spaces before p make the text longer
        f"if r == {r} {{ {' '.join(f'{kind}   p({r}, {m})' for m in range(micro_batches))} }}"
        for kind in ("F", "B")
        for r in range(ranks)
    )
    text = listing(" ".join(blocks)).replace("D = 2", f"D = {ranks}").replace("N = 2", f"N = {micro_batches}")
    assert len(text) > 100_000
    compiled = compile_text(text).program
    assert compiled.table.is_task.sum() == 2 * ranks * micro_batches


def test_control_characters_are_shown_escaped() -> None:
    text = "let \x1b[2J = \u202e1"
    shown = render([Diagnostic("E1", "\x07\x9b", Span(Source("\x1bname", text), 1, 5, 1, 9), "\r", ("a\nb\x08",), "\udc80")])
    check_printable(shown)
    lines = shown.splitlines()
    assert lines[3] == r"1 | let \x1b[2J = \u202e1" and lines[4] == r"  |     ^^^^^^^ \r"


# --- fuzzing ------------------------------------------------------------------------------------------------------------

# Executions of a short fuzzing run, by target.
EXECUTIONS = {
    "schedule text": 40,
    "schedule": 40,
    "program json": 60,
    "program text": 100,
    "timeline": 100,
    "torch csv": 60,
    "model": 150,
    "command": 40,
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_fuzzing_run_has_no_failures(target: str, tmp_path: Path) -> None:
    """The inputs are the same every time; `make proof` draws others."""
    runner = Runner(target, tmp_path)
    run_builtin(runner, seed=7, seconds=100, executions=EXECUTIONS[target])
    assert runner.log.executions == EXECUTIONS[target] and not runner.log.failures


@pytest.mark.parametrize("target", TARGETS)
def test_targets_accept_some_of_their_seeds(target: str) -> None:
    """Of some seeds at least one is accepted, and not all have the same answer.

    If a target refused all of them, the fuzzing would not get past the first lines of the target.
    """
    seeds = TARGETS[target].seeds()
    answers = set()
    for data in (*seeds[:3], *seeds[-5:]):
        try:
            answers.add(TARGETS[target].run(data))
        except ChimeraError as error:
            answers.add(codes_of(error))
    refused = ("E", "status 1", "status 2")  # how the answer for a refused input begins
    assert len(answers) > 1 and any(not x.startswith(refused) for x in answers)


def failing_target(data: bytes) -> str:
    if b"fail" in data:
        raise Failure("it failed")
    if b"hang" in data:
        time.sleep(60)
    if b"raise" in data:
        raise KeyError("traceback")
    return "fine"


def test_the_engine_records_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "broken", Target(failing_target, lambda: [b"fail over"], ("hang",)))
    monkeypatch.setattr(fuzz_engine, "HANG_S", 1)
    runner = Runner("broken", tmp_path)
    for data in (b"fine", b"fail over there", b"fail", b"raise", b"hang"):
        runner(data)
    assert sorted(what.split()[0] for what in runner.log.failures.values()) == ["Failure", "KeyError", "aborted"]
    saved = {path.read_bytes() for path in tmp_path.glob("fail-*")}
    assert saved == {b"fail", b"raise", b"hang"}  # the shortest input for each failure
    assert signal.alarm(0) == 0  # the engine leaves no alarm behind


@pytest.mark.parametrize(
    ("statement", "message"), [("os.kill(os.getpid(), 9)", "exited with code -9"), ("sys.exit(3)", "exited with code 3")]
)
def test_a_process_that_dies_is_a_failure_with_its_input(
    statement: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from tests.proof.fuzz_engine import HEAD
Path(sys.argv[1], "running").write_bytes(HEAD.pack(time.time(), len(b"bad")) + b"bad")
{statement}
"""
    monkeypatch.setattr(fuzz, "command", lambda target, seconds, seed, folder: [sys.executable, "-c", code, str(folder)])
    result = fuzz.Result("model")
    fuzz.Fuzzing(seed=1, folder=tmp_path).work(result, tmp_path, seconds=5, number=0)
    ((failure, path),) = result.failures.values()
    assert message in failure and path.read_bytes() == b"bad"
    report = fuzz.report([result], seconds=60, seed=1)
    assert "| model | 0 | 1 |" in report and message in report


ATHERIS = """
import sys
from contextlib import contextmanager

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages:
            print("instrumented", name)

@contextmanager
def instrument_imports(include, enable_loader_override):
    finder = Finder()
    finder.packages = {name.split(".")[0] for name in include}
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)

def Setup(arguments, run_one, custom_mutator):
    run_one(b"{}")

def Fuzz():
    pass
"""


def test_atheris_instruments_all_modules_of_chimerac_that_a_worker_loads(tmp_path: Path) -> None:
    """ATHERIS stands in for the package atheris. It chooses modules as atheris does: by the first component of their names."""
    (tmp_path / "atheris.py").write_text(ATHERIS)
    code = (
        "import sys; from pathlib import Path; from tests.proof.fuzz_engine import run_worker\n"
        "run_worker('model', 'atheris', seconds=1, seed=1, folder=Path(sys.argv[1]))\n"
        "print('loaded', *(name for name in sys.modules if name.startswith('chimerac')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    printed = subprocess.run(command, cwd=fuzz.ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    *instrumented, loaded = printed.splitlines()
    assert set(loaded.split()[1:]) == {line.split()[1] for line in instrumented}


def test_an_interrupted_run_records_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzz.Fuzzing, "run", interrupted)
    monkeypatch.setattr(campaign, "record", lambda *_: pytest.fail("recorded"))
    assert campaign.campaign("fuzz", "target", ["model"], 60, fuzz.fuzz, fuzz.report, ["--minutes", "1"]) == 130
    assert "nothing is recorded" in capsys.readouterr().err


def test_low_limits_are_restored() -> None:
    before = {k: v for k, v in vars(limits).items() if k.isupper()}
    with low_limits():
        assert before["TASKS"] > limits.TASKS
    assert before == {k: v for k, v in vars(limits).items() if k.isupper()}


def test_most_mutations_differ_and_all_are_short() -> None:
    rng = random.Random(5)
    inputs = {mutated(SMALL.encode(), [b"let"], b"other words", rng) for _ in range(100)}
    assert len(inputs) > 80 and all(len(x) <= fuzz_engine.MAX_BYTES for x in inputs)
