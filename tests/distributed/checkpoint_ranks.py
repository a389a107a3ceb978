"""Two ranks train until one of them dies; torchrun starts both again, and they go on from the last checkpoint.

Usage: PYTHONPATH=. torchrun --nproc-per-node 2 --max-restarts 1 tests/distributed/checkpoint_ranks.py OUT

After the first start rank 1 kills itself. After the second start the ranks train three times: they finish the run, go
on from one of its checkpoints under another schedule and width, and train once without a pause. The checkpoints are in
the folder `run` beside OUT.

OUT gets JSON. For each of these three trainings it has, from rank 0, how many iterations were done when the training
began, its losses and its messages. `equal` says for each rank whether the run that died has, at its end, the weights
and the optimizer state of the training without a pause.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from chimerac.interpreter.training.checkpoints import CheckpointSettings
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from tests.helpers_checkpoints import compiled, training

EARLIEST_KILL = 8  # rank 1 kills itself after this number of iterations at the earliest
PIPELINE, REPLICAS = compiled("chimera", width=1, D=2, N=4), compiled("1f1b", width=2, D=1, N=2)


def main() -> None:
    """Train as one rank."""
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    join(timeout_s=30)
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    run = out.parent / "run"

    def die(transport: Transport, done: int, loss: float) -> None:
        """Kill rank 1 once the checkpoint of iteration 6 is complete: after iteration 9 at the latest.

        The checkpoint of iteration 9 is begun only when that of iteration 6 is complete.
        """
        if (restarts, transport.rank) == (0, 1) and done >= EARLIEST_KILL and (run / "iteration_00000006").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    save = CheckpointSettings(run, every=3, asynchronous=True)
    # In the first start this call does not return: the ranks end.
    restarted = training(PIPELINE, save, source="no", restarts=restarts, after=die)(Gloo())
    no_saves = CheckpointSettings()
    other_schedule = training(REPLICAS, no_saves, source=str(run / "iteration_00000009"))(Gloo())
    whole = training(PIPELINE, no_saves)(transport := Gloo())
    equal = all(t.equal(whole.tensors[name]) for name, t in restarted.tensors.items())
    equal_ranks = transport.all_gather(json.dumps(equal))
    if transport.rank == 0:
        trainings = {"restarted": restarted, "other schedule": other_schedule, "whole": whole}
        results = {name: [t.start, t.losses, t.messages] for name, t in trainings.items()}
        out.write_text(json.dumps(results | {"equal": [json.loads(text) for text in equal_ranks]}))
    leave()


if __name__ == "__main__":
    main()
