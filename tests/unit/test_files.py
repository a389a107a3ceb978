"""Files: which paths and contents are refused, what writing keeps, and that a refused write changes nothing."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chimerac.chimera_ir import files, limits
from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import read, write
from chimerac.compiler.command.main import main
from chimerac.compiler.library import find
from chimerac.interpreter.launch.record import Record, check_output
from tools import ROOT

NOBODY = 65534  # the id of a user and a group
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # so that processes in other folders find the packages
# Paths that can be neither read nor written from the folder that the fixture `here` makes the current one.
NAMES = [".", "/", "..", "new/", "new/.", "x" * 256, "x" * 3000, "none/x", "file/x", "loop", "a\0b"]


def code(caught: pytest.ExceptionInfo[ChimeraError]) -> str:
    [d] = caught.value.diagnostics
    return d.code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a new folder the current one, with a file and a link that leads to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_paths_that_cannot_be_written_are_refused(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(os.listdir(here))
    with pytest.raises(ChimeraError) as caught:
        write("new\n", name)
    assert code(caught) == "E003"
    assert main(["1f1b", "-p", "D=2", "-o", name]) == 2
    assert "cannot be written" in capsys.readouterr().err
    if not name.startswith("new"):  # Path drops the end of "new/" and of "new/.", so that a file could be written
        for refused in (lambda: check_output(Path(name), "--trace"), lambda: Record(rank=0, iterations=1, log=Path(name))):
            with pytest.raises(ChimeraError) as caught:
                refused()
            assert code(caught) == "E811"
    assert sorted(os.listdir(here)) == before and Path("file").read_text() == "old\n"


@pytest.mark.parametrize("name", [*NAMES, "x" * 251, "none"])  # 251 characters: too long if .json or .sched is appended
def test_paths_that_cannot_be_read_are_refused(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for reader in (read, find):
        with pytest.raises(ChimeraError) as caught:
            reader(name)
        assert code(caught) == "E001"
    for argv in ([name], ["fmt", name], ["fmt", "--check", name]):
        assert main(argv) == 2
        assert "error[E001]" in capsys.readouterr().err
    # --model takes the path of a file (E001), or the name of a preset (E801).
    status, expected = (2, "E001") if "/" in name or os.path.lexists(name) else (1, "E801")
    assert main(["1f1b", "--emit", "report", "--model", name]) == status
    assert f"error[{expected}]" in capsys.readouterr().err


@pytest.mark.parametrize("length", [1, 240, 251, 255])
def test_short_and_long_names_are_written_and_read(length: int, here: Path) -> None:
    for text in ("a\n", "b\n"):
        write(text, "x" * length)
        assert read("x" * length) == text
    assert sorted(os.listdir(here)) == ["file", "loop", "x" * length]


def test_each_temporary_file_is_new_and_has_another_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the name of the temporary file exists already, for instance as a link that someone else made, nothing is written."""
    Path("victim").write_text("kept\n")
    Path(".planted").symlink_to("victim")
    with monkeypatch.context() as changed, pytest.raises(ChimeraError):
        changed.setattr(files.secrets, "token_hex", lambda _: "planted")
        write("new\n", "file")
    assert Path("victim").read_text() == "kept\n" and Path("file").read_text() == "old\n"
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(path) or real(path, *rest))
    for _ in range(2):
        write("new\n", "file")
    assert len(set(opened)) == 2


def test_a_link_stays_and_leads_to_the_new_content(here: Path) -> None:
    Path("folder").mkdir()
    Path("folder/target").write_text("old\n")
    Path("link").symlink_to("folder/target")
    Path("dangling").symlink_to("folder/made")
    for name in ("link", "dangling"):
        write("new\n", name)
        assert Path(name).is_symlink() and Path(name).read_text() == "new\n"
    assert sorted(os.listdir("folder")) == ["made", "target"]


def test_permissions_stay_and_those_of_new_files_follow_the_umask(here: Path) -> None:
    before = os.umask(0o027)
    try:
        write("a\n", "made")
        os.chmod("file", 0o604)
        write("a\n", "file")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(name).st_mode) for name in ("made", "file")] == [0o640, 0o604]


def test_all_hard_links_lead_to_the_new_content(here: Path) -> None:
    os.link("file", "other")
    write("new\n", "file")
    assert Path("other").read_text() == "new\n" and os.path.samefile("file", "other")


def test_a_file_in_a_folder_that_is_not_writable_is_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: str, *rest: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "open", deny)  # so that no temporary file can be made
    write("new\n", "file")
    assert Path("file").read_text() == "new\n"


@pytest.mark.root
def test_another_user_writes_only_what_it_may() -> None:
    """The user NOBODY may write the file `open`, but not `closed`, and may make no file in the folder.

    Then `open` is given to NOBODY, and root writes it.
    """
    folder = Path("/tmp") / f"chimera-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        for name, mode in (("open", 0o666), ("closed", 0o444)):
            (folder / name).write_text("old\n")
            (folder / name).chmod(mode)
        os.seteuid(NOBODY)
        try:
            write("new\n", str(folder / "open"))
            for name in ("closed", "made"):
                with pytest.raises(ChimeraError):
                    write("new\n", str(folder / name))
        finally:
            os.seteuid(0)
        status = os.stat(folder / "open")
        assert (folder / "open").read_text() == "new\n" and (status.st_uid, status.st_mode & 0o777) == (0, 0o666)
        os.chown(folder / "open", NOBODY, NOBODY)
        write("root's\n", str(folder / "open"))
        assert os.stat(folder / "open").st_uid == NOBODY and (folder / "open").read_text() == "root's\n"
        assert (folder / "closed").read_text() == "old\n" and sorted(os.listdir(folder)) == ["closed", "open"]
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_a_pipe_a_device_and_stdout_are_written_to(here: Path) -> None:
    os.mkfifo("pipe")
    script = "import sys; from chimerac.chimera_ir.files import write; write('new\\n', sys.argv[1])"
    command = [sys.executable, "-c", script]
    writer = subprocess.Popen([*command, "pipe"], env=ENVIRONMENT)
    assert Path("pipe").read_text() == "new\n" and writer.wait() == 0 and stat.S_ISFIFO(os.stat("pipe").st_mode)
    write("nothing\n", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert subprocess.run([*command, "/dev/stdout"], env=ENVIRONMENT, capture_output=True, text=True).stdout == "new\n"
    with open("all", "w") as file:
        file.write("before\n")
        file.flush()
        subprocess.run([*command, "/dev/stdout"], env=ENVIRONMENT, stdout=file, check=True)
    assert Path("all").read_text() == "before\nnew\n"
    assert subprocess.run([*command, "/dev/full"], env=ENVIRONMENT, capture_output=True, text=True).returncode == 1


def test_characters_that_stdout_cannot_encode_are_written_as_utf_8(here: Path) -> None:
    Path("é.sched").write_text("# é\nschedule  x\n")
    for argv in (["fmt", "-"], ["fmt", "--check", "é.sched"], ["fmt", "é.sched"]):
        env = ENVIRONMENT | {"PYTHONIOENCODING": "ascii"}
        command = [sys.executable, "-m", "chimerac", *argv]
        completed = subprocess.run(command, env=env, input=Path("é.sched").read_bytes(), capture_output=True)
        assert "é" in completed.stdout.decode() and completed.stderr == b""


def test_a_model_description_on_a_full_disk_is_a_finding(here: Path) -> None:
    pytest.importorskip("torch")
    command = f"{sys.executable} -m chimerac.models describe --model gpt-nano"
    completed = subprocess.run(f"{command} > /dev/full", shell=True, env=ENVIRONMENT, capture_output=True, text=True)
    assert completed.returncode == 1 and "error[E003]" in completed.stderr and "Traceback" not in completed.stderr


def test_a_file_above_the_limit_is_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILE", 1000)
    Path("large").write_text("x" * 1001)
    for name in ("large", "/dev/zero"):
        with pytest.raises(ChimeraError, match="1000"):
            read(name)


@pytest.mark.parametrize(("data", "text"), [(b"\xef\xbb\xbfa\r\nb\rc\n", "a\nb\nc\n"), (b"a\0b", "a\0b")])
def test_a_text_is_read_without_its_byte_order_mark_and_with_plain_line_ends(data: bytes, text: str, here: Path) -> None:
    Path("data").write_bytes(data)
    assert read("data") == text


@pytest.mark.parametrize("data", [b"\xff", b"a\xed\xa0\x80"], ids=["byte", "half of a surrogate pair"])
def test_bytes_that_are_no_utf_8_are_refused(data: bytes, here: Path) -> None:
    Path("data").write_bytes(data)
    with pytest.raises(ChimeraError, match="is not UTF-8"):
        read("data")


def test_the_place_of_a_wrong_byte_counts_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + b"ab")
        assert read(path) == "ab"
        path.write_bytes(mark + b"ab\xff")
        with pytest.raises(ChimeraError, match=f"byte {len(mark) + 2} is not UTF-8"):
            read(path)
