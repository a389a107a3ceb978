"""Limits of the playground: what one request, one compilation and the server as a whole may take."""

from __future__ import annotations

from chimerac.chimera_ir.limits import TEXT

BODY = 6 * TEXT + 2**16  # bytes of a request's body: settings, and a text, in which the page writes at most six for a character
ANSWER = 2**26  # bytes of the answer of a worker
COMPILING_S = 5.0  # for one compilation and the data of its timeline
EXPORTING_S = 20.0  # for one product of --emit: the schedule is compiled, and the product is made
MEMORY = 2**30  # bytes of the address space of a process that compiles
WORKERS = 2  # requests that are worked on at the same time
WAITING_S = 10.0  # that a request waits for a free worker
REQUEST_S = 10.0  # from a connection on, to send its request; as long again for the answer's headers, and for its body
CONNECTIONS = 32  # at the same time
GRACE_S = 3.0  # a worker that has not answered so long after the limit of its request is replaced

ROWS = 60_000  # instructions that are drawn, at most
FINDINGS = 100  # that are shown
VALUES = 160  # of a parameter that are tried for its slider, besides 0 and the present value
OPERATIONS = 2**18  # of expressions: for computing the parameters, and as many again for all sliders together
