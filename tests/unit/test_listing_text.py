"""Parts of the text of a listing: loops where words repeat, names of pipes, and names with a suffix."""

from __future__ import annotations

from chimerac.compiler.exchange.listing_text import folded, pipe_names, with_suffix


def test_repetitions_are_folded() -> None:
    words = list("ab" * 3 + "c" + "d" * 4 + "xyxyz" * 2)
    assert folded(words) == [(3, ["a", "b"]), "c", (4, ["d"]), (2, ["x", "y", "x", "y", "z"])]


def test_names_of_pipes_are_distinct_and_valid_in_a_listing() -> None:
    assert pipe_names(["down[0]", "F", "order", "down_0"]) == ["down_0", "F_", "order_", "down_0_"]
    long = "x" * 64
    assert pipe_names([long, f"{long}[0]", f"{long}[1]"]) == [long, "x" * 63 + "_", "x" * 62 + "__"]


def test_a_long_name_is_cut_to_make_room_for_a_suffix() -> None:
    assert with_suffix("x" * 64, "_found") == "x" * 58 + "_found"
