"""README and docs are correct: figures, commands, examples, error codes, wording. Some words are checked in the code too."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from chimerac.compiler import compile_text
from chimerac.compiler.command.main import main
from chimerac.compiler.command.usage import make_parser
from chimerac.interpreter.launch.options import parse_options
from tools import ROOT, figures
from tools.console import SLOW, chimerac
from tools.generated import EXAMPLES, PARTS

FOLDERS = [ROOT / part for part in PARTS]
CODE = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
# A fenced block. Its groups: the word after the opening fence, and the text.
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fences(kind: str) -> Iterator[tuple[Path, str]]:
    """Yield the file and the text of every fenced block of a kind, which is the word after the opening fence, such as sched."""
    for path in figures.DOCUMENTS:
        for kind_of_block, body in FENCE.findall(path.read_text(encoding="utf-8")):
            if kind_of_block == kind:
                yield path, body


def test_figures_are_up_to_date() -> None:
    assert not (found := figures.differences()), "\n\n".join([*found, "refresh with: make figures"])


SCHED = list(fences("sched"))


@pytest.mark.parametrize(("path", "text"), SCHED, ids=[f"{name(p)}-{k}" for k, (p, _) in enumerate(SCHED)])
def test_every_schedule_shown_compiles(path: Path, text: str) -> None:
    assert len(compile_text(text, name=name(path)).program)


def test_a_schedule_file_that_a_console_block_compiles_is_shown_before_the_block() -> None:
    """A block that shows a file follows `<!-- file: NAME -->`. Files of schedules/ need not be shown."""
    shown_or_used = re.compile(r"^<!-- file: (?P<shown>\S+) -->$|^\$ chimerac (?!schedules/)(?P<used>\S+\.sched)", re.MULTILINE)
    for path in figures.DOCUMENTS:
        shown = set()
        for found in shown_or_used.finditer(path.read_text(encoding="utf-8")):
            if found["shown"]:
                shown.add(found["shown"])
            else:
                assert found["used"] in shown, f"{name(path)}: {found[0]}"


def test_console_blocks_have_only_commands_whose_output_is_generated() -> None:
    for path, body in fences("console"):
        for line in re.findall(r"^\$ (.*)$", body, re.MULTILINE):
            assert line.split()[0] in ("chimerac", SLOW), f"{name(path)}: {line}"


def test_make_targets_in_the_documents_exist() -> None:
    """Those of console blocks, and those at the beginning of code in a line of text."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in figures.DOCUMENTS:
        named = re.findall(r"(?:^\$ |`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(named) <= targets, name(path)


def test_the_examples_of_the_help_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # A command ends where three spaces separate it from an explanation.
    commands = re.findall(r"^  (chimerac .*?)(?:   |$)", EXAMPLES, re.MULTILINE)
    assert len(commands) > 5
    Path("mine.sched").write_text("schedule mine ranks 2")  # the file that the example of `fmt` formats
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err


def test_commands_of_chimerac_and_run_py_in_shell_blocks_can_be_parsed() -> None:
    """They are parsed and not run: they train, or need files of the reader. Other commands are left out."""
    # By verb. The parser of a command line without a verb has the key "chimerac".
    parsers = {p.prog.split()[-1]: p for p in (make_parser(), *make_parser().verbs)}
    parsed = 0
    for path, body in fences("sh"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            try:
                if words[:1] == ["chimerac"]:
                    if words[1] in parsers:
                        parsers[words[1]].parse_args(words[2:])
                    else:
                        parsers["chimerac"].parse_args(words[1:])
                elif "interpreter/run.py" in words:
                    parse_options(words[words.index("interpreter/run.py") + 1 :])
                else:
                    continue
            except SystemExit:
                pytest.fail(f"{name(path)}: {line}")
            parsed += 1
    assert parsed > 10


def test_readme_links_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, *pages = figures.DOCUMENTS  # the first is README itself
    assert [p.name for p in pages if f"](docs/{p.name})" not in readme] == []


def test_python_blocks_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [file.read_text(encoding="utf-8") for file in (ROOT / "docs/examples").rglob("*.py")]
    for path, body in fences("python"):
        if body in examples:  # a test of tests/distributed runs the file with this text
            continue
        exec(compile(body, name(path), "exec"), {})


def test_links_within_the_project_lead_to_files_and_headings_that_exist() -> None:
    for path in figures.DOCUMENTS:
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", text):
            if target.startswith("http"):
                continue
            path_of_target = (path.parent / target).resolve() if target else path
            assert path_of_target.exists(), f"{name(path)}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path_of_target.read_text(encoding="utf-8")), re.MULTILINE)
                # As GitHub makes the anchor of a heading.
                anchors = {"#" + re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
                assert anchor in anchors, f"{name(path)}: {target}{anchor}"


def test_the_documented_error_codes_are_those_of_the_source() -> None:
    codes = {c for path in CODE for c in re.findall(r'"(E\d{3})"', path.read_text(encoding="utf-8"))}
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    for documented in (r"^\| \[(E\d{3})\]", r"^### (E\d{3}): "):  # the table, the sections
        assert re.findall(documented, text, re.MULTILINE) == sorted(codes)


def test_the_quoted_messages_are_of_different_passes() -> None:
    """The first digit of a code tells the pass: 1 the syntax, 2 names and sizes, 3 the order, 4 the verifier."""
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8").split("## All codes")[0]
    codes = re.findall(r"^error\[(E\d{3})\]", text, re.MULTILINE)
    assert len(codes) >= 6 and {code[:2] for code in codes} == {"E1", "E2", "E3", "E4"}


def test_options_in_the_documents_are_in_the_help() -> None:
    """The pattern finds the last option of each command, up to the first hyphen in its name."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in figures.DOCUMENTS)
    options = set(re.findall(r"chimerac(?: [^\n`|]*)? (--[a-z]+)", text))
    assert len(options) > 10
    assert options <= set(re.findall(r"--[a-z]+", chimerac(["--help"])))


def test_lines_are_at_most_120_characters() -> None:
    """Fenced blocks, tables, and lines that begin with a comment may be longer."""
    for path in figures.DOCUMENTS:
        for line in FENCE.sub("", path.read_text(encoding="utf-8")).splitlines():
            assert len(line) <= 120 or line.startswith(("|", "<!--")), f"{name(path)}: {line}"


# --- words --------------------------------------------------------------------------------------------------------------

# What must not occur: paths of a developer's host, and numbers of issues. They are split here, so that this file passes too.
FOREIGN = re.compile("|".join(("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", r"\bsha" + r"red/", r"\bissue\b" + r" \d")))
OTHERS = sorted(path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py"))
TEXTS = [*figures.DOCUMENTS, *figures.SCHEDULES, *CODE, *OTHERS, ROOT / "Makefile"]


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_no_text_names_the_development_environment(path: Path) -> None:
    assert not FOREIGN.search(path.read_text(encoding="utf-8"))


def test_one_word_per_idea_in_prose() -> None:
    """A micro-batch is never called a chunk, an iteration never a training, optimizer or time step."""
    for path in figures.DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bchunks?\b", text, re.IGNORECASE), name(path)
        assert not re.search(r"\b(training|optimizer|time) steps?\b", text, re.IGNORECASE), name(path)


def identifiers(path: Path) -> Iterator[str]:
    """Yield the names of a file's functions, classes, parameters and variables."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=n) | ast.ClassDef(name=n) | ast.arg(arg=n) | ast.Name(id=n, ctx=ast.Store()):
                yield n


@pytest.mark.parametrize("path", CODE, ids=name)
def test_one_word_per_idea_in_code(path: Path) -> None:
    """`step` alone is allowed, for a stride and for methods such as Pipeline.step.

    As a part of a longer name it would mean an iteration.
    """
    for found in identifiers(path):
        words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", found).lower())
        assert not {"chunk", "chunks", "steps", "microbatch", "microbatches"} & set(words), found
        assert "step" not in words or words == ["step"], found
