"""What a process of a run does first, and how it reacts to signals: Ctrl-C, and SIGTERM as a request to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from chimerac.interpreter.launch import startup, stopping


def test_a_rank_ends_at_once_if_torchrun_has_ended_before_it_started() -> None:
    """Port 1 refuses connections, like the store of a torchrun that has ended."""
    code = "from chimerac.interpreter.launch.startup import begin_process; begin_process(); print('alive')"
    agent = {"RANK": "0", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ | agent | address, capture_output=True, text=True)
    # The store is asked only on Linux. Elsewhere a thread watches the parent, which is still there.
    expected = (1, "") if sys.platform == "linux" else (0, "alive\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (*expected, "")


def test_begin_process_imports_no_torch_no_numpy_and_no_compiler() -> None:
    code = (
        "import sys; from chimerac.interpreter.launch.startup import begin_process; begin_process()\n"
        "print([m for m in sys.modules if m.startswith(('torch', 'numpy', 'chimerac.compiler'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_ctrl_c_prints_one_line_and_ends_a_process_that_a_user_started() -> None:
    code = (
        "import os, signal; from chimerac.interpreter.launch.startup import begin_process; begin_process()\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    assert startup.INTERRUPTED == 130


def test_sigterm_is_a_request_to_stop_only_inside_accepting_stop_requests() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notified = threading.Event()
    with stopping.accepting_stop_requests(notified.set):
        assert not stopping.stop_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert notified.wait(10) and stopping.stop_requested()
    assert signal.getsignal(signal.SIGTERM) == before
    with stopping.accepting_stop_requests():
        assert not stopping.stop_requested()


def test_a_second_sigterm_ends_the_process_at_once() -> None:
    code = (
        "import os, signal, threading\n"
        "from chimerac.interpreter.launch.stopping import accepting_stop_requests\n"
        "came = threading.Event()\n"
        "with accepting_stop_requests(came.set):\n"
        "    os.kill(os.getpid(), signal.SIGTERM); came.wait()\n"
        "    os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == stopping.STOPPED


def test_sigterm_to_a_forked_process_ends_only_the_forked_process() -> None:
    """A worker of a pool is such a process. The end of the context waits for none: the second one is still alive then."""
    code = (
        "import os, signal\n"
        "from chimerac.interpreter.launch.stopping import accepting_stop_requests, stop_requested\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.pause(); os._exit(3)\n"
        "    return child\n"
        "with accepting_stop_requests():\n"
        "    first, second = fork(), fork()\n"
        "    os.kill(first, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]), stop_requested(), flush=True)\n"
        "os.kill(second, signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{-signal.SIGTERM} False\n"), ended.stderr
