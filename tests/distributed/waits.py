"""Two ranks, started without torchrun: rank 1 is slow, then stops. Rank 0 waits for rank 1 and prints how each wait ends.

It prints JSON: by wait, the message of its error and how many seconds it took. All waits run at the same time, each in
its own thread. No two of them use the same process group.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from chimerac.interpreter.errors import PeerLostError
from chimerac.interpreter.transport import rendezvous
from chimerac.interpreter.transport.gloo import Gloo, join
from chimerac.interpreter.transport.shared import LEAST_BYTES
from tests.distributed.programs import TWO_RANKS

LIMIT_S = 2.0


def main() -> None:
    rank = int(os.environ["RANK"])
    rendezvous.ANSWER_AFTER_TIMEOUT_S = 0.5
    join(timeout_s=60)  # the two ranks may start at different times
    rendezvous.rendezvous().limit = timedelta(seconds=LIMIT_S)
    dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(rendezvous.rendezvous().limit)
    transport = Gloo()
    transport.connect(TWO_RANKS["two pipes"].with_header(window=1))
    slow(transport)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)  # rank 1 has stopped by now
    results: dict[str, tuple[str, float]] = {}  # by wait: its error and its seconds; or "complete" and 0

    def attempt(name: str, wait: Callable[[], object]) -> None:
        begin = time.monotonic()
        try:
            wait()
            results[name] = "complete", 0
        except PeerLostError as error:
            results[name] = str(error), time.monotonic() - begin

    buffer = torch.zeros(3)
    small, large = (transport.launch_all_reduce((0, 1), torch.zeros(count)) for count in (3, LEAST_BYTES))
    waits: dict[str, Callable[[], object]] = {
        "receive": transport.recv(1, buffer).wait,
        "sends": lambda: [transport.send(1, torch.zeros(3)) for _ in range(2)],  # with window 1 the second send waits
        "all-reduce": small.wait,
        "all-reduce through shared memory": large.wait,
        "all-reduce over all ranks": lambda: transport.all_reduce(torch.zeros(1)),
        "connection": lambda: Gloo().connect(TWO_RANKS["1f1b"]),
    }
    threads = [threading.Thread(target=attempt, args=wait) for wait in waits.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(results), flush=True)
    os._exit(0)


def slow(transport: Gloo) -> None:
    """Complete an all-reduce that rank 1 launches only after a time longer than the limit of a wait.

    Rank 0 launches it at once and is busy for most of that time. So its wait is shorter than the limit, and succeeds.
    """
    transport.all_reduce(torch.zeros(1))
    part = torch.ones(1)
    time.sleep((LIMIT_S + 1) * transport.rank)
    pending = transport.launch_all_reduce((0, 1), part)
    time.sleep((LIMIT_S + 0.5) * (1 - transport.rank))
    pending.wait()
    assert part.item() == 2


if __name__ == "__main__":
    main()
