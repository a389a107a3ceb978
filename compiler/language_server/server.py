"""The language server: it answers an editor over stdin and stdout. pygls speaks the protocol."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from chimerac.chimera_ir.diagnostics import visible
from chimerac.compiler.language_server.completion import proposals
from chimerac.compiler.language_server.fixes import edits_of
from chimerac.compiler.language_server.meanings import explanation, meaning
from chimerac.compiler.language_server.names import Definition, Names
from chimerac.compiler.language_server.process import Worker
from chimerac.compiler.language_server.text import Text

DELAY = 0.2  # seconds without a change, after which a text is compiled
SOURCE = "chimerac"
_KINDS = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "name": lsp.CompletionItemKind.Variable,
    "pipe": lsp.CompletionItemKind.Class,
    "task": lsp.CompletionItemKind.Operator,
    "function": lsp.CompletionItemKind.Function,
    "limit": lsp.CompletionItemKind.Property,
}


@dataclass
class Document:
    """A document that is open.

    Attributes:
        text: the newest one.
        version: the number that the editor gives to this text.
        checked: the text whose check ended last, None if no check has ended.
        result: the worker's reply about `checked`.
        running: the check of `text`, which may have ended.
    """

    text: Text
    version: int | None
    checked: Text | None = None
    result: dict[str, Any] = field(default_factory=dict)
    running: asyncio.Task[None] | None = None


class Server(LanguageServer):
    """The server, with the documents that are open and the process that compiles them."""

    def __init__(self) -> None:
        # The editor sends whole texts, not changes: a text is short, and the positions of changes would depend on how each
        # side counts line ends.
        super().__init__("chimerac", _version(), text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
        self.documents: dict[str, Document] = {}
        self.compiling = Worker()

    def changed(self, uri: str, text: str, number: int | None) -> None:
        """Take a new text of a document, and check it after DELAY.

        Args:
            number: the version that the editor gives it.
        """
        encoding = lsp.PositionEncodingKind(self.server_capabilities.position_encoding or "utf-16").value
        old = self.documents.get(uri)
        new = Document(Text.of(text, encoding), number)
        if old is not None:
            new.checked, new.result = old.checked, old.result
            if old.running is not None:
                old.running.cancel()
        self.documents[uri] = new
        new.running = asyncio.get_running_loop().create_task(self.check(uri, new))
        new.running.add_done_callback(self._report)

    def closed(self, uri: str) -> None:
        """Forget a document, and clear its findings."""
        document = self.documents.pop(uri, None)
        if document is not None and document.running is not None:
            document.running.cancel()
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def _report(self, task: asyncio.Task[None]) -> None:
        """Show an error of the server itself, which would be lost with its task."""
        if not task.cancelled() and (error := task.exception()) is not None:
            message = f"chimerac: error in the language server: {error!r}"
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, message))

    async def check(self, uri: str, document: Document) -> None:
        """Compile a document after DELAY, and publish its findings."""
        await asyncio.sleep(DELAY)
        document.result = await self.compiling.ask("check", name_of(uri), document.text.text)
        document.checked = document.text
        diagnostics = self._diagnostics(uri, document)
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, diagnostics, document.version))

    def _diagnostics(self, uri: str, document: Document) -> list[lsp.Diagnostic]:
        """Return the findings of a check; one warning if it was stopped."""
        if reason := document.result.get("stopped"):
            where = range_of(document.text, *_name_of_schedule(document.text))
            message = f"not verified: the compilation was stopped, because {reason}"
            return [lsp.Diagnostic(where, message, lsp.DiagnosticSeverity.Warning, source=SOURCE)]
        return [diagnostic(uri, document.text, finding) for finding in document.result["findings"]]


def diagnostic(uri: str, text: Text, finding: dict[str, Any]) -> lsp.Diagnostic:
    """Return a finding as the protocol has it: its help follows the message, and notes and help are related information.

    A note or help that names a place of the text is shown there, and any other at the finding.

    Args:
        finding: as worker.py writes it.
    """
    where = range_of(text, *_place(text, finding))
    message = visible(finding["message"] + (f" ({finding['label']})" if finding["label"] else ""))
    helps = [f"help: {finding['help']}"] if finding["help"] else []
    related = []
    for remark in [*finding["notes"], *helps]:
        named = re.search(rf"{re.escape(name_of(uri))}:(\d+)(?::(\d+))?", remark)
        at = text.at(int(named[1]), int(named[2] or 1)) if named else None
        place = range_of(text, at, at) if at is not None else where
        related.append(lsp.DiagnosticRelatedInformation(lsp.Location(uri, place), _shown(remark)))
    # A parameter without a default is no mistake: the command line gives its value.
    severity = lsp.DiagnosticSeverity.Warning if finding["code"] == "E204" else lsp.DiagnosticSeverity.Error
    shown = "\n".join([message, *map(_shown, helps)])
    return lsp.Diagnostic(where, shown, severity, finding["code"], None, SOURCE, related_information=related or None)


def _shown(remark: str) -> str:
    """Return a note or a help with each of its lines made safe to print (`visible`)."""
    return "\n".join(map(visible, remark.split("\n")))


def _place(text: Text, finding: dict[str, Any]) -> tuple[int, int]:
    """Return the offsets of a finding; those of the schedule's name if it is about no place of the text."""
    if finding["start"] is not None:
        return finding["start"], finding["end"]
    return _name_of_schedule(text)


def _name_of_schedule(text: Text) -> tuple[int, int]:
    """Return the offsets of the schedule's name; those of the beginning of the text if no name is found."""
    name = next((d for d in Names(text).found if d.what == "schedule"), None)
    return (name.start, name.end) if name else (0, 0)


def range_of(text: Text, start: int, end: int) -> lsp.Range:
    """Return the range of the offsets start .. end."""
    return lsp.Range(lsp.Position(*text.position(start)), lsp.Position(*text.position(max(start, end))))


def name_of(uri: str) -> str:
    """Return the name of a document in findings: that of its file, without its folder; 'text' if it is no file."""
    path = to_fs_path(uri)
    return Path(path).name if path else "text"


def _version() -> str:
    try:
        return version("chimerac")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def hover_text(document: Document, offset: int) -> str:
    """Return as Markdown what the word at an offset and the codes of the findings there mean; '' if none has a meaning.

    The codes are left out if the text has changed since its last check.
    """
    parts = []
    word = document.text.word_at(offset)
    if word is not None:
        names = Names(document.text)
        if definition := names.of(word.text, offset) or _schedule(names, offset):
            parts.append(_defined(document, definition))
        elif about := meaning(word.text):
            parts.append(about)
    if document.checked == document.text:
        codes = [
            f["code"]
            for f in document.result.get("findings", [])
            if f["start"] is not None and f["start"] <= offset <= f["end"]
        ]
        parts += [explanation(code) for code in dict.fromkeys(codes)]
    return "\n\n---\n\n".join(part for part in parts if part)


def _schedule(names: Names, offset: int) -> Definition | None:
    """Return the definition of the schedule if its name is at the offset."""
    return next((d for d in names.found if d.what == "schedule" and d.start <= offset <= d.end), None)


def _defined(document: Document, d: Definition) -> str:
    """Return what a name is: its kind, its value if it is known, and the statement that defines it.

    If the last check found nothing wrong, the placement and micro-batches of a pipe are added, and what the schedule compiles
    to.
    """
    result = document.result
    # A name that holds only in a block may have several values. One that holds to the end of the text has one.
    value = (
        result.get("values", {}).get(d.name) if d.what in ("parameter", "value") and d.last == len(document.text.text) else None
    )
    lines = [f"**{d.name}** {d.what}" + (f", {value}" if value is not None else "")]
    if d.what == "pipe" and d.name in result.get("pipes", {}):
        lines.append("```text\n" + result["pipes"][d.name] + "\n```")
    if d.what == "schedule" and result.get("summary"):
        lines.append(result["summary"])
    return "\n\n".join([*lines, f"```sched\n{d.statement}\n```"])


def make_server() -> Server:
    """Return the server with everything that it answers."""
    server = Server()

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    async def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        server.changed(document.uri, document.text, document.version)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        server.changed(uri, server.workspace.get_text_document(uri).source, params.text_document.version)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    async def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.closed(params.text_document.uri)

    @server.feature(lsp.SHUTDOWN)
    async def shutdown(_: None) -> None:
        await server.compiling.end()

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    async def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        text = hover_text(document, document.text.offset(params.position.line, params.position.character))
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text)) if text else None

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        offset = document.text.offset(params.position.line, params.position.character)
        word = document.text.word_at(offset)
        found = Names(document.text).of(word.text, offset) if word else None
        return lsp.Location(params.text_document.uri, range_of(document.text, found.start, found.end)) if found else None

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION)
    async def completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        offset = document.text.offset(params.position.line, params.position.character)
        return [
            lsp.CompletionItem(p.word, kind=_KINDS[p.kind], documentation=lsp.MarkupContent(lsp.MarkupKind.Markdown, p.about))
            for p in proposals(document.text, offset)
        ]

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    async def formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        uri = params.text_document.uri
        document = server.documents.get(uri)
        if document is None:
            return None
        source = server.workspace.get_text_document(uri).source
        text = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        new = (await server.compiling.ask("format", name_of(uri), text)).get("text")
        # No edit for a text with syntax errors, if the worker was stopped, or if the text is formatted already.
        if new is None or new == text:
            return None
        new = new.replace("\n", "\r\n") if "\r\n" in source else new
        return [lsp.TextEdit(range_of(document.text, 0, len(document.text.text)), new)]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix]))
    async def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        document = server.documents.get(uri)
        if document is None or document.checked != document.text:
            return []
        text = document.text
        first = text.offset(params.range.start.line, params.range.start.character)
        last = text.offset(params.range.end.line, params.range.end.character)
        code_actions = []
        for finding in document.result.get("findings", []):
            edits = edits_of(text, finding)
            if edits and finding["start"] <= last and first <= finding["end"]:
                changes = [lsp.TextEdit(range_of(text, start, end), new) for start, end, new in edits]
                # The first line of the help, without what happened when its edits were tried.
                title = visible(finding["help"].split("\n")[0].partition("; tried")[0])
                code_actions.append(
                    lsp.CodeAction(
                        title,
                        lsp.CodeActionKind.QuickFix,
                        [diagnostic(uri, text, finding)],
                        is_preferred=True,
                        edit=lsp.WorkspaceEdit({uri: changes}),
                    )
                )
        return code_actions

    return server


def run() -> None:
    """Serve one editor over stdin and stdout until it ends the server."""
    server = make_server()
    try:
        server.start_io()
    finally:
        server.compiling.kill()
