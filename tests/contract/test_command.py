"""The command chimerac as users call it: files, standard streams, interrupts, help, colours, and wrong arguments."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from chimerac.chimera_ir.model import model_to_json
from chimerac.compiler import load_program
from chimerac.compiler.command.main import VERBS, main
from chimerac.compiler.descriptions import preset
from chimerac.compiler.library import find, names
from tests.helpers_command import COMMAND, SIGINT_ON
from tools import ROOT


def chimerac(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *argv], cwd=cwd, capture_output=True, text=True)


def test_it_works_outside_the_checkout(tmp_path: Path) -> None:
    by_name = chimerac("chimera", "-p", "D=2", cwd=tmp_path)
    assert (by_name.returncode, by_name.stderr) == (0, "")
    assert by_name.stdout.startswith("chimera-program 1\nschedule chimera  D=2 N=2 f=1\n")
    # The path that README shows means the file of the library if the current folder has no such file.
    assert chimerac("schedules/chimera.sched", "-p", "D=2", cwd=tmp_path).stdout == by_name.stdout


def test_findings_go_to_stderr_and_the_status_is_one(tmp_path: Path) -> None:
    completed = chimerac("chimera", "-p", "N=5", cwd=tmp_path)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.startswith("error[E210]")
    assert "\x1b[" not in completed.stderr  # no colour where stderr is no terminal


def test_wrong_usage_has_the_status_two(tmp_path: Path) -> None:
    assert chimerac(cwd=tmp_path).returncode == 2
    assert chimerac("nowhere.sched", cwd=tmp_path).returncode == 2


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    """chimerac ... | head -1, with a program larger than the buffer of a pipe."""
    process = subprocess.Popen(
        [*COMMAND, "gpipe", "-p", "D=8", "-p", "N=1500"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"chimera-program 1\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_an_interrupt_ends_without_a_message(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*COMMAND, "/dev/stdin"], cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=SIGINT_ON
    )
    assert process.stdin is not None and process.stderr is not None
    wait_until_stdin_is_open(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_an_interrupt_ends_quietly_while_the_command_is_loaded(tmp_path: Path) -> None:
    """The import of a fake numpy interrupts the process."""
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    completed = subprocess.run(COMMAND, cwd=tmp_path, env=environment, capture_output=True, preexec_fn=SIGINT_ON)
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, b"", b"")


def wait_until_stdin_is_open(pid: int) -> None:
    """Return once a process has opened /dev/stdin to read a schedule from it. Skip the test if /proc does not show that."""
    for _ in range(1000):
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            links = []
        if sum(link.startswith("pipe:") for link in links) > 3:  # stdin, stdout, stderr, and the opened /dev/stdin
            return
        time.sleep(0.01)
    pytest.skip("in 10 s /proc did not show that the process has opened /dev/stdin")


def test_a_schedule_may_come_from_stdin(tmp_path: Path) -> None:
    text = (ROOT / "schedules/1f1b.sched").read_text()
    completed = subprocess.run([*COMMAND, "/dev/stdin", "-p", "D=2"], cwd=tmp_path, input=text, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout == chimerac("1f1b", "-p", "D=2", cwd=tmp_path).stdout
    # `-` means stdin, for a schedule and for a program. Line ends of Windows and a byte order mark change nothing.
    for encoded in (text.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + text.encode()):
        result = subprocess.run([*COMMAND, "-", "-p", "D=2"], cwd=tmp_path, input=encoded, capture_output=True)
        assert result.stdout.decode() == completed.stdout
    read = subprocess.run([*COMMAND, "-"], cwd=tmp_path, input=completed.stdout, capture_output=True, text=True)
    assert read.stdout == completed.stdout
    wrong = subprocess.run([*COMMAND, "-"], cwd=tmp_path, input="schedule", capture_output=True, text=True)
    assert wrong.returncode == 1 and " --> <stdin>:1:" in wrong.stderr


@pytest.mark.parametrize("emit", ["streams", "json"])
def test_a_written_file_is_read_again(emit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.out"
    assert main(["chimera", "-p", "D=2", "--width", "2", "--emit", emit, "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["chimera", "-p", "D=2", "--width", "2", "--emit", emit]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert load_program(path).header.width == 2
    assert list(tmp_path.iterdir()) == [path]  # no temporary file is left


def test_an_existing_file_is_kept_after_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept"
    path.write_text("precious")
    assert main(["chimera", "-p", "N=5", "-o", str(path)]) == 1
    assert path.read_text() == "precious"
    assert main(["chimera", "-o", str(tmp_path / "none" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["chimera", "-o", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_dash_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1f1b", "-p", "D=2", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("chimera-program 1")


@pytest.mark.parametrize("columns", [26, 40, 80, 120, 400])
def test_the_list_fits_its_terminal(columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--list"]) == 0
    piped = capsys.readouterr().out
    assert len(piped.splitlines()) == len(names())  # one line each, for grep
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert [line.split()[0] for line in shown.splitlines() if line[0] != " "] == names()
    assert shown.split() == piped.split()
    assert (shown == piped) == (columns == 400)  # with fewer columns, lines are wrapped
    assert main(["--list", "--columns", "80"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_finding_names_a_file_of_the_library_by_a_path_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(find("chimera").name).resolve()
    unmet = "param N = D          require N >= 1 and N % D == 0"
    line, column = file.read_text().splitlines().index(unmet) + 1, unmet.index("require") + 1
    for cwd, name in ((tmp_path, str(file)), (file.parents[1], "schedules/chimera.sched"), (file.parent, "chimera.sched")):
        monkeypatch.chdir(cwd)
        # `explain` runs its example in a temporary folder, but shows paths relative to the current one.
        for words in (["chimera", "-p", "N=5"], ["schedules/chimera.sched", "-p", "N=5"], ["explain", "E210"]):
            main(words)
            assert f" --> {name}:{line}:{column}\n" in "".join(capsys.readouterr())
    monkeypatch.chdir(tmp_path)
    assert Path(find("chimera").name).read_text(encoding="utf-8") == find("chimera").text
    # If the current folder does not exist any more, no path can be relative to it: the name is the absolute path.
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert find("chimera").name == str(file)


def test_usage_names_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--nonsense"])
    usage, _ = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: chimerac SCHEDULE | tour | plan | ")
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    for verb in VERBS:
        assert re.search(rf"^       chimerac {verb} ", output, re.MULTILINE) and f" {verb} " in usage, verb
    for verb in VERBS:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: chimerac {verb} ")


def test_help_and_version_end_with_status_0_and_the_help_has_at_most_120_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as stop:
            main([option])
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "exit status: 0; 1 if the schedule or program has findings; 2" in out
    assert all(len(line) <= 120 for line in out.splitlines())


def test_colours_are_written_if_asked_for_and_not_if_no_color_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["chimera", "-p", "D=2", "--emit", "timeline", "--color", "always"])
    assert "\x1b[38;5;" in capsys.readouterr().out
    main(["chimera", "-p", "N=5", "--color", "always"])
    assert "\x1b[31;1m" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    main(["chimera", "-p", "D=2", "--emit", "timeline"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_schedule_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.sched"
    text = "schedule x ranks 1 stages 1 pipe p { stage s on rank 0 micro_batches 1 }\n"
    text += "order ticks { F(s, m) at 0 B(s, m) at 1 }\n"
    mine.write_text(text)
    assert main([str(mine), "-o", str(mine)]) == 2
    assert "would write over the schedule itself" in capsys.readouterr().err and mine.read_text() == text


def test_the_output_of_a_command_does_not_replace_a_file_that_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, cut, model, profile = (str(tmp_path / name) for name in ("mine.sched", "cut.json", "m.json", "p.json"))
    Path(mine).write_bytes((ROOT / "schedules/chimera.sched").read_bytes())
    Path(model).write_text(model_to_json(preset("gpt-nano").description(4)))
    Path(profile).write_bytes((ROOT / "compiler/explain/examples/profile.json").read_bytes())  # of gpt-nano
    size = ("-p", "D=2", "-p", "N=2")
    planned = ("--ranks", "2", "--memory", "1GB", "--batch", "4")
    assert main(["partition", mine, *size, "--model", model, "-o", cut]) == 0
    before = {path: Path(path).read_bytes() for path in (mine, cut, model, profile)}
    for words, what in (
        (["partition", mine, *size, "--model", model, "-o", mine], "the schedule itself"),
        (["partition", mine, *size, "--model", model, "-o", model], "the file of --model"),
        (["compare", "gpipe", mine, *size, "-o", mine], "the schedule itself"),
        ([mine, *size, "--model", model, "--partition", cut, "--emit", "json", "-o", cut], "the file of --partition"),
        ([mine, *size, "--model", model, "--emit", "json", "-o", model], "the file of --model"),
        (["plan", mine, *planned, "--model", model, "--profile", profile, "-o", mine], "the schedule itself"),
        ([mine, *size, "--model", model, "--profile", profile, "--emit", "report", "-o", profile], "the file of --profile"),
    ):
        capsys.readouterr()
        assert main(words) == 2
        assert f"would write over {what}" in capsys.readouterr().err
        assert {path: Path(path).read_bytes() for path in before} == before


def test_if_stderr_is_closed_its_messages_do_not_go_to_stdout(tmp_path: Path) -> None:
    words = ("partition", "gpipe", "-p", "D=2", "--model", "gpt-nano", "-o", "cut.json")
    line = f"{shlex.join((*COMMAND, *words))} 2>&-"
    completed = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert completed.returncode == 0 and completed.stdout and "wrote" not in completed.stdout


# int() reads all of these values but the last one: it takes up to 4300 digits, underscores, and \u0661, the Arabic digit one.
@pytest.mark.parametrize("option", ["--width", "--columns", "--micro-batch", "--seq-len"])
@pytest.mark.parametrize("value", ["9" * 4299, "1_0", "\u0661", "two"])
def test_only_an_integer_of_at_most_18_digits_is_taken_as_a_number(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chimera", "-p", "D=16", f"{option}={value}"])
    assert ended.value.code == 2
    shown = value if len(value) < 40 else f"{value[:37]}..."
    assert f"argument {option}: '{shown}' is not an integer of at most 18 digits" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_a_finding(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run([*COMMAND, "chimera"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 2
    assert "error[E003]: the output cannot be written: no space left on device" in run.stderr and "Traceback" not in run.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("fmt - < ugly.sched > /dev/full", 2, "error[E003]: the output cannot be written: no space left on device"),
        ("watch ugly.sched > /dev/full", 2, "error[E003]: the output cannot be written: no space left on device"),
        ("serve --no-browser --port 0 > /dev/full", 2, "error[E003]: the output cannot be written: no space left on device"),
        ("fmt --check ugly.sched > /dev/full", 2, "error[E003]: the output cannot be written: no space left on device"),
        ("fmt ugly.sched >&-", 2, "error[E003]: the output cannot be written: stdout is closed"),
        ("chimera >&-", 2, "error[E003]: the output cannot be written: stdout is closed"),
        ("explain E401 >&-", 2, "error[E003]: the output cannot be written: stdout is closed"),
        ("- <&-", 2, "error[E001]: <stdin> is closed"),
        ("nosuch 2> /dev/full", 2, ""),
        ("nosuch 2>&-", 2, ""),
    ],
)
def test_full_or_closed_streams_cause_no_traceback(command: str, status: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "ugly.sched").write_text((ROOT / "schedules/1f1b.sched").read_text() + "\n\n\n")
    line = f"{shlex.join(COMMAND)} {command}"
    completed = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (completed.returncode, completed.stdout) == (status, "")
    assert completed.stderr.startswith(message) and "Traceback" not in completed.stderr and "Exception" not in completed.stderr


def test_an_empty_name_of_a_schedule_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([""]) == 2
    assert "the name of the schedule is empty" in capsys.readouterr().err


def test_half_of_a_name_value_pair_is_refused_with_an_example_of_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, example in ((["-p", "=3"], "-p D=4"), (["--cost", "=3"], "--cost F=4"), (["--cost", "I"], "--cost I=4")):
        assert main(["chimera", "--emit", "report", *arguments]) == 2
        assert f"expected NAME=VALUE, for instance {example}\n" in capsys.readouterr().err


def test_the_option_columns_is_refused_without_a_drawing(capsys: pytest.CaptureFixture[str]) -> None:
    for words, readers in ((["chimera"], "--list and --emit timeline"), (["compare", "gpipe"], "--emit timeline")):
        assert main([*words, "--columns", "80", "--emit", "json"]) == 2
        assert f"E002]: --columns is for {readers}" in capsys.readouterr().err


def test_a_timeline_needs_enough_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["compare", "gpipe"], ["chimera"]):
        assert main([*words, "--emit", "timeline", "--columns", "3"]) == 2
        assert "at least 20" in capsys.readouterr().err


def test_a_wrong_value_is_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["1f1b", "--width", "\x01"])
    shown = capsys.readouterr().err
    assert end.value.code == 2 and "'\\x01' is not an integer" in shown and "\x01" not in shown
