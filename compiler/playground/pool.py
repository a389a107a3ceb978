"""The workers of a server: a fixed number of processes, each for one request at a time."""

from __future__ import annotations

import os
import queue
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from chimerac.compiler.playground import frames, limits


class BusyError(Exception):
    """No worker was free for limits.WAITING_S seconds."""


class GoneError(Exception):
    """The client has closed its connection before its answer was made."""


class LostError(Exception):
    """The worker has ended, has not answered in time, or could not be started. `Pool` starts another one in its place."""


class Worker:
    """A process that answers requests.

    Args:
        command, environment: how it is started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()

    def ask(self, request: bytes, seconds: float, client: socket.socket | None) -> bytes:
        """Return the answer to a request.

        Args:
            seconds: the limit that the worker sets for the request.
            client: the connection that the answer is for; if it is closed, the request is cancelled. None: the request cannot
                be cancelled.

        Raises GoneError, LostError.
        """
        try:
            frames.send(self._input, request)
            is_gone = not self._wait_for_answer(seconds + limits.GRACE_S, client)
            if is_gone:
                frames.send(self._input, frames.CANCEL)
                self._wait_for_answer(limits.GRACE_S, None)
            answer = frames.receive(self._output)
        except OSError:
            answer = None
        if answer is None:
            raise LostError
        if is_gone:
            raise GoneError
        return answer

    def _wait_for_answer(self, seconds: float, client: socket.socket | None) -> bool:
        """Return True when the answer begins or the worker has ended, and False when the client is gone.

        Raises LostError when the time is over.
        """
        deadline = time.monotonic() + seconds
        watched: list[int | socket.socket] = [self._output, *([client] if client else [])]
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(watched, [], [], left)
            if self._output in ready:
                return True
            if client in ready:
                if _is_closed(client):
                    return False
                watched = [self._output]  # the client sent more than its request, so the end of its connection cannot be seen
        raise LostError

    def end(self) -> None:
        """End the process. When its input is closed, it ends its child and itself. If it still runs after a second, kill it."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _is_closed(client: socket.socket | None) -> bool:
    """Return whether the other end has closed a connection. Data that has arrived stays there."""
    try:
        return client is not None and client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Pool:
    """limits.WORKERS workers. They are started with the pool, so they begin to load the compiler before the first request.

    Raises OSError if one of them cannot be started then.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._worker_arguments = (tuple(command), dict(os.environ if environment is None else environment))
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()  # None: a worker that has yet to be started
        self._all: list[Worker] = []
        try:
            for _ in range(limits.WORKERS):
                self._idle.put(self._start())
        except OSError:
            self.end()
            raise

    def ask(self, request: bytes, seconds: float, client: socket.socket | None = None) -> bytes:
        """Return a worker's answer. The arguments are those of `Worker.ask`. Raises BusyError, GoneError, LostError."""
        try:
            worker = self._idle.get(timeout=limits.WAITING_S)
        except queue.Empty:
            raise BusyError from None
        try:
            worker = worker or self._start()
            return worker.ask(request, seconds, client)
        except (LostError, OSError) as error:
            if worker is not None:
                self._all.remove(worker)
                worker.end()
            worker = None
            with suppress(OSError):
                worker = self._start()
            raise LostError from error
        finally:
            self._idle.put(worker)

    def _start(self) -> Worker:
        """Start a worker. Raises OSError if that is not possible."""
        worker = Worker(*self._worker_arguments)
        self._all.append(worker)
        return worker

    def end(self) -> None:
        """End all workers."""
        for worker in self._all:
            worker.end()
