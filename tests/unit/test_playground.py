"""The server of the playground: it answers as the compiler does, refuses hostile requests, and limits its workers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.machines import MACHINES
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.analyze.report import report
from chimerac.compiler.analyze.viewed import viewed
from chimerac.compiler.command.serve import content
from chimerac.compiler.draw.viewer.page import embedded_page
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.playground import limits
from chimerac.compiler.playground.pool import GoneError, LostError, Pool
from chimerac.compiler.playground.server import Playground
from chimerac.compiler.syntax.grammar import keywords
from tests.helpers_command import COMMAND, SIGINT_ON
from tests.helpers_playground import playground
from tools import ROOT

TEXT = find("chimera").text


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REQUEST_S", 2.0)  # slow clients are given up sooner than by default
        with playground() as server:
            yield server


def sent(server: Playground, data: bytes, *, more: bool = False) -> tuple[int, bytes]:
    """Return the status and the body of the answer to these bytes; the status 0 if the connection is closed without an answer.

    Args:
        more: keep the connection open, as if more were to be sent.
    """
    with socket.create_connection(server.server_address[:2], timeout=60) as client:  # type: ignore[arg-type]
        received = b""
        try:
            client.sendall(data)
            if not more:
                with contextlib.suppress(OSError):  # the server has closed the connection; its answer may still be read
                    client.shutdown(socket.SHUT_WR)
            while part := client.recv(2**16):
                received += part
        except ConnectionError:  # the server has closed the connection
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def request(server: Playground, method: str, path: str, body: bytes = b"", **headers: str | None) -> bytes:
    """Return a request as bytes.

    Args:
        headers: they replace those of the page, with _ for - in their names; None leaves one out.
    """
    given: dict[str, str | None] = {
        "Host": f"127.0.0.1:{server.server_port}",
        "Content_Length": str(len(body)) if body else None,
    }
    given |= {"Content_Type": "application/json"} if body else {}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in (given | headers).items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body


def posted(server: Playground, kind: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Post a request with these fields; return the status and the answer.

    Args:
        kind: draw or export.
    """
    status, body = sent(server, request(server, "POST", f"/{server.token}/{kind}", json.dumps(fields).encode()), more=True)
    return status, json.loads(body)


def test_the_page_has_a_strict_policy_and_the_library(server: Playground) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    with socket.create_connection(server.server_address[:2]) as client:  # type: ignore[arg-type]
        client.sendall(request(server, "GET", f"/{server.token}/"))
        head = client.recv(2**16).decode()
    assert "Content-Security-Policy: default-src 'none'; script-src 'self';" in head and "unsafe" not in head
    assert "Referrer-Policy: no-referrer" in head
    status, body = sent(server, request(server, "GET", f"/{server.token}/offered.json"))
    offered = json.loads(body)
    assert (status, [x["name"] for x in offered["schedules"]]) == (200, names())
    assert tuple(offered["machines"]) == MACHINES
    assert set(offered["keywords"]) == keywords()
    status, body = sent(server, request(server, "GET", f"/{server.token}/schedules/gpipe"))
    assert (status, body.decode()) == (200, find("gpipe").text)


def test_a_timeline_is_that_of_the_compiler(server: Playground) -> None:
    status, answer = posted(server, "draw", text=TEXT, parameters={"D": 8, "N": 16})
    compiled = compile_schedule("chimera", {"D": 8, "N": 16})
    panel = viewed(simulate(compiled.program), "chimera", ordered=compiled.ordered)
    panel["text"]["name"] = "the text"  # the name that the playground gives to every text
    assert status == 200 and answer["digest"] == compiled.program.digest and answer["panel"] == json.loads(json.dumps(panel))
    assert [(p["name"], p["value"], p["given"]) for p in answer["parameters"]] == [
        ("D", 8, True),
        ("N", 16, True),
        ("f", 1, False),
    ]
    assert answer["parameters"][0]["values"] == [2, 4, 8, 16]  # the even numbers that divide N


def test_the_viewer_runs_only_its_own_script_and_only_the_playground_may_embed_it(server: Playground) -> None:
    with socket.create_connection(server.server_address[:2]) as client:  # type: ignore[arg-type]
        client.sendall(request(server, "GET", f"/{server.token}/viewer.html"))
        received = b""
        while part := client.recv(2**16):
            received += part
    head, _, body = received.decode().partition("\r\n\r\n")
    policy = next(line for line in head.split("\r\n") if line.startswith("Content-Security-Policy"))
    assert "default-src 'none'; script-src 'sha256-" in policy and "frame-ancestors 'self'" in policy and "unsafe" not in policy
    assert body == embedded_page()[0] and '"panels":[]' in body


def test_costs_width_and_machine_are_those_of_the_compiler(server: Playground) -> None:
    given = {"costs": {"hop": "0.5", "B": "1/3"}, "width": 2, "machine": "serial", "arrange": True}
    program = compile_source(find("chimera"), {}, width=2, machine="serial", arrange=True).program
    s = simulate(program, {"hop": Fraction(1, 2), "B": Fraction(1, 3)})
    _, answer = posted(server, "draw", text=TEXT, parameters={}, **given)
    assert (answer["digest"], answer["makespanText"], answer["ranks"]) == (program.digest, s.time(s.makespan), 8)
    assert [(x["name"], x["value"], x["given"]) for x in answer["costs"]] == [
        ("F", "1", False), ("B", "1/3", True), ("hop", "0.5", True)
    ]  # fmt: skip
    _, answer = posted(server, "export", text=TEXT, parameters={}, emit="report", suffix=".txt", **given)
    assert b64decode(answer["data"]).decode() == report(program, s)
    _, answer = posted(server, "draw", text=find("zb_v").text, parameters={})
    assert [x["name"] for x in answer["costs"]] == ["F", "I", "W", "hop"]


@pytest.mark.parametrize(
    ("given", "code", "fields"),
    [
        ({"costs": {"F": "a", "B": "1", "hop": "1/0"}}, "E002", ["cost-F"]),
        ({"costs": {"F": "9" * 99}}, "E002", ["cost-F"]),
        ({"costs": {"W": "1e-99"}}, "E002", ["cost-W"]),
        ({"width": 0}, "E211", ["width"]),
        ({"width": 2**62}, "E211", ["width"]),
        ({"width": -(2**62), "machine": "posted"}, "E211", ["width"]),
    ],
)
def test_wrong_settings_are_findings_of_their_fields(
    server: Playground, given: dict[str, Any], code: str, fields: list[str]
) -> None:
    for kind, more in (("draw", {}), ("export", {"emit": "report", "suffix": ".txt"})):
        status, answer = posted(server, kind, text=TEXT, parameters={}, **given, **more)
        first = answer["findings"][0]
        assert (status, first["code"], first["fields"], first["place"]) == (200, code, fields, None), answer


def test_a_machine_on_which_a_program_hangs_is_a_finding_of_its_field(server: Playground) -> None:
    _, answer = posted(server, "draw", text=TEXT, parameters={}, machine="paired")
    found = answer["findings"][0]
    assert (found["code"], found["fields"]) == ("E440", ["machine"]) and "--for paired" in found["help"]


def test_every_schedule_is_drawn_by_a_process_that_may_open_no_file(server: Playground) -> None:
    costs = {"F": "1.5", "R": "2", "hop": "1/7"}
    for name in names():
        status, answer = posted(server, "draw", text=find(name).text, parameters={}, costs=costs, width=2)
        assert status == 200 and "panel" in answer, (name, answer["findings"])


def test_only_the_start_of_a_large_program_is_sent(server: Playground) -> None:
    _, answer = posted(server, "draw", text=find("gpipe").text, parameters={"D": 64, "N": 512})
    panel = answer["panel"]
    size = len(b64decode(panel["op"]["bytes"]))
    assert answer["instructions"] == 194_560 and 40_000 < size <= limits.ROWS
    assert 0 < panel["until"] < panel["makespan"] and answer["untilText"] == str(panel["until"])


def test_a_finding_has_its_place_its_help_and_the_sliders(server: Playground) -> None:
    _, answer = posted(server, "draw", text=TEXT.replace("param N", "parm N"), parameters={})
    assert [(x["code"], x["place"], x["help"]) for x in answer["findings"]] == [
        ("E102", [16, 1, 16, 5], "did you mean 'param'?")
    ]
    _, answer = posted(server, "draw", text=TEXT, parameters={"N": 5})
    assert answer["findings"][0]["code"] == "E210"
    assert answer["parameters"][1] == {"name": "N", "value": 5, "given": True, "values": [4, 8, 12, 16, 20]}


def test_a_parameter_without_a_value_is_a_finding_without_sliders(server: Playground) -> None:
    text = re.sub("^param N = D ", "param N ", TEXT, flags=re.MULTILINE)
    for changed in (text, text.replace("let unit = ", "let k = N + 1\nlet unit = ")):
        assert changed != TEXT
        _, answer = posted(server, "draw", text=changed, parameters={})
        assert [x["code"] for x in answer["findings"]] == ["E204"] and answer["parameters"] is None


def test_every_product_is_exported_and_the_json_is_that_of_the_compiler(server: Playground) -> None:
    for product in content(None).products:
        text = find("1f1b").text if product.emit == "torch-csv" else TEXT  # in torch each stage is on one rank
        status, answer = posted(server, "export", text=text, parameters={}, emit=product.emit, suffix=product.suffix)
        assert status == 200 and "findings" not in answer, (product, answer)
        assert answer["name"].endswith(product.suffix) and b64decode(answer["data"])
        if product.emit == "json":
            assert b64decode(answer["data"]).decode() == program_to_json(compile_schedule("chimera").program)


@pytest.mark.parametrize(
    ("status", "method", "path", "headers"),
    [
        (403, "GET", "/TOKEN/", {"Host": "evil.example"}),
        (403, "GET", "/TOKEN/", {"Host": "127.0.0.1:1"}),
        (403, "GET", "/TOKEN/", {"Host": None}),
        (403, "GET", "/TOKEN/", {"Origin": "https://evil.example"}),
        (403, "POST", "/TOKEN/draw", {"Origin": "null"}),
        (403, "POST", "/TOKEN/draw", {"Origin": "http://127.0.0.1:1"}),
        (403, "POST", "/TOKEN/draw", {"Sec_Fetch_Site": "cross-site"}),
        (404, "GET", "/", {}),
        (404, "GET", "/playground.js", {}),
        (404, "POST", "/" + 32 * "A" + "/draw", {}),
        (404, "GET", "/TOKEN/../../../../etc/passwd", {}),
        (404, "GET", "/TOKEN/schedules/../../pyproject.toml", {}),
        (404, "GET", "/TOKEN/schedules/..%2f..%2fpyproject.toml", {}),
        (404, "GET", "/TOKEN/schedules//etc/passwd", {}),
        (404, "GET", "/TOKEN/server.py", {}),
        (405, "GET", "/TOKEN/draw", {}),
        (405, "POST", "/TOKEN/", {}),
        (501, "PUT", "/TOKEN/draw", {}),
        (415, "POST", "/TOKEN/draw", {"Content_Type": "text/plain"}),
        (411, "POST", "/TOKEN/draw", {"Content_Length": None}),
        (411, "POST", "/TOKEN/draw", {"Content_Length": "-1"}),
        (411, "POST", "/TOKEN/draw", {"Transfer_Encoding": "chunked"}),
        (413, "POST", "/TOKEN/draw", {"Content_Length": str(limits.BODY + 1)}),
        (413, "POST", "/TOKEN/draw", {"Content_Length": "9" * 40}),
    ],
)
def test_requests_that_the_page_never_makes_are_refused(
    server: Playground, status: int, method: str, path: str, headers: dict[str, Any]
) -> None:
    body = b'{"text": "", "parameters": {}}' if method == "POST" else b""
    found, answer = sent(server, request(server, method, path.replace("TOKEN", server.token), body, **headers), more=True)
    assert found == status
    # Nothing of /etc/passwd, pyproject.toml or the token.
    assert b"root:" not in answer and b"[project]" not in answer and server.token.encode() not in answer


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"text": 1, "parameters": {}}', b'{"text": ""}',
        b'{"text": "", "parameters": {"D": true}}', b'{"text": "", "parameters": {"D": 1.5}}',
        b'{"text": "", "parameters": {"D": 99999999999999999999}}', b'{"text": "", "parameters": {}, "path": "/etc/passwd"}',
        b'{"text": "", "parameters": {"D": ' + b"9" * 5000 + b"}}", b'{"text": "", "parameters": {}, "costs": []}',
        b'{"text": "", "parameters": {}, "costs": {"F": 1}}', b'{"text": "", "parameters": {}, "costs": {"X": "1"}}',
        b'{"text": "", "parameters": {}, "costs": {"F": "' + b"1" * 101 + b'"}}',
        b'{"text": "", "parameters": {}, "width": "2"}',
        b'{"text": "", "parameters": {}, "width": true}', b'{"text": "", "parameters": {}, "width": 1e400}',
        b'{"text": "", "parameters": {}, "width": 9223372036854775808}', b'{"text": "", "parameters": {}, "machine": "/etc"}',
        b'{"text": "", "parameters": {}, "machine": ["serial"]}', b'{"text": "", "parameters": {}, "machine": {}}',
        b'{"text": "", "parameters": {}, "arrange": 1}', b'{"text": "", "parameters": {}, "model": "/etc/passwd"}',
    ],
)  # fmt: skip
def test_bodies_of_another_form_are_refused(server: Playground, body: bytes) -> None:
    status, answer = sent(server, request(server, "POST", f"/{server.token}/draw", body), more=True)
    assert status == 400 and json.loads(answer)["error"]


def test_a_product_that_is_not_offered_is_refused(server: Playground) -> None:
    for emit, suffix in (("json", "/../x"), ("../json", ".json"), ([], ".json"), ("json", None)):
        assert posted(server, "export", text=TEXT, parameters={}, emit=emit, suffix=suffix)[0] == 400


def test_truncated_and_slow_requests_end(server: Playground) -> None:
    whole = request(server, "POST", f"/{server.token}/draw", b'{"text": "", "parameters": {}}')
    assert sent(server, whole[:-5])[0] == 400
    assert sent(server, whole[:-5], more=True)[0] == 408  # the client keeps the connection open and sends nothing more
    assert sent(server, whole[:40], more=True)[0] in (0, 408)
    assert sent(server, b"\x00\x01\x02 rubbish\r\n\r\n")[0] == 400
    assert sent(server, b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n")[0] in (0, 414)


def test_connections_without_a_request_are_limited_and_closed(server: Playground) -> None:
    clients = [socket.create_connection(server.server_address[:2], timeout=60) for _ in range(limits.CONNECTIONS + 8)]  # type: ignore[arg-type]
    first = [client.recv(100)[:12] for client in clients]  # the server ends each of them, at the latest after REQUEST_S
    assert b"HTTP/1.0 503" in first
    for client in clients:
        client.close()
    assert posted(server, "draw", text=TEXT, parameters={})[0] == 200


def bad_texts() -> Iterator[str]:
    """Yield a hundred texts: extreme ones, written by hand, and texts of the library with a part changed."""
    base = "schedule x\nparam D = {}\nranks D\nstages D\npipe main {{ stage s on rank s   micro_batches {} }}\n"
    order = "order ticks {\n    F(s, m) at s + 2*m\n    B(s, m) at 2*D - s + 2*m\n}\n"
    yield from (
        "",
        "\0",
        "\ud800",
        "\u202e" * 50,
        "schedule",
        "#" * 10**6,
        "(" * 50_000,
        "\n" * 90_000,
        "schedule " + "x" * 9999,
    )
    for ranks, micro_batches in ((2**61, 1), (1, 2**61), (10**30, 1), (65_536, 16), (2, 10**5), (0, 0), (-1, 1), (4, -(2**40))):
        yield base.format(ranks, micro_batches) + order
    yield base.format("1" + "+1" * 20_000, 4) + order
    yield base.format("-" * 90 + "1", 4) + order
    yield base.format(4, 8) + "order listing for rank r { repeat 1000000 { repeat 1000000 { F(0) } } }\n"
    yield base.format(4, 8) + "order ticks {\n    F(s, m) at (s + m) // (s - s)\n    B(s, m) at s % (m - m)\n}\n"
    yield from (f"schedule {word}\nranks 2\n" for word in ("\U0001f600", "日本", "é", "a\tb", "../../etc/passwd", "%s{0}"))
    rng = random.Random(7)
    texts = [find(name).text for name in names()]
    for _ in range(73):  # with the 27 above there are a hundred
        text = rng.choice(texts)
        at = rng.randrange(len(text))
        beginning = text[: rng.randrange(200)]
        part = rng.choice(["", "9" * 19, "}", "{", "param", "\U0001f600", "- ", "repeat 999999 {", beginning])
        yield text[:at] + part + text[at + rng.randrange(40) :]


def test_a_hundred_bad_texts_are_answered(server: Playground) -> None:
    """Each answer is a timeline or findings. The limits of time and memory are tested below."""
    answered = 0
    for text in bad_texts():
        status, answer = posted(server, "draw", text=text, parameters={})
        assert status == 200, text[:200]
        assert "panel" in answer or answer["findings"][0]["message"], text[:200]
        for found in answer.get("findings", ()):
            assert not re.search("without an answer|gave no answer", found["message"]), text[:2000]
            line, column, end_line, end_column = found["place"] or (1, 1, 1, 1)
            assert 1 <= line <= end_line <= text.count("\n") + 1 and column >= 1 and end_column >= 1
        answered += 1
    assert answered == 100
    for value in (2**62, -(2**62), 10**6, 0, -1):
        assert posted(server, "draw", text=TEXT, parameters={"D": value})[1]["findings"]


# The program of a worker. A request for a product names one of these functions. A request for a timeline names in `text` a file
# that is to be read.
HOSTILE = """
import os, signal, sys
from chimerac.compiler.playground import limits, worker
limits.EXPORTING_S = limits.COMPILING_S = 1.0
limits.ANSWER = 2**16
def spin(request):
    while True: pass
def forge(request):
    print("no answer"); return {"said": "this"}
def die(request): os.kill(os.getppid(), signal.SIGKILL)
def fill(request): return {"size": len(bytearray(2**31))}
def save(request): return {"size": open(sys.argv[1], "wb", buffering=0).write(b"x")}
def large(request): return {"x": "x" * limits.ANSWER}
does = {f.__name__: f for f in (spin, forge, die, fill, save, large)}
worker.drawn = lambda text, setting: {"read": open(text).read()}
worker._load = lambda: None
worker.work(lambda request: does[request["do"]](request))
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of one worker, which answers with the functions of HOSTILE.

    In the end the file that `save` tries to write is missing or empty.
    """
    path = tmp_path_factory.mktemp("worker") / "written"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "WORKERS", 1)
        patch.setattr(limits, "GRACE_S", 20.0)
        pool = Pool([sys.executable, "-c", HOSTILE, str(path)], {**os.environ, "PYTHONPATH": str(ROOT)})
        yield pool
        pool.end()
    assert not path.exists() or not path.stat().st_size


def told(pool: Pool, do: str) -> str:
    """Return the message of the finding with which a worker's request ends.

    Args:
        do: the name of a function of HOSTILE.
    """
    answer = json.loads(pool.ask(json.dumps({"kind": "export", "do": do}).encode(), 1.0))
    return str(answer["findings"][0]["message"])


def test_a_worker_stops_what_exceeds_its_limits(pool: Pool) -> None:
    assert told(pool, "spin") == "this takes more than 1 seconds; it was stopped"
    assert "1024 MiB of memory" in told(pool, "fill")
    assert "at most 65,536 are sent" in told(pool, "large")
    assert "ended without an answer" in told(pool, "save")
    # What a request prints is not taken for its answer.
    assert json.loads(pool.ask(b'{"kind": "export", "do": "forge"}', 1.0)) == {"said": "this"}
    reading = json.dumps({"kind": "draw", "text": "/etc/passwd", "parameters": {}}).encode()
    assert "ended without an answer" in json.loads(pool.ask(reading, 1.0))["findings"][0]["message"]


def test_a_worker_that_ends_is_replaced(pool: Pool) -> None:
    with pytest.raises(LostError):
        pool.ask(b'{"kind": "export", "do": "die"}', 1.0)
    assert told(pool, "spin")


def test_a_client_that_leaves_frees_its_worker(pool: Pool) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(GoneError):
        pool.ask(b'{"kind": "export", "do": "spin"}', 1.0, ours)
    ours.close()
    assert json.loads(pool.ask(b'{"kind": "export", "do": "forge"}', 1.0)) == {"said": "this"}


def test_the_command_says_its_address_refuses_a_wrong_port_and_ends_with_one_line() -> None:
    pipe = subprocess.PIPE
    command = [*COMMAND, "serve", "--no-browser", "--port"]
    process = subprocess.Popen([*command, "0"], stdout=pipe, stderr=pipe, text=True, preexec_fn=SIGINT_ON)
    assert process.stdout is not None
    port = process.stdout.readline().split(":")[3].split("/")[0]  # of "the playground: http://127.0.0.1:PORT/TOKEN/"
    taken = subprocess.run([*command, port], capture_output=True, text=True)
    assert (taken.returncode, taken.stdout) == (2, "")
    assert taken.stderr.startswith(f"error[E002]: --port {port}: the port cannot be used: address already in use\n")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "\nthe playground has ended\n"
    assert process.returncode == 130
    assert subprocess.run([*command, "99999"], capture_output=True).returncode == 2
