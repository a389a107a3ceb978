"""The server of the playground: it serves one page, to this host only.

Every path that the page uses begins with a random token. A request whose header Host or Origin names another server is refused.
So a page of another origin reaches nothing, also if its name is made to resolve to this host (DNS rebinding). No request names
a file: the page's files and the shipped schedules are in memory before the first request.
"""

from __future__ import annotations

import hmac
import io
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from chimerac.chimera_ir.limits import TEXT
from chimerac.chimera_ir.machines import MACHINES
from chimerac.compiler.draw.viewer.page import embedded_page
from chimerac.compiler.playground import limits
from chimerac.compiler.playground.offered import Content, Product, stopped
from chimerac.compiler.playground.pool import BusyError, GoneError, LostError, Pool
from chimerac.compiler.playground.setting import setting_of
from chimerac.compiler.syntax.grammar import keywords

ADDRESS = "127.0.0.1"
SCRIPTS = ("playground.js", "editor.js", "settings.js")
_TYPES = {
    "playground.html": "text/html; charset=utf-8",
    "playground.css": "text/css; charset=utf-8",
    **dict.fromkeys(SCRIPTS, "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RefusedError(Exception):
    """A request that is not answered with what it asks for.

    Args:
        status: of the answer.
        message: its text.
    """

    def __init__(self, status: HTTPStatus, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of the server.

    Attributes:
        kind: its media type.
        policy: its Content-Security-Policy.
    """

    kind: str
    data: bytes
    policy: str = _POLICY


class PortError(OSError):
    """A port that cannot be used."""


class Playground(ThreadingHTTPServer):
    """The server.

    Args:
        pool_command, environment: how its workers are started.

    Raises PortError if the port cannot be used, and OSError if a worker cannot be started. Port 0 is any that is free.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, port: int, content: Content, pool_command: Sequence[str], environment: Mapping[str, str] | None = None):
        super().__init__((ADDRESS, port), _Handler)
        self.token = secrets.token_urlsafe(24)
        self.pages = _pages(content)
        self.products = {(p.emit, p.suffix): p for p in content.products}
        self.connections = threading.BoundedSemaphore(limits.CONNECTIONS)
        try:
            self.pool = Pool(pool_command, environment)
        except BaseException:
            self.server_close()
            raise

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def hosts(self) -> tuple[str, ...]:
        """Return the names by which a browser may address this server."""
        return tuple(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))

    def server_bind(self) -> None:
        """Bind the address. The parent's method also looks up the name of the host, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind(self.server_address)
        except OSError as error:
            raise PortError(*error.args) from error
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, or with status 503 if there are too many."""
        if not self.connections.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(0.1)
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing, since the usual reason is a client that has closed its connection or has been too slow."""

    def end(self) -> None:
        """Close the port and end the workers."""
        self.server_close()
        self.pool.end()


def _pages(content: Content) -> dict[str, Page]:
    """Return every page that GET returns, by the part of the path after the token."""
    folder = files(__package__)
    pages = {name: Page(kind, folder.joinpath(name).read_bytes()) for name, kind in _TYPES.items()}
    pages[""] = pages.pop("playground.html")
    viewer, policy = embedded_page()  # its policy allows nothing but its own script and style
    pages["viewer.html"] = Page(_TYPES["playground.html"], viewer.encode("ascii"), f"{policy}; frame-ancestors 'self'")
    offered = {
        "schedules": [{"name": name, "title": content.titles.get(name, "")} for name in content.schedules],
        "products": [{"emit": p.emit, "suffix": p.suffix, "what": p.what} for p in content.products],
        "first": {"name": content.first[0], "text": content.first[1]},
        "machines": MACHINES,
        "keywords": sorted(keywords()),
    }
    pages["offered.json"] = Page("application/json", json.dumps(offered).encode("ascii"))
    for name, text in content.schedules.items():
        pages[f"schedules/{name}"] = Page("text/plain; charset=utf-8", text.encode())
    return pages


class _Reader(io.RawIOBase):
    """The bytes that a client sends, until a deadline for all of them together."""

    def __init__(self, connection: socket.socket, deadline: float):
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request was not sent in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    server: Playground
    server_version = "chimerac"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Reader(self.connection, time.monotonic() + limits.REQUEST_S))

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that http.server refuses. The answer has the form of this server's own refusals."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(status, _error(message or status.phrase))

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_HEAD(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def _respond(self, make: Any) -> None:
        """Answer the request, unless the client has closed its connection.

        Args:
            make: returns the page for the path after the token.
        """
        try:
            page = make(self._checked_path())
            status = HTTPStatus.OK
        except RefusedError as refused:
            status, page = refused.status, _error(str(refused))
        except GoneError:
            return
        self._send(status, page)

    def _send(self, status: HTTPStatus, page: Page) -> None:
        self.request_version = "HTTP/1.0"  # so an answer has headers also if the request's version is not known
        self.connection.settimeout(limits.REQUEST_S)  # for the headers together, and as long again for the body
        self.send_response(status)
        own = {"Content-Security-Policy": page.policy, "Content-Type": page.kind, "Content-Length": str(len(page.data))}
        for name, value in {**own, **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.data)

    def _checked_path(self) -> str:
        """Return the part of the path after the token.

        Raises RefusedError for a request to another host or from another origin, or without the token.
        """
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts():
            raise RefusedError(HTTPStatus.FORBIDDEN, "the header Host does not name this server")
        origins = self.headers.get_all("Origin", [])
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            raise RefusedError(HTTPStatus.FORBIDDEN, "the request comes from another origin")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "the request comes from another origin")
        token, slash, rest = self.path.removeprefix("/").partition("/")
        if not (slash and hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())):
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here; the address was printed by chimerac serve")
        return rest

    def _get(self, path: str) -> Page:
        if path in ("draw", "export"):
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "this is asked for by POST")
        if path not in self.server.pages:
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")
        return self.server.pages[path]

    def _post(self, path: str) -> Page:
        if path not in ("draw", "export"):
            known = path in self.server.pages
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND, "nothing is posted here")
        request = _request(path, self._body(), self.server.products)
        seconds = limits.EXPORTING_S if path == "export" else limits.COMPILING_S
        try:
            answer = self.server.pool.ask(json.dumps(request).encode(), seconds, self.connection)
        except BusyError:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "all workers are busy; try again") from None
        except LostError:
            answer = json.dumps(stopped("the compiler gave no answer")).encode()
        return Page("application/json", answer)

    def _body(self) -> bytes:
        """Return the body of a request.

        Raises RefusedError unless it is declared as JSON, its length is given and not too large, and all of it is sent in time.
        """
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body of a request is application/json")
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or "Transfer-Encoding" in self.headers or not (lengths[0].isascii() and lengths[0].isdigit()):
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "a request needs one valid Content-Length, and no Transfer-Encoding")
        if len(lengths[0]) > 12 or int(lengths[0]) > limits.BODY:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body of a request has at most {limits.BODY} bytes")
        try:
            data = self.rfile.read(int(lengths[0]))
        except TimeoutError:
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, f"a request is sent within {limits.REQUEST_S:g} seconds") from None
        if len(data) < int(lengths[0]):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is shorter than its Content-Length")
        return data


def _request(kind: str, body: bytes, products: Mapping[tuple[str, str], Product]) -> dict[str, Any]:
    """Return a request for a worker, checked field by field.

    Args:
        kind: "draw" or "export".

    Raises RefusedError.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is no JSON") from None
    expected = {"text", "parameters"} | ({"emit", "suffix"} if kind == "export" else set())
    if not isinstance(given, dict) or not expected <= set(given) <= expected | {"costs", "width", "machine", "arrange"}:
        message = f"expected an object with {', '.join(sorted(expected))}, and perhaps costs, width, machine and arrange"
        raise RefusedError(HTTPStatus.BAD_REQUEST, message)
    text = given["text"]
    if not isinstance(text, str) or len(text) > TEXT:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"text is a string of at most {TEXT} characters")
    try:
        setting_of(given)
    except ValueError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
    if kind == "export" and (not isinstance(given["emit"], str) or (given["emit"], str(given["suffix"])) not in products):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "there is no such product")
    return {"kind": kind, **given}


def _error(message: str) -> Page:
    return Page("application/json", json.dumps({"error": message}).encode("ascii"))
