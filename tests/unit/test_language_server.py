"""The language server: its parts, and the server itself, driven by pygls's client over stdin and stdout, and by Neovim."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.header import LIMITS
from chimerac.compiler.format import format_schedule
from chimerac.compiler.language_server import meanings
from chimerac.compiler.language_server.completion import proposals
from chimerac.compiler.language_server.fixes import edits_of
from chimerac.compiler.language_server.names import STATEMENTS, Names
from chimerac.compiler.language_server.process import Worker
from chimerac.compiler.language_server.server import Document, make_server
from chimerac.compiler.language_server.text import Text
from chimerac.compiler.language_server.worker import check
from chimerac.compiler.library import find, names
from chimerac.compiler.resolve.expressions import FUNCTIONS
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.kinds import KINDS
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.walk import subexpressions
from tests.helpers import replaced
from tools import ROOT

TEXT = """\
# two pipes \U0001f600
schedule mine
param D = 4   # \U0001f600 ranks
param N = D
let unit = D // 2
ranks D
stages D
pipe down[i in 0 .. 0] { stage s on rank s   micro_batches N // 2 }
pipe up                { stage s on rank D - 1 - s   micro_batches N // 2 }
order ticks {
    let start = 2*D*(m // unit) + 2*(m % unit)
    F(s, m) at start + s
    B down[k](s, m) at start + 2*D - 1 - s + k
    B up(s, m) at start + 2*D - 1 - s
}
"""


def after(text: str, words: str) -> int:
    """Return the offset after these words of a text."""
    assert text.count(words) == 1, words
    return text.index(words) + len(words)


# --- positions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 6), ("utf-16", 4), ("utf-32", 3)])
def test_positions_are_counted_in_code_units(encoding: str, column: int) -> None:
    text = Text.of("a\n# \U0001f600b\n", encoding)
    assert text.position(text.text.index("b")) == (1, column)
    for offset in range(len(text.text) + 1):
        assert text.offset(*text.position(offset)) == offset
    assert text.offset(0, 99) == 1, "a column past the end of a line means the end of the line"
    assert text.offset(99, 0) == len(text.text), "a line past the last one means the end of the text"


def test_line_ends_and_a_byte_order_mark_are_replaced_by_as_many_characters() -> None:
    text = Text.of("\ufeffschedule a\r\nranks 2\rstages 2\n")
    assert text.text == " schedule a \nranks 2\nstages 2\n"
    assert text.position(text.text.index("stages")) == (2, 0)


# --- names ---------------------------------------------------------------------------------------------------------------


def expressions(node: Any) -> Iterator[n.Expr]:
    """Yield the outermost expressions of a node of the tree, or of a tuple of nodes."""
    if isinstance(node, n.Expr):
        yield node
    elif isinstance(node, tuple):
        for child in node:
            yield from expressions(child)
    elif isinstance(node, n.Node):
        for name in node.__dataclass_fields__:
            if name != "span":
                yield from expressions(getattr(node, name))


@pytest.mark.parametrize("name", names())
def test_every_name_in_the_expressions_of_a_schedule_has_its_definition(name: str) -> None:
    """s, m, p and r may have none: a greedy order predefines them, and a `let` of a ticks order uses those of its rules."""
    source = find(name)
    schedule, defined = parse(source), Names(Text(source.text))
    checked = 0
    for statement in schedule.statements:
        for e in expressions(statement):
            for part in subexpressions(e):
                if isinstance(part, n.Name) and part.name not in KINDS:
                    offset = Text(source.text).at(part.span.line, part.span.column)
                    definition = defined.of(part.name, offset)
                    predefined = isinstance(statement, n.Greedy | n.Ticks) and part.name in "smpr"
                    assert definition or predefined, part
                    assert definition is None or definition.first <= offset <= definition.last or predefined, part
                    checked += 1
    assert checked > 5


def test_a_name_means_the_definition_that_holds_where_it_is() -> None:
    defined = Names(Text(TEXT))
    # The name is the last word of `words`.
    for words, what, statement in [
        ("{ stage s on rank s", "stage", "stage s on rank s"),
        ("at start + s", "stage", "F(s, m) at start + s"),
        ("- s + k", "index of the pipes", "B down[k](s, m) at start + 2*D - 1 - s + k"),
        ("F(s, m) at start", "value", "let start = 2*D*(m // unit) + 2*(m % unit)"),
        ("2*D*(m // unit", "value", "let unit = D // 2"),
        ("ranks D", "parameter", "param D = 4"),
        ("B up", "pipe", "pipe up"),
        ("B down", "pipe", "pipe down[i in 0 .. 0]"),
    ]:
        offset = after(TEXT, words)
        word = Text(TEXT).word_at(offset)
        assert word is not None
        definition = defined.of(word.text, offset)
        assert definition is not None and (definition.what, definition.statement) == (what, statement), words
    assert defined.of("s", after(TEXT, "at start + s")) != defined.of("s", after(TEXT, "{ stage s on rank s"))


def test_every_word_of_the_language_has_a_meaning() -> None:
    assert set(meanings.KEYWORDS) == keywords() and list(meanings.TASK_KINDS) == list(KINDS)
    assert set(meanings.LIMITS) == set(LIMITS) and set(FUNCTIONS) <= set(meanings.OTHERS)


# --- completion ------------------------------------------------------------------------------------------------------------


def proposed(text: str) -> set[str]:
    """Return the words that are proposed at the end of a text."""
    return {p.word for p in proposals(Text(text), len(text))}


HEAD = "schedule mine\nparam D = 4\nlet k = D\nranks D\nstages D\n"
PIPE = HEAD + "pipe main { stage s on rank s   micro_batches k }\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", {"schedule"}),
        ("schedule ", set()),
        ("schedule mine\npar", {*STATEMENTS}),
        (HEAD + "pipe main { ", {"stage"}),
        (HEAD + "pipe main { stage s on ", {"rank"}),
        (HEAD + "pipe main { stage s on rank ", {"D", "k", "s", "min", "max", "if", "not"}),
        (PIPE + "order ", {"ticks", "greedy", "listing"}),
        (PIPE + "order ticks { F ", {"main"}),
        (PIPE + "order ticks { F(", {"s"}),
        (PIPE + "order ticks { F(s, m) ", {"at", "when"}),
        (PIPE + "order ticks { F(s, m) at ", {"D", "k", "s", "m", "min", "max", "if", "not"}),
        (PIPE + "order greedy { prefer ", {*KINDS}),
        (PIPE + "sync ", {"at", "eager"}),
        (PIPE + "limit ", set(LIMITS)),
        (PIPE + "# a comment ", set()),
    ],
)
def test_the_proposals_are_the_words_that_may_be_written_at_the_end_of_the_text(text: str, words: set[str]) -> None:
    assert proposed(text) == words


def test_names_are_proposed_after_a_syntax_error_too() -> None:
    assert {"D", "k", "ranks"} <= proposed(HEAD + "pipe main [ ]\nrequire ")


# --- quick fixes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),  # the comments say which words of the help describe the edit
    [
        ("micro_batches N // 2 }\npipe", "microbatches N // 2 }\npipe"),  # did you mean
        ("+ 2*D - 1 - s\n}", "+ 2D - 1 - s\n}"),  # write ... instead of ...
        ("F(s, m) at start + s\n", "F(s, m) at strat + s\n"),  # did you mean
        ("+ s\n    B down", "+ s }\n    B down"),  # remove
    ],
)
def test_the_edit_that_the_help_describes_corrects_the_text(old: str, new: str) -> None:
    assert not check("mine.sched", TEXT)["findings"]
    wrong = TEXT.replace(old, new, 1)
    assert wrong != TEXT
    (finding, *_) = check("mine.sched", wrong)["findings"]
    edits = edits_of(Text(wrong), finding)
    assert edits, finding
    corrected = wrong
    for start, end, written in reversed(edits):
        corrected = corrected[:start] + written + corrected[end:]
    assert not check("mine.sched", corrected)["findings"]


def test_an_edit_that_does_not_fit_the_text_is_not_offered() -> None:
    finding = {"start": 0, "end": 8, "help": "mine.sched:2:1: write 'x' instead of 'y'"}
    assert edits_of(Text(TEXT), finding) == []


# --- the server ------------------------------------------------------------------------------------------------------------


class Editor:
    """A client of a server over stdin and stdout."""

    def __init__(self) -> None:
        self.client = LanguageClient("test", "1")
        self.published: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()
        self.count = 0

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(found: lsp.PublishDiagnosticsParams) -> None:
            self.published.put_nowait(found)

    async def start(self) -> lsp.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "chimerac", "lsp", "--stdio")
        started = await self.client.initialize_async(lsp.InitializeParams(capabilities=lsp.ClientCapabilities()))
        self.client.initialized(lsp.InitializedParams())
        return started

    async def open(self, text: str) -> str:
        """Open a new document, and return its URI."""
        self.count += 1
        uri = f"file:///somewhere/mine{self.count}.sched"
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "sched", 1, text)))
        return uri

    def change(self, uri: str, version: int, text: str) -> None:
        document = lsp.VersionedTextDocumentIdentifier(version, uri)
        self.client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(document, [lsp.TextDocumentContentChangeWholeDocument(text)])
        )

    async def findings(self, uri: str, version: int = 1) -> list[lsp.Diagnostic]:
        """Wait for the findings of a version of a document, and return them."""
        while True:
            found = await self.published.get()
            if (found.uri, found.version) == (uri, version):
                return list(found.diagnostics)


Run = Callable[[Callable[[Editor], Coroutine[Any, Any, Any]]], Any]


@pytest.fixture(scope="module")
def with_editor() -> Iterator[Run]:
    """Yield a function that runs a coroutine with an editor. All tests that use it share one editor and one server."""
    with asyncio.Runner() as runner:
        editor = Editor()
        started = runner.run(editor.start())
        assert started.server_info is not None and started.server_info.name == "chimerac"
        yield lambda play: runner.run(play(editor))
        runner.run(editor.client.shutdown_async(None))
        editor.client.exit(None)
        runner.run(editor.client.stop())


def place(uri: str, text: str, offset: int) -> tuple[lsp.TextDocumentIdentifier, lsp.Position]:
    """Return the arguments of a request about an offset in a document."""
    return lsp.TextDocumentIdentifier(uri), lsp.Position(*Text(text).position(offset))


def test_findings_have_their_places_and_their_notes(with_editor: Run) -> None:
    added = "let one = 1   let one = unti  # \U0001f600"
    wrong = TEXT.replace("order ticks {", f"{added}\norder ticks {{", 1).replace("\n", "\r\n")
    line = wrong.split("\r\n").index(added)

    async def play(editor: Editor) -> None:
        uri = await editor.open(wrong)
        unknown, twice = await editor.findings(uri)
        first, second = (lsp.Position(line, column) for column in (added.index("one"), added.rindex("one")))
        assert twice.range == lsp.Range(second, lsp.Position(line, second.character + 3))
        assert (twice.code, twice.severity, twice.source) == ("E207", lsp.DiagnosticSeverity.Error, "chimerac")
        note, help = twice.related_information or ()
        assert note.location.range.start == first and help.message == "help: choose another name"
        assert unknown.message == "unknown name 'unti'\nhelp: did you mean 'unit'?"
        editor.change(uri, 2, TEXT)
        assert await editor.findings(uri, 2) == []

    with_editor(play)


def test_columns_beside_emoji_are_counted_in_utf_16_code_units(with_editor: Run) -> None:
    async def play(editor: Editor) -> None:
        (found,) = await editor.findings(await editor.open('schedule a ranks 2 "\U0001f600" stages'))
        assert found.range.start == lsp.Position(0, len("schedule a ranks 2 "))
        text = "schedule a\nranks 2 # \U0001f600\n# \U0001f600\U0001f600 \nstages \U0001f600\U0001f600"
        (found, *_) = await editor.findings(await editor.open(text))
        assert found.range == lsp.Range(lsp.Position(3, 7), lsp.Position(3, 9))

    with_editor(play)


def test_the_server_answers_hover_definition_completion_and_formatting(with_editor: Run) -> None:
    text = TEXT.replace("ranks D", "ranks   D", 1)

    async def hovered(editor: Editor, uri: str, words: str) -> str:
        found = await editor.client.text_document_hover_async(lsp.HoverParams(*place(uri, text, after(text, words))))
        assert found is not None and isinstance(found.contents, lsp.MarkupContent)
        return found.contents.value

    async def play(editor: Editor) -> None:
        uri = await editor.open(text)
        assert await editor.findings(uri) == []
        assert "the number of stages that the model is cut into" in await hovered(editor, uri, "\nstages")
        assert await hovered(editor, uri, "let unit") == "**unit** value, 2\n\n```sched\nlet unit = D // 2\n```"
        assert "up: stages on ranks 3 2 1 0; micro-batches 2 3" in await hovered(editor, uri, "pipe up")
        assert "makespan 16" in await hovered(editor, uri, "schedule mine")
        at = place(uri, text, after(text, "    B up(s, m) at start"))
        found = await editor.client.text_document_definition_async(lsp.DefinitionParams(*at))
        assert isinstance(found, lsp.Location) and found.range.start == lsp.Position(
            *Text(text).position(after(text, "    let "))
        )
        at = place(uri, text, after(text, "    B up(s, m) at "))
        items = await editor.client.text_document_completion_async(lsp.CompletionParams(*at))
        assert isinstance(items, list) and {"D", "unit", "start", "s", "m", "min"} <= {item.label for item in items}
        options = lsp.FormattingOptions(tab_size=4, insert_spaces=True)
        edits = await editor.client.text_document_formatting_async(lsp.DocumentFormattingParams(at[0], options))
        assert edits is not None and [e.new_text for e in edits] == [format_schedule(Source("mine.sched", text))]
        assert edits[0].range == lsp.Range(lsp.Position(0, 0), lsp.Position(text.count("\n"), 0))

    with_editor(play)


def test_an_error_is_explained_and_has_a_quick_fix(with_editor: Run) -> None:
    text = TEXT.replace("    B up(", "    B upp(", 1)

    async def play(editor: Editor) -> None:
        uri = await editor.open(text)
        (finding,) = await editor.findings(uri)
        hover = await editor.client.text_document_hover_async(lsp.HoverParams(*place(uri, text, after(text, "B upp"))))
        assert hover is not None and isinstance(hover.contents, lsp.MarkupContent)
        assert f"**{finding.code}** " in hover.contents.value
        document = lsp.TextDocumentIdentifier(uri)
        context = lsp.CodeActionContext([finding])
        actions = await editor.client.text_document_code_action_async(lsp.CodeActionParams(document, finding.range, context))
        assert actions and isinstance(actions[0], lsp.CodeAction) and actions[0].edit and actions[0].edit.changes
        (edit,) = actions[0].edit.changes[uri]
        assert isinstance(edit, lsp.TextEdit) and edit.new_text == "up" and edit.range == finding.range

    with_editor(play)


def test_a_newer_text_does_not_wait_for_an_older_one(with_editor: Run) -> None:
    """The first text takes much longer to compile than the others. It is stopped, so nothing about it is published."""
    # The list scheduler needs many seconds for so many tasks.
    slow = replaced(find("chimera_zb").text, ("param D = 4", "param D = 64"), ("param N = D", "param N = 6400"))

    async def play(editor: Editor) -> None:
        uri = await editor.open(slow)
        await asyncio.sleep(0.5)
        for version in range(2, 12):
            editor.change(uri, version, "schedule a" * version)
        versions: list[int | None] = []
        while 11 not in versions:
            found = await editor.published.get()
            versions += [found.version] if found.uri == uri else []
        assert 1 not in versions and found.diagnostics
        document = lsp.TextDocumentIdentifier(uri)
        edits = await editor.client.text_document_formatting_async(
            lsp.DocumentFormattingParams(document, lsp.FormattingOptions(tab_size=4, insert_spaces=True))
        )
        assert edits is None  # the newest text has syntax errors

    with_editor(play)


def test_a_compilation_that_takes_too_long_is_stopped() -> None:
    async def play() -> None:
        worker = Worker(seconds=0.001)
        assert await worker.ask("check", "a.sched", TEXT) == {"stopped": "it takes longer than 0.001 s"}
        worker.seconds = 60.0
        assert (await worker.ask("check", "a.sched", TEXT))["findings"] == []
        await worker.end()

    asyncio.run(play())


def test_a_text_that_was_not_verified_has_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    published: list[lsp.PublishDiagnosticsParams] = []
    monkeypatch.setattr(server, "text_document_publish_diagnostics", published.append)
    monkeypatch.setattr(server.compiling, "seconds", 0.001)
    text = Text.of(TEXT)

    async def play() -> None:
        document = server.documents["file:///mine.sched"] = Document(text, version=7)
        await server.check("file:///mine.sched", document)

    asyncio.run(play())
    (found,) = published[0].diagnostics
    assert (published[0].version, found.severity) == (7, lsp.DiagnosticSeverity.Warning)
    assert found.message == "not verified: the compilation was stopped, because it takes longer than 0.001 s"
    assert found.range.start == lsp.Position(1, len("schedule "))


# --- Neovim --------------------------------------------------------------------------------------------------------------

# Lua that Neovim runs with WRONG open: it asks the server, applies the quick fix, formats, and prints the answers.
ASK = """
local buffer = vim.api.nvim_get_current_buf()
local function wait(f) return vim.wait(60000, f, 20) end
local function lines() return vim.api.nvim_buf_get_lines(buffer, 0, -1, false) end
local function ask(method, line, character)
  local params = { textDocument = { uri = vim.uri_from_bufnr(buffer) }, position = { line = line, character = character } }
  return vim.tbl_values(vim.lsp.buf_request_sync(buffer, method, params, 60000))[1].result
end
local answers = {}
wait(function() return #vim.diagnostic.get(buffer) > 0 end)
answers.findings = vim.tbl_map(function(d) return { d.code, d.lnum, d.col } end, vim.diagnostic.get(buffer))
answers.hover = ask("textDocument/hover", 3, 2).contents.value
answers.definition = ask("textDocument/definition", 3, 7).range.start
answers.completion = vim.tbl_map(function(item) return item.label end, ask("textDocument/completion", 4, 0))
vim.api.nvim_win_set_cursor(0, { 5, 28 })
vim.lsp.buf.code_action({ apply = true })
wait(function() return lines()[5]:find("%", 1, true) ~= nil end)
answers.fixed = lines()[5]
vim.lsp.buf.format({ timeout_ms = 60000 })
answers.formatted = lines()
io.stdout:write("answers: " .. vim.json.encode(answers) .. "\\n")
"""
WRONG = """\
schedule mine
param D = 4
ranks   D
stages D + 1
pipe main { stage s on rank s   micro_batches 4 }
order ticks { F(s, m) at s + m   B(s, m) at 2*D - s + m }
"""


def neovim() -> tuple[int, int]:
    """Return the version of the installed Neovim, (0, 0) if there is none."""
    if shutil.which("nvim") is None:
        return 0, 0
    shown = subprocess.run(["nvim", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"NVIM v(\d+)\.(\d+)", shown)
    assert found is not None, shown
    return int(found[1]), int(found[2])


@pytest.mark.parametrize(("form", "since"), [(0, (0, 11)), (1, (0, 8))])
def test_the_lua_for_neovim_in_the_page_about_editors_works(form: int, since: tuple[int, int], tmp_path: Path) -> None:
    """form: which block of Lua in docs/editor.md. since: the version of Neovim that it needs."""
    if neovim() < since:
        pytest.skip("needs Neovim {}.{} or newer".format(*since))
    page = (ROOT / "docs/editor.md").read_text(encoding="utf-8")
    (tmp_path / "init.lua").write_text(re.findall(r"```lua\n(.*?)```", page, re.DOTALL)[form], encoding="utf-8")
    (tmp_path / "ask.lua").write_text(f"pcall(function()\n{ASK}\nend)\nvim.cmd('qa!')\n", encoding="utf-8")
    (tmp_path / "mine.sched").write_text(WRONG, encoding="utf-8")
    ran = subprocess.run(
        ["nvim", "--headless", "--clean", "-n", "-u", "init.lua", "mine.sched", "-c", "luafile ask.lua"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    printed = re.search(r"answers: (.*)", ran.stdout)
    assert printed is not None, ran.stdout + ran.stderr
    answers = json.loads(printed[1])
    assert answers["findings"] == [["E220", 4, 28]]
    assert answers["hover"].startswith("**stages** (keyword)")
    assert answers["definition"] == {"line": 1, "character": 6}
    assert {"pipe", "order"} <= set(answers["completion"])
    assert answers["fixed"] == "pipe main { stage s on rank s % D   micro_batches 4 }"
    assert answers["formatted"][2] == "ranks D"


def test_the_page_about_editors_says_how_to_start_the_server() -> None:
    text = (ROOT / "docs/editor.md").read_text(encoding="utf-8")
    assert '"chimerac", "lsp"' in text
