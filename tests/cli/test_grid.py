from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe_cli.core.terminal import Output, cut, display_width, escape_controls
from probe_cli.render.grid import GAP, Heading, fit, grid

HEADINGS = (Heading("name"), Heading("count", number=True), Heading("file", path=True))
ROWS = [
    ["forward", "12", "/home/someone/project/model.py"],
    ["backward of the whole model", "123456", "/home/someone/project/train.py"],
]


def test_everything_is_shown_where_there_is_room() -> None:
    assert list(grid(HEADINGS, ROWS, None)) == [
        "name                          count  file",
        "forward                          12  /home/someone/project/model.py",
        "backward of the whole model  123456  /home/someone/project/train.py",
    ]


def test_texts_give_way_and_numbers_do_not() -> None:
    assert list(grid(HEADINGS, ROWS, 45)) == [
        "name                 count  file",
        "forward                 12  …project/model.py",
        "backward of the w…  123456  …project/train.py",
    ]


def test_rows_become_lists_where_no_width_is_enough() -> None:
    assert list(grid(HEADINGS, ROWS[:1], 20)) == [
        "row 1",
        "  name   forward",
        "  count  12",
        "  file   /home/someone/project/model.py",
    ]


def test_prose_continues_on_the_next_line() -> None:
    headings = (Heading("unit"), Heading("meaning", prose=True))
    assert list(grid(headings, [["s", "time from here to there"]], 22)) == [
        "unit  meaning",
        "s     time from here",
        "      to there",
    ]


def test_prose_gives_way_before_a_name_is_cut() -> None:
    headings = (Heading("recipe"), Heading("symptoms"), Heading("title", prose=True))
    row = ["validation-in-train-mode", "loss slow memory", "evaluation in train mode, again and again"]
    assert list(grid(headings, [row], 72)) == [
        "recipe                    symptoms          title",
        "validation-in-train-mode  loss slow memory  evaluation in train mode,",
        "                                            again and again",
    ]


def test_a_name_to_be_copied_is_never_cut() -> None:
    headings = (Heading("recipe", whole=True), Heading("symptoms"), Heading("title", prose=True))
    row = ["validation-in-train-mode", "loss gradients data slow", "evaluation in train mode"]
    assert list(grid(headings, [row], 55)) == [
        "recipe                    symptoms        title",
        "validation-in-train-mode  loss gradient…  evaluation in",
        "                                          train mode",
    ]


def test_a_value_of_a_list_that_does_not_fit_continues_below_itself() -> None:
    headings = (Heading("name"), Heading("count", number=True), Heading("meaning"))
    row = ["act_wait_s", "1" * 30, "how long an action waits for the end of a step"]
    assert list(grid(headings, [row], 40)) == [
        "row 1",
        "  name     act_wait_s",
        f"  count    {'1' * 30}",
        "  meaning  how long an action waits for",
        "           the end of a step",
    ]


_TEXT = st.text(max_size=30).map(escape_controls)


@given(st.lists(st.tuples(_TEXT, st.integers().map(str), _TEXT), max_size=5), st.integers(40, 120))
def test_no_line_of_a_grid_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    for line in grid(HEADINGS, rows, width):
        assert line.startswith(("row ", "  ")) or display_width(line) <= width


_SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


@given(st.lists(_SIZES, min_size=1, max_size=8), st.integers(1, 200))
def test_widths_fill_the_room_without_falling_below_the_shortest(
    sizes: list[tuple[int, int]], width: int
) -> None:
    natural = [max(pair) for pair in sizes]
    shortest = [min(pair) for pair in sizes]
    room = width - GAP * (len(sizes) - 1)
    widths = fit(natural, shortest, width)
    if widths is None:
        assert sum(shortest) > room
    else:
        assert sum(widths) == min(sum(natural), room)
        assert all(least <= got <= most for least, got, most in zip(shortest, widths, natural, strict=True))


@given(st.text(), st.integers(1, 20), st.booleans())
def test_a_cut_text_fits(text: str, width: int, keep_end: bool) -> None:
    shown = cut(text, width, keep_end)
    assert display_width(shown) <= width
    if display_width(text) > width:
        assert "…" in shown


def test_wide_characters_count_double() -> None:
    assert display_width("損失") == 4
    assert list(grid((Heading("a"), Heading("b")), [["損失", "x"], ["loss", "y"]], None)) == [
        "a     b",
        "損失  x",
        "loss  y",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", r"\u001b]52;c;aGk=\u0007"),
        ("a\x9b31mb", r"a\u009b31mb"),
        ("evil\u202etxt.exe", r"evil\u202etxt.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("line\nnext\ttab\rback", r"line\nnext\ttab\rback"),
        ("plain ünïcode 損失", "plain ünïcode 損失"),
        ("no-break\u00a0space", "no-break\u00a0space"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_that_wants_them() -> None:
    assert Output(io.StringIO(), {}).style("x", "red") == "x"
    assert Output(_Screen(), {"TERM": "xterm"}).style("x", "red") == "\x1b[31mx\x1b[0m"
    assert Output(_Screen(), {"TERM": "xterm", "NO_COLOR": "1"}).style("x", "red") == "x"
    assert Output(_Screen(), {"TERM": "dumb"}).style("x", "red") == "x"


def test_text_of_the_job_is_raw_in_a_pipe_and_safe_on_a_terminal() -> None:
    pipe, screen = io.StringIO(), _Screen()
    Output(pipe, {}).text("\x1b[2Ja\r\nb\n")
    Output(screen, {}).text("\x1b[2Ja\r\nb\n")
    assert pipe.getvalue() == "\x1b[2Ja\r\nb\n"
    assert screen.getvalue() == "\\u001b[2Ja\nb\n"
