"""The folders of a run: what is below --work-dir, what is below --data-dir, and where the two come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.workloads import source_of

WRITTEN = ["--log-file", "a/run.jsonl", "--save-dir", "ckpt", "--trace", "t.json", "--tensorboard", "tb", "--export", "w.pt"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHIMERAC_WORK_DIR", "CHIMERAC_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


def written(words: list[str]) -> list[str]:
    """Return the paths of WRITTEN that a run with these words writes."""
    settings = parse_options([*words, *WRITTEN])
    return [str(path) for path in (settings.log_file, settings.save_dir, settings.trace, settings.tensorboard, settings.export)]


def test_without_folders_paths_are_those_of_the_command_line() -> None:
    assert written([]) == ["a/run.jsonl", "ckpt", "t.json", "tb", "w.pt"]
    settings = parse_options(["--data", "texts", "--tokenizer", "t.json", "--resume", "ckpt/x"])
    assert (settings.data, str(settings.tokenizer), settings.resume) == ("texts", "t.json", "ckpt/x")
    assert source_of(settings, "text").prepared_dir == Path("prepared")


def test_the_two_folders_are_independent() -> None:
    work = [f"/w/{name}" for name in ("a/run.jsonl", "ckpt", "t.json", "tb", "w.pt")]
    assert written(["--work-dir", "/w"]) == written(["--work-dir", "/w", "--data-dir", "/d"]) == work
    settings = parse_options(
        ["--data-dir", "/d", "--work-dir", "/w", "--data", "texts", "--tokenizer", "t.json", "--resume", "x"]
    )
    assert (settings.data, str(settings.tokenizer), settings.resume) == ("/d/texts", "/d/t.json", "/w/x")
    source = source_of(settings, "text")
    assert (source.data_dir, source.prepared_dir) == (Path("/d"), Path("/w/prepared"))
    assert settings.schedule == Path("schedules/chimera.sched"), "the schedule is neither data nor written"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hf:set", "hf:/d/set"),
        ("hf:/other/set", "hf:/other/set"),
        ("text:digits", "text:/d/digits"),
        ("/abs/file", "/abs/file"),
        *((name, name) for name in ("text", "digits", "cifar10")),
    ],
)
def test_relative_paths_of_data_are_below_the_data_folder_and_names_of_data_sets_stay(given: str, expected: str) -> None:
    assert parse_options(["--data-dir", "/d", "--data", given]).data == expected


def test_a_path_with_the_name_of_a_data_set_stays_a_path() -> None:
    for name in ("text", "digits", "cifar10"):
        assert parse_options(["--data", f"./{name}"]).data == parse_options(["--data", f"text:{name}"]).data == f"text:{name}"
    for name in ("auto", "no"):  # words of --resume
        assert parse_options(["--data-dir", "/d", "--data", name]).data == f"/d/{name}"


def test_the_words_auto_and_no_of_resume_are_no_paths() -> None:
    for word in ("auto", "no"):
        assert parse_options(["--work-dir", "/w", "--save-dir", "s", "--resume", word]).resume == word


def test_the_command_line_comes_before_variables_and_these_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text("work-dir: /file\ndata-dir: /file-data\nlog-file: run.jsonl\ndata: notes.txt\n")
    config = ["--config", str(tmp_path / "run.yaml")]
    assert str(parse_options(config).log_file) == "/file/run.jsonl" and parse_options(config).data == "/file-data/notes.txt"
    monkeypatch.setenv("CHIMERAC_WORK_DIR", "/variable")
    monkeypatch.setenv("CHIMERAC_DATA_DIR", "")  # an empty variable counts as not set
    assert str(parse_options(config).log_file) == "/variable/run.jsonl" and parse_options(config).data == "/file-data/notes.txt"
    assert str(parse_options([*config, "--work-dir", "/given"]).log_file) == "/given/run.jsonl"


def test_relative_folders_become_absolute_and_a_tilde_is_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/me")
    settings = parse_options(["--work-dir", "runs", "--data-dir", "~/sets", "--log-file", "l", "--data", "x", "--trace", "~/t"])
    assert (settings.work_dir, str(settings.log_file), settings.data) == (
        tmp_path / "runs",
        f"{tmp_path}/runs/l",
        "/users/me/sets/x",
    )
    assert str(settings.trace) == "/users/me/t"


def test_printed_settings_can_be_read_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--work-dir", "runs", "--log-file", "l", "--data-dir", "sets", "--data", "hf:x"]
    with pytest.raises(SystemExit):
        parse_options([*words, "--print-config"])
    (tmp_path / "c.yaml").write_text(capsys.readouterr().out)
    assert parse_options(["--config", str(tmp_path / "c.yaml")]) == parse_options(words)


def test_the_working_folder_is_made_or_refused(tmp_path: Path) -> None:
    make_plan(parse_options(["--work-dir", str(tmp_path / "a" / "b"), "--log-file", "run.jsonl", "-p", "D=2"]))
    assert os.listdir(tmp_path / "a") == ["b"]
    (tmp_path / "file").touch()
    with pytest.raises(ChimeraError, match=r"E811: the folder .*/file/x cannot be made"):
        make_plan(parse_options(["--work-dir", str(tmp_path / "file" / "x")]))
