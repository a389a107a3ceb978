"""The check of a rank's own address, in a job on several hosts: E819 if there is none, or if other hosts cannot reach it."""

from __future__ import annotations

import socket

import pytest

from chimerac.interpreter.transport.addresses import INTERFACE, check_own_address
from tests.helpers import findings_of_call


@pytest.fixture(autouse=True)
def node2_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name this host node2, give it three network interfaces, and unset the variable that INTERFACE names."""
    monkeypatch.delenv(INTERFACE, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "node2")
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "ib0")])


def resolve_to(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name resolve to an address; None: no name has one."""

    def addresses(*_: object, **__: object) -> list[object]:
        if address is None:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)


@pytest.mark.parametrize(
    ("address", "fact"),
    [
        ("127.0.1.1", "its own name resolves to 127.0.1.1"),
        ("::1", "its own name resolves to ::1"),
        (None, "its own name has no address"),
    ],
)
def test_a_host_that_others_cannot_reach_is_refused(address: str | None, fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(address, monkeypatch)
    [finding] = findings_of_call(check_own_address)
    assert (finding.code, finding.message) == ("E819", f"the other hosts cannot connect to host node2: {fact}")
    assert finding.notes == ("network interfaces of node2: eth0, ib0",)
    monkeypatch.setenv(INTERFACE, "eth0")
    check_own_address()  # an interface that the user names is not checked


@pytest.mark.parametrize("address", ["10.77.0.2", "fe80::1%eth0"])
def test_an_address_of_a_network_is_accepted(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(address, monkeypatch)
    check_own_address()
