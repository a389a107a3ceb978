"""`chimerac serve`: the playground, a page on this host that compiles a schedule as it is typed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import chimerac
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, write_stderr, write_stdout
from chimerac.chimera_ir.host import ONE_THREAD
from chimerac.chimera_ir.limits import TEXT
from chimerac.compiler.command.emit import EMITTERS
from chimerac.compiler.command.files import print_findings
from chimerac.compiler.command.verbs import serve_parser
from chimerac.compiler.library import entries, find, names
from chimerac.compiler.playground.offered import Content, Product
from chimerac.compiler.playground.server import Playground, PortError

FIRST = "schedules/chimera.sched"  # the page opens with it if no schedule is given
# By product: the suffixes of its files. The file of a product that is neither here nor in NAMED_BY_SUFFIX ends in .txt.
SUFFIXES = {
    "json": (".json",),
    "schema": (".schema.json",),
    "dag": (".graphml", ".dot"),
    "perfetto": (".perfetto.json",),
    "timeline-json": (".timeline.json",),
    "sched": (".sched",),
    "torch-csv": (".csv",),
    "memory": (".memory.csv",),
}
NAMED_BY_SUFFIX = ("svg", "png", "pdf", "html")  # products whose names are the suffixes of their files


def run(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C, and return the exit status: 130, or that of findings about command line, schedule or stdout."""
    options = serve_parser().parse_args(argv)
    try:
        server = server_for(options.port, content(options.schedule))
    except ChimeraError as error:
        return print_findings(error)
    try:
        write_stdout(f"the playground: {server.url}\nCtrl-C ends it\n")
        if not options.no_browser:
            threading.Thread(target=_open, args=(server.url,), daemon=True).start()
        server.serve_forever(poll_interval=0.1)
    except ChimeraError as error:
        return print_findings(error)
    except KeyboardInterrupt:
        write_stderr("\nthe playground has ended\n")
    finally:
        server.end()
    return 130


def content(schedule: str | None) -> Content:
    """Return what the page offers.

    Args:
        schedule: of the command line; None for `FIRST`.

    Raises ChimeraError: E001 if this schedule cannot be read, E002 if it is too long.
    """
    texts = {name: find(name).text for name in names()}
    source = find(FIRST if schedule is None else schedule)
    if len(source.text) > TEXT:
        raise refuse("E002", f"{source.name} has {len(source.text)} characters; a text has at most {TEXT}")
    return Content(texts, {e.name: e.title for e in entries()}, (Path(source.name).stem, source.text), products())


def products() -> list[Product]:
    """Return what the page offers for download, from the table of emitters.

    torch-comms is left out: its programs must end on the machine `serial`, and with most settings of the page they do not.
    """
    return [
        Product(name, suffix, emitter.what.partition(";")[0])
        for name, emitter in EMITTERS.items()
        if name != "torch-comms"
        for suffix in SUFFIXES.get(name, (f".{name}" if name in NAMED_BY_SUFFIX else ".txt",))
    ]


def server_for(port: int, offered: Content) -> Playground:
    """Return the server. Raises ChimeraError E002 for a port that cannot be used, or if no process can be started."""
    if not 0 <= port <= 65535:
        raise refuse("E002", f"--port {port}: a port is 1 to 65535, or 0 for any that is free")
    root = str(Path(chimerac.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **ONE_THREAD}
    command = [sys.executable, "-P", "-m", "chimerac.compiler.command.served"]  # -P: no imports from the current folder
    try:
        return Playground(port, offered, command, environment)
    except PortError as error:
        help = "give another port, or --port 0 for any that is free"
        raise refuse("E002", f"--port {port}: the port cannot be used: {reason(error)}", help=help) from None
    except OSError as error:
        raise refuse("E002", f"{sys.executable}, which compiles for the page, cannot be started: {reason(error)}") from None


def _open(url: str) -> None:
    import webbrowser  # start-up: 1 ms, only where a browser is opened

    webbrowser.open(url)
