"""torch's CSV: writing and reading programs, what torch cannot express, and wrong files. Also programs as listings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule, compile_text, load_program
from chimerac.compiler.analyze.diff import diff
from chimerac.compiler.command.main import main
from chimerac.compiler.exchange.listing import program_to_listing
from chimerac.compiler.exchange.torch_csv import program_from_csv, program_to_csv
from chimerac.compiler.lower.relower import arranged
from tests.helpers import CASES, library_program
from tests.helpers_cost import lines

# The schedules of the library with one copy of each stage.
EXPRESSIBLE = ("gpipe", "1f1b", "dapple", "interleaved", "looped_bfs", "hanayo", "zb_h1", "zb_h2", "zb_v", "dualpipev")


def read(text: str, **options: Any) -> Program:
    """Return the program of a CSV.

    Args:
        options: of `program_from_csv`.
    """
    return program_from_csv(Source("own-order.csv", text.replace("\r\n", "\n")), **options)


def text_of_streams(program: Program) -> str:
    return program.json().partition('"streams"')[2]


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_csv_keeps_streams_and_placement_or_the_program_is_refused(name: str, parameters: tuple[tuple[str, int], ...]) -> None:
    program = library_program(name, parameters)
    if name not in EXPRESSIBLE:
        with pytest.raises(ChimeraError, match=r"E623: torch.* stage 0 is on ranks 0, "):
            program_to_csv(program, with_communication=False)
        return
    for_serial = compile_schedule(name, dict(parameters), machine="serial", arrange=True).program
    for given, with_communication in ((program, False), (for_serial, True)):
        again = read(program_to_csv(given, with_communication))
        assert (
            text_of_streams(again) == text_of_streams(given)
            and again.header.pipes[0].placement == program.header.pipes[0].placement
        )
        assert again.header.schedule == "own_order", "the name of the file, as a name of the language"


@pytest.mark.parametrize(
    ("width", "message"), [(0, "at least one replica, and the width is 0"), (10**9, "own-order.csv asks for")]
)
def test_a_width_that_no_program_has_is_refused(width: int, message: str) -> None:
    with pytest.raises(ChimeraError, match=f"E211: .*{message}"):
        read("0F0,0B0\n", width=width)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_v", "hanayo", "zb_h2"])
def test_torch_accepts_our_messages_and_we_accept_those_of_torch(name: str) -> None:
    """torch's simulator executes the messages of a rank one after another, so the programs are arranged for `serial`.

    The simulator does not know overlapped pairs. These schedules have none.
    """
    from torch.distributed.pipelining import schedules  # 2.6 s, for this test only

    program = compile_schedule(name, {"D": 4, "N": 8}, machine="serial", arrange=True).program
    h = program.header
    tasks, with_messages = (
        [[*map(schedules._Action.from_str, line.split(","))] for line in program_to_csv(program, communication).splitlines()]
        for communication in (False, True)
    )
    rank_of = schedules._validate_schedule(dict(enumerate(tasks)), h.ranks, h.stages, h.micro_batches)
    assert [rank_of[s] for s in range(h.stages)] == list(h.pipes[0].placement)
    of_shards = (schedules.UNSHARD, schedules.RESHARD, schedules.REDUCE_GRAD)
    simulated = {r: [a for a in line if a.computation_type not in of_shards] for r, line in enumerate(with_messages)}
    schedules._simulate_comms_compute(simulated, rank_of.__getitem__, h.stages)
    lowered = schedules._add_send_recv(dict(enumerate(tasks)), rank_of.__getitem__, h.stages)
    text = "\n".join(",".join(map(str, lowered[r])) for r in range(h.ranks))
    assert len(read(text)) == len(program), "`read` verifies the messages of torch, and they are as many as ours"


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_a_program_is_written_as_a_listing_with_the_same_tasks(name: str, parameters: tuple[tuple[str, int], ...]) -> None:
    program = library_program(name, parameters)
    again = compile_text(program_to_listing(program)).program
    for rank in range(program.world):
        before, after = ([i for i in p.stream(rank) if hasattr(i, "letter")] for p in (program, again))
        assert before == after
    assert again.costs == program.costs and again.header.limits == program.header.limits


def test_an_all_reduce_of_a_rank_without_tasks_counts_as_sync_at_end() -> None:
    text = """
        schedule unused ranks 3 stages 2
        pipe a { stage s on rank s + 1   micro_batches 2 }
        pipe b { stage s on rank 2*s     micro_batches 0 }
        order ticks { F a(s, m) at s + 2*m   B a(s, m) at 10 - s + 2*m   F b(s, m) at s   B b(s, m) at 9 - s }
        sync at end
    """
    program = compile_text(text).program
    assert program.text(0).startswith("ALLREDUCE") and program.offsets[1] == 1
    assert "\nsync at end\n" in program_to_listing(program)
    assert arranged(program, "window") == program


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"width": 2}, "has 2 data-parallel replicas"),
        ({"recompute": "all"}, "stages 0, 1 run their forwards again"),
    ],
)
def test_what_torch_cannot_express_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ChimeraError, match=f"E623: .*{says}"):
        program_to_csv(compile_schedule("1f1b", {"D": 2, "N": 2}, **options).program, with_communication=False)


def test_a_rank_without_a_stage_is_refused() -> None:
    """Its line would be empty, and at the end of the file the reader would take it for a blank line."""
    text = """schedule unused  ranks 3  stages 2  pipe main { stage s on rank s   micro_batches 2 }
              order ticks { F(s, m) at s + 2*m   B(s, m) at 3 - s + 2*m }"""
    with pytest.raises(ChimeraError, match=r"E623: .*rank 2 has no stage"):
        program_to_csv(compile_text(text).program, with_communication=False)


def test_messages_that_would_hang_over_nccl_are_refused() -> None:
    with pytest.raises(ChimeraError, match=r"E623: .*would hang(.|\n)*--for serial"):
        program_to_csv(compile_schedule("1f1b", {"D": 2, "N": 4}).program, with_communication=True)


# code: what the codes of all findings begin with.
@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", "E621", "has no action"),
        ("0F0,0B0,x", "E621", "line 1 has 'x'"),
        ("0F0,0B0,-1F0", "E621", "line 1 has '-1F0'"),
        ("0F0;0B0", "E621", "line 1 has '0F0;0B0'"),
        ("(0F0;0B0;0F1)OVERLAP_F_B", "E621", "no action"),
        ("9999999999F0", "E621", "no action"),
        ("0F0,1F0\n1B0,0B0", "E622", "stage 1 is on rank 0, by 1F0, and on rank 1, by 1B0"),
        ("0F0,0B0,0F0", "E622", "0F0 appears twice"),
        ("0F999999999,0B999999999", "E622", "0F0 is missing"),
        ("999999999F0,999999999B0", "E622", "0F0 is missing"),
        ("0F0", "E622", "as backward: none"),
        ("0F0,0I0", "E622", "as backward: 0I0"),
        ("0F0,0B0,0I0,0W0", "E622", "as backward: 0B0 and 0I0 and 0W0"),
        ("0B0,0F0", "E622", "rank 0 never reaches 0B0"),
        ("(0F0;0B0)OVERLAP_F_B", "E622", "deadlocks"),
        ("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0", "E4", ""),  # stage 1 sends no gradient
        ("0F0,5SEND_F0,0B0", "E4", ""),  # there is no stage 5
        ("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", "E42", ""),  # sent before it is computed
        ("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0", "E42", ""),  # read before it is received
    ],
)
def test_a_file_that_is_no_correct_schedule_is_refused(text: str, code: str, says: str) -> None:
    with pytest.raises(ChimeraError, match=re.escape(says) or None) as error:
        read(text)
    assert all(d.code.startswith(code) for d in error.value.diagnostics)


def test_idle_slots_quotes_spaces_and_actions_about_shards_change_nothing() -> None:
    plain = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    decorated = '0UNSHARD,"0F0", 0F1 ,,,0B0,0B1,0REDUCE_GRAD,0RESHARD\n,1F0,1B0,1F1,1B1,,\n\n'
    assert read(plain) == read(decorated)


def test_a_csv_is_read_for_a_width_and_a_machine() -> None:
    plain = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert read(plain, width=2).world == 4 and read(plain, machine="serial", arrange=True).header.machine == "serial"


def test_reading_writing_listing_and_comparing_are_linear() -> None:
    """Lines of Python are counted. N grows by 96 and then by 384, so linear work grows by 4 times as much the second time."""
    programs = [compile_schedule("zb_v", {"D": 2, "N": n}, machine="serial", arrange=True).program for n in (32, 128, 512)]
    texts = [program_to_csv(p, with_communication=True) for p in programs]
    for counts in (
        [lines(lambda text=text: read(text)) for text in texts],  # type: ignore[misc]
        [lines(lambda p=p: program_to_csv(p, with_communication=True)) for p in programs],  # type: ignore[misc]
        [lines(lambda p=p: program_to_listing(p)) for p in programs],  # type: ignore[misc]
        [lines(lambda p=p: diff(p, p)) for p in programs],  # type: ignore[misc]
    ):
        assert counts[2] - counts[1] < 1.3 * 4 * (counts[1] - counts[0]), counts  # 1.3: some tolerance


def test_the_command_writes_and_reads_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "zb.csv")
    assert main(["zb_v", "-p", "D=2", "-p", "N=4", "--emit", "torch-csv", "-o", path]) == 0
    assert main([path, "--emit", "report"]) == 0
    report = capsys.readouterr().out
    assert main(["zb_v", "-p", "D=2", "-p", "N=4", "--emit", "report"]) == 0
    # Without the first three lines: there the name of the schedule, its parameters and the digest differ.
    assert report.splitlines()[3:] == capsys.readouterr().out.splitlines()[3:]
    assert main([path, "--emit", "sched", "-o", str(tmp_path / "zb.sched")]) == 0
    assert main([str(tmp_path / "zb.sched")]) == 0
    assert main([path, "-p", "D=2"]) == 2  # a CSV has no parameters
    assert text_of_streams(load_program(path)) == text_of_streams(compile_schedule("zb_v", {"D": 2, "N": 4}).program)
