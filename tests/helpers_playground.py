"""The server of the playground, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chimerac.compiler.command.serve import content, server_for
from chimerac.compiler.playground.server import Playground


@contextmanager
def playground() -> Iterator[Playground]:
    """Serve the playground on a free port, in a thread of this process."""
    server = server_for(port=0, offered=content(None))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.end()
