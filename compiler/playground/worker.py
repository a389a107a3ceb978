"""A worker: a process that has the compiler loaded, and forks for every request a child with limits of time and memory.

The child can write nothing into files. If it compiles a text for the timeline, it cannot open files either; for a product it
can. Its parent kills it when its time is over, when the server cancels the request, and when the server is gone. An operating
system may lack some of these limits (`_limit`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import analyze, diagnose
from chimerac.compiler.playground import frames, limits
from chimerac.compiler.playground.answers import drawn, findings
from chimerac.compiler.playground.offered import stopped
from chimerac.compiler.playground.setting import Setting, setting_of

Exporter = Callable[[Mapping[str, Any]], dict[str, Any]]  # a request for a product -> its answer


def work(export: Exporter) -> None:
    """Read requests from stdin and write their answers to stdout, until stdin ends.

    Args:
        export: makes the products.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the server ends its workers
    _load()
    gc.collect()
    gc.freeze()  # a garbage collection in a child leaves these objects alone, so the child shares their pages
    while (message := frames.receive(0)) is not None:
        if message != frames.CANCEL:  # a cancelled request has its answer already
            frames.send(1, _in_child(message, export))


def _load() -> None:
    """Import what a compilation may need, also for its findings: a child that may open no files cannot import modules."""
    for package in (analyze, diagnose):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    "\x1b".encode("unicode_escape")  # imports the codec, which messages need
    importlib.import_module("numpy.ma")  # np.unique imports it only when it is called
    # A syntax error and an unknown name: what their findings need is loaded too.
    for text in ("schedule x\nparm D = 1\n", "schedule x\nparam D = 2\nranks D\nstages d\n"):
        with contextlib.suppress(ChimeraError):
            drawn(text, Setting({}, {}))


def _in_child(message: bytes, export: Exporter) -> bytes:
    """Return the answer to a request, made by a child within the limits."""
    request = json.loads(message)
    is_export = request["kind"] == "export"
    seconds = limits.EXPORTING_S if is_export else limits.COMPILING_S
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(request, export if is_export else None, seconds, writer)
    os.close(writer)
    try:
        data = _read(reader, time.monotonic() + seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
    if data is None:  # after a cancellation, the server drops this answer
        data = _json(stopped(f"this takes more than {seconds:g} seconds; it was stopped"))
    return data or _json(stopped(f"this ended without an answer; it may need more than {limits.MEMORY >> 20} MiB of memory"))


def _read(reader: int, deadline: float) -> bytes | None:
    """Return what a child writes; None if its time is over, or if the server cancels the request or has ended."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([reader, 0], [], [], left)
        if 0 in ready:  # a cancellation, or the server has ended
            return None
        if ready:
            part = os.read(reader, 2**20)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def _answer(request: Mapping[str, Any], export: Exporter | None, seconds: float, writer: int) -> None:
    """Write the answer and end this process, the child.

    Args:
        export: makes the product; None: the request is for the timeline.
    """
    status = 1
    try:
        os.close(0)
        os.dup2(2, 1)  # what a package prints must not mix with answers
        setting = setting_of(request)
        _limit(seconds, may_open=export is not None)
        try:
            found = drawn(request["text"], setting) if export is None else export(request)
            data = _json(found)
        except ChimeraError as error:
            data = _json(findings(error, setting))
        except (MemoryError, RecursionError):
            data = b""  # the parent answers for this child
        if len(data) > limits.ANSWER:
            data = _json(stopped(f"the result has {len(data):,} bytes; at most {limits.ANSWER:,} are sent to a page"))
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(writer, rest) :]
        status = 0
    finally:
        os._exit(status)  # nothing of the parent is run again: no handlers, no buffers


def _limit(seconds: float, may_open: bool) -> None:
    """Limit this process.

    Args:
        may_open: whether it may open files. A product needs this, for packages and their data.
    """
    processor_s = int(seconds) + 2  # a little more than the parent waits
    bounds = {
        resource.RLIMIT_AS: limits.MEMORY,
        resource.RLIMIT_CPU: processor_s,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    if not may_open:
        bounds[resource.RLIMIT_NOFILE] = 0
    for which, bound in bounds.items():
        _, hard = resource.getrlimit(which)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        with contextlib.suppress(OSError, ValueError):  # a system that cannot limit this
            resource.setrlimit(which, (bound, bound))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
