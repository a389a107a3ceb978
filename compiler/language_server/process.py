"""The worker process as the server sees it: one request at a time, each within a time limit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from chimerac.chimera_ir.host import ONE_THREAD

SECONDS = 10.0  # a request that takes longer is stopped
MAX_REPLY = 2**26  # the most bytes of a reply


class Worker:
    """A process that compiles and formats texts (worker.py). A request starts it if it is not running."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def ask(self, kind: str, name: str, text: str) -> dict[str, Any]:
        """Return the worker's reply to a request.

        Args:
            kind: 'check' or 'format'.

        Return {"stopped": the reason} if the process cannot start, takes too long, needs too much memory, ends without a whole
        reply, or has a reply longer than MAX_REPLY. Cancelling this call during the request ends the process. So a newer text
        need not wait for an older one.
        """
        async with self._lock:
            try:
                request = json.dumps({"kind": kind, "name": name, "text": text}).encode() + b"\n"
                reply = await asyncio.wait_for(self._exchange(request), self.seconds)
                answer: dict[str, Any] = json.loads(reply)
                return answer
            except TimeoutError:
                await self.end()
                return {"stopped": f"it takes longer than {self.seconds:g} s"}
            except (OSError, ValueError):  # it cannot start or has ended, or its reply is cut off or too long
                await self.end()
                return {"stopped": "the process that compiles it gave no whole reply"}
            except asyncio.CancelledError:
                self.kill()
                raise

    async def _exchange(self, request: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
            command = (sys.executable, "-m", "chimerac.compiler.language_server.worker")
            environment = {**os.environ, **ONE_THREAD}
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=nothing, limit=MAX_REPLY, env=environment
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        return await self._process.stdout.readline()

    def kill(self) -> None:
        """End the process, if there is one, without waiting for its end."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._process = None

    async def end(self) -> None:
        """End the process, if there is one, and wait for its end."""
        process = self._process
        self.kill()
        if process is not None:
            await process.wait()
