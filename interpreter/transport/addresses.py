"""Whether other hosts can reach the network address at which a rank accepts connections."""

from __future__ import annotations

import ipaddress
import os
import socket

from chimerac.chimera_ir.diagnostics import refuse

INTERFACE = "GLOO_SOCKET_IFNAME"  # in the environment: the network interface that gloo uses


def check_own_address() -> None:
    """Raise ChimeraError E819 if gloo would accept connections at a loopback address; called if a job has several hosts.

    gloo accepts them on the interface that the variable INTERFACE names, which is not checked. Without it gloo takes the first
    address of the host name that belongs to this host, or the loopback address if there is none. Only the first address of the
    name is checked here. With a loopback address the ranks of the other hosts would wait until their timeout.
    """
    if os.environ.get(INTERFACE):
        return
    name = socket.gethostname()
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        address = ""
    if address and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:  # % begins the zone of an IPv6 address
        return
    reason = f"its own name resolves to {address}" if address else "its own name has no address"
    interfaces = ", ".join(i for _, i in socket.if_nameindex() if i != "lo") or "none but the loopback"
    raise refuse(
        "E819",
        f"the other hosts cannot connect to host {name}: {reason}",
        notes=(f"network interfaces of {name}: {interfaces}",),
        help=f"set {INTERFACE} to the interface between the hosts, or give {name} the address of that interface in /etc/hosts",
    )
