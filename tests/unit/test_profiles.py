"""Profiles: their JSON form, those of published hardware, --profile, --link and --precision, and the drawing of compare."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.model import model_to_json
from chimerac.chimera_ir.profile import Profile, profile_from_json, profile_to_json
from chimerac.compiler.command.main import main
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.profiles import find_profile, link_from_text, profile_names
from tests.helpers import EXAMPLE_PROFILE
from tools import profiles

NANO = ("-p", "D=2", "--model", "gpt-nano", "--profile", str(EXAMPLE_PROFILE))
BERT = ("chimera", "-p", "D=4", "-p", "N=4", "--model", "bert48", "--profile", "p100")


def example() -> Profile:
    return profile_from_json(EXAMPLE_PROFILE.read_text())


def test_a_profile_is_the_same_after_writing_and_reading() -> None:
    text = profile_to_json(example())
    assert text == EXAMPLE_PROFILE.read_text()
    assert profile_from_json(text) == example()


@pytest.mark.parametrize(
    ("old", "new", "code", "fact"),
    [
        (
            '"forward_s": 0.001',
            '"forward_s": -0.001',
            "E713",
            "sizes[0].layers[1].forward_s: expected 0.0 or more, found -0.001",
        ),
        ('"forward_s": 0.001', '"forward_s": NaN', "E713", "should be a finite number"),
        ('"forward_s": 0.001', '"forward": 0.001', "E713", "did you mean 'forward_s'?"),
        ('"ranks": 2', '"ranks": 1', "E713", "all_reduce[0].ranks: expected 2 or more"),
        ('"samples": 4', '"samples": 2', "E713", "sizes[1].samples: 2 follows 2"),
        ('"bytes_per_s": 1000000000.0', '"bytes_per_s": 0', "E713", "point_to_point.bytes_per_s"),
        ('"hardware":', '"hardwares":', "E713", "did you mean 'hardware'?"),
        ('"version": 1', '"version": 2', "E712", "'version' is 2, expected 1"),
        ('"model":', "", "E711", "is not JSON"),
        # Of the first size, the times of all layers but the first are in an unknown field.
        (' "activation_bytes": 3072},\n ', ' "activation_bytes": 3072}],"x": [\n ', "E713", ""),
    ],
)
def test_wrong_files_are_findings(old: str, new: str, code: str, fact: str) -> None:
    text = EXAMPLE_PROFILE.read_text().replace(old, new, 1)
    with pytest.raises(ChimeraError) as error:
        profile_from_json(text, "p.json")
    assert error.value.diagnostics[0].code == code and fact in str(error.value)


def test_a_layer_without_times_and_a_number_of_ranks_given_twice_are_findings() -> None:
    file = json.loads(EXAMPLE_PROFILE.read_text())
    file["sizes"][1]["layers"].pop()
    with pytest.raises(ChimeraError, match=r"E713: <json>: sizes\[1\].layers: 3 layers have times, and the profile has 4"):
        profile_from_json(json.dumps(file))
    file["sizes"].pop()  # the size with the missing layer
    file["all_reduce"] *= 2
    with pytest.raises(ChimeraError, match=r"E713: <json>: all_reduce\[1\]: 2 ranks were given before"):
        profile_from_json(json.dumps(file))


def test_the_shipped_profiles_are_those_of_the_tool() -> None:
    folder = Path(profiles.FOLDER)
    assert profiles.texts() == {f.name: f.read_text() for f in folder.iterdir()}
    assert [f"{name}.json" for name in profile_names()] == sorted(profiles.texts())


@pytest.mark.parametrize(("name", "forward_ms", "backward_ms"), [("p100", 16.10, 26.95), ("v100", 10.39, 16.28)])
def test_the_published_layer_has_its_published_time(name: str, forward_ms: float, backward_ms: float) -> None:
    """A block of bert48 is a layer of BERT-large; the times are those of 32 samples of 128 tokens."""
    block = find_profile(name, "bert48").times(samples=32)[5]  # layer 5 is one of the equal blocks
    assert block.forward_s * 1e3 == pytest.approx(forward_ms, rel=1e-6)
    assert block.backward_s * 1e3 == pytest.approx(backward_ms, rel=1e-6)
    # 12 w^2 t + 2 w t^2 multiply-adds in a layer of width w for a sample of t tokens
    bert, gpt = (12 * w * w * t + 2 * w * t * t for w, t in ((1024, 128), (1280, 632)))
    ratio = find_profile(name, "gpt2-64").times(samples=1)[5].forward_s / (forward_ms / 32 / 1e3)
    assert ratio == pytest.approx(gpt / bert, rel=1e-3)


def test_a_profile_is_found_by_its_hardware_its_name_or_its_path() -> None:
    assert find_profile("p100", "bert48") == find_profile("bert48-p100", "gpt-nano")
    assert find_profile("p100.json", "bert48") == find_profile("bert48-p100.json", "gpt-nano") == find_profile("p100", "bert48")
    assert find_profile(str(EXAMPLE_PROFILE), "gpt-nano") == example()
    with pytest.raises(ChimeraError, match="E716: there is no profile 'p10' of bert48"):
        find_profile("p10", "bert48")
    with pytest.raises(ChimeraError, match="E001"):
        find_profile("p10.json", "bert48")


def test_a_file_of_the_user_goes_before_a_profile_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p100.json").write_text(EXAMPLE_PROFILE.read_text())
    monkeypatch.chdir(tmp_path)
    assert find_profile("p100.json", "bert48") == example()


@pytest.mark.parametrize(
    ("text", "latency_s", "bytes_per_s"),
    [
        ("10us,12GB/s", 1e-5, 12e9),
        ("0.5ms, 1GiB/s", 5e-4, 2**30),
        ("0s,100B/s", 0, 100),
        ("3ns,2.5MB/s", 3e-9, 2.5e6),
        ("1µs,1KiB/s", 1e-6, 1024),
    ],
)
def test_a_link_is_a_latency_and_a_bandwidth_with_units(text: str, latency_s: float, bytes_per_s: float) -> None:
    link = link_from_text(text)
    assert (link.latency_s, link.bytes_per_s) == (pytest.approx(latency_s), pytest.approx(bytes_per_s))


@pytest.mark.parametrize(
    "text", ["10us", "10us,0GB/s", "1us,1iB/s", "10,12", "-1us,1GB/s", "1us,1GB", "1us;1GB/s", "", "9999s,1B/s", "1us,1GB/s,2"]
)
def test_wrong_links_are_findings(text: str) -> None:
    with pytest.raises(ChimeraError, match="E717"):
        link_from_text(text)


def line_of(report: str, name: str) -> str:
    """Return the first line of a report that begins with this name."""
    return next(line for line in report.splitlines() if line.startswith(name))


def bytes_of_rank_0(report: str) -> list[int]:
    """Return the row of rank 0 in the memory table of a report: weights, gradients, optimizer and so on, in bytes."""
    row = report.split("memory of")[1].splitlines()[2]  # below the title and the names of the columns
    return [int(x.replace(",", "")) for x in row.split()[1:]]


def test_the_report_is_in_milliseconds_and_has_the_closed_equation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1f1b", *NANO, "-p", "N=2", "--emit", "report"]) == 0
    out = capsys.readouterr().out
    # The stages take 2.2 and 3 ms for F, and twice that for B. A message has 4 samples x 128 tokens x 32 numbers of 4 bytes. At
    # 10^6 bytes in a millisecond, after a latency of 0.01 ms, it takes 0.07554 ms.
    assert line_of(out, "costs") == "costs           F=2.2 to 3  B=4.4 to 6  message=0.07554   in ms"
    assert line_of(out, "makespan") == "makespan        24.75 ms"
    assert line_of(out, "critical path") == "critical path   24.75 ms = 3 FWD 8.2, 2 messages 0.1511, 3 BWD 16.4"
    assert line_of(out, "closed equation").startswith("closed equation 27.45 ms = 3 forwards 9 + 3 backwards 18 + 6 messages")
    assert main(["1f1b", *NANO, "-p", "N=2", "--emit", "report", "--link", "1ms,1GB/s"]) == 0
    assert line_of(capsys.readouterr().out, "costs") == "costs           F=2.2 to 3  B=4.4 to 6  message=1.066   in ms"


def test_the_optimizer_of_the_profile_counts_and_another_one_replaces_it(capsys: pytest.CaptureFixture[str]) -> None:
    def optimizer_bytes(*words: str) -> int:
        """Return what rank 0 holds as optimizer state, from the report."""
        assert main(["1f1b", *NANO, "--emit", "report", *words]) == 0
        _, _, optimizer, *_ = bytes_of_rank_0(capsys.readouterr().out)
        return optimizer

    gradients = (12288 + 12352) * 4  # bytes: rank 0 has the parameters of the embedding and of one block, in float32
    assert optimizer_bytes() == optimizer_bytes("--optimizer", "adamw") == 2 * gradients
    assert optimizer_bytes("--optimizer", "sgd") == 0


def test_half_precision_halves_bytes_and_keeps_a_copy_of_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    def needs(*words: str) -> list[int]:
        """Return the bytes of rank 0, from the report."""
        assert main(["1f1b", "-p", "D=2", "--model", "gpt-nano", "--optimizer", "adamw", "--emit", "report", *words]) == 0
        return bytes_of_rank_0(capsys.readouterr().out)

    full, half = needs(), needs("--precision", "bfloat16")
    weights, gradients, optimizer, activations, buffers, values, sends, workspace, _ = half
    halved = [weights, gradients, activations, buffers, values, sends, workspace]
    assert halved == [size // 2 for size in (*full[:2], *full[3:8])]
    assert optimizer == 6 * gradients  # 12 bytes of each parameter: two numbers of state and the weight, in float32


def test_timelines_paths_partitions_and_comparisons_take_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BERT, "--emit", "timeline", "--columns", "80"]) == 0
    assert "times in ms" in capsys.readouterr().out
    assert main([*BERT, "--emit", "path"]) == 0
    path = capsys.readouterr().out.splitlines()
    assert path[0].split() == ["start", "end", "rank", "step"] and path[1].split()[0] == "0" and len(path) > 10
    assert main(["partition", *BERT]) == 0
    assert "slowest stage" in capsys.readouterr().out
    assert main(["compare", "1f1b", *BERT, "--width", "2", "--emit", "json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["unit"] == "ms" and "costs" not in comparison
    rows = {row["schedule"]: row for row in comparison["schedules"]}
    assert main([*BERT, "--width", "2", "--emit", "report"]) == 0
    assert f"makespan        {rows['chimera']['makespan']:.4g} ms" in capsys.readouterr().out
    assert rows["chimera"]["exposed"] > rows["1f1b"]["exposed"] > 0


def test_a_profile_of_sequences_fits_a_description_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile's sequence length replaces that of a preset. A file keeps its own, and is not refused."""
    (tmp_path / "m.json").write_text(model_to_json(find_model("gpt-nano", lambda b: b)))
    assert main(["1f1b", *NANO, "-p", "N=2", "--emit", "report"]) == 0
    expected = capsys.readouterr().out
    words = ["--model", str(tmp_path / "m.json"), "--profile", str(EXAMPLE_PROFILE)]
    assert main(["1f1b", "-p", "D=2", "-p", "N=2", "--emit", "report", *words]) == 0
    assert capsys.readouterr().out == expected
    assert main(["compare", "1f1b", "-p", "D=2", *words]) == 0


@pytest.mark.parametrize(
    ("words", "code"), [(["--profile", "bert48-p100"], "E714"), (["--profile", str(EXAMPLE_PROFILE), "--link", "fast"], "E717")]
)
def test_a_wrong_profile_or_link_is_one_finding_of_compare(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "1f1b", "chimera", "-p", "D=2", "--model", "gpt-nano", *words]) == 1
    out, err = capsys.readouterr()
    assert not out and err.count(code) == 1


def test_where_no_schedule_can_run_with_the_profile_times_are_still_in_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "1f1b", *NANO, "--micro-batch", "64"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "times in ms, by the profile" in out and "1f1b      E715" in out
    assert main([*words, "--emit", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["unit"] == "ms"


def test_compare_draws_all_schedules_to_one_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "chimera", "1f1b", "gems", "-p", "D=4", "-p", "N=4", "--emit", "timeline", "--columns", "80"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("rank 0 |")]
    assert max(map(len, lines)) == 80
    widths = [len(line) - len("rank 0 ||") for line in lines]  # of the part that shows time
    makespans = [int(x) for x in re.findall(r"makespan (\d+)", out)]
    assert [round(max(widths) * makespan / max(makespans)) for makespan in makespans] == widths
    # Dots are idle time. The makespan of chimera is 16, of which a rank computes 12. Rounding moves a few columns.
    assert lines[0].count(".") / widths[0] == pytest.approx(4 / 16, abs=0.06)


@pytest.mark.parametrize(
    ("words", "status", "fact"),
    [
        (["chimera", "--profile", "p100"], 2, "--profile needs a model"),
        ([*BERT, "--cost", "F=2", "--emit", "report"], 2, "--profile and --cost both say how long tasks take"),
        ([*BERT], 2, "--profile is for --emit perfetto, --emit timeline, "),
        (
            ["chimera", "-p", "D=4", "--model", "bert48", "--link", "1us,1GB/s", "--emit", "report"],
            2,
            "--link replaces the links of a profile",
        ),
        ([*BERT, "--link", "fast", "--emit", "report"], 1, "E717"),
        ([*BERT, "--seq-len", "64", "--emit", "report"], 1, "has times for sequences of 128 tokens, and --seq-len is 64"),
        ([*BERT, "--precision", "bfloat16", "--emit", "report"], 1, "has times in float32, and --precision is bfloat16"),
        (["chimera", "--precision", "bfloat16"], 2, "--precision bfloat16 needs a model"),
        (
            [*BERT, "--micro-batch", "2000", "--emit", "report"],
            1,
            "no times for micro-batches of 2000 samples: it has 1 to 1024",
        ),
        (["chimera", "-p", "D=4", "--model", "gpt-small", "--profile", "bert48-p100", "--emit", "report"], 1, "E714"),
    ],
)
def test_wrong_options_are_refused(words: list[str], status: int, fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == status
    assert fact in capsys.readouterr().err
