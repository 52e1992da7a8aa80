"""Forms of an answer: data frames with the types of the columns, texts that cannot be markup."""

from __future__ import annotations

import sys

import pytest

from probe.base.errors import PackageMissing, UsageError
from probe.client.answer import MOST_SHOWN_ROWS, Answer

ANSWER = Answer(
    [("step", "BIGINT"), ("loss", "DOUBLE"), ("name", "VARCHAR"), ("done", "BOOLEAN")],
    [[0, 0.5, "a", True], [1, "NaN", None, False], [2, None, "<script>", None]],
    notes=["rank 3 did not answer"],
)


def test_a_data_frame_has_the_types_of_the_columns_and_null_where_nothing_was_measured() -> None:
    pandas = pytest.importorskip("pandas")
    frame = ANSWER.pandas()
    assert list(frame.columns) == ["step", "loss", "name", "done"] and len(frame) == 3
    assert frame["step"].dtype == "int64" and frame["loss"].dtype == "float64"
    assert pandas.isna(frame["loss"][1]) and pandas.isna(frame["name"][1])


def test_arrow_and_polars_keep_nan_apart_from_null() -> None:
    pytest.importorskip("pyarrow")
    table = ANSWER.arrow()
    assert table.column("loss").null_count == 1 and str(table.schema.field("step").type) == "int64"
    pytest.importorskip("polars")
    assert ANSWER.polars()["loss"].null_count() == 1


@pytest.mark.parametrize("form", ["arrow", "pandas", "polars"])
def test_a_missing_package_is_named(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(PackageMissing, match=form):
        getattr(ANSWER, form)()


def test_an_answer_without_columns_says_so() -> None:
    with pytest.raises(UsageError, match="without columns"):
        Answer([], []).parquet()


def test_a_notebook_shows_text_and_no_markup() -> None:
    shown = ANSWER._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert "NULL" in shown and "rank 3 did not answer" in shown


def test_a_prompt_shows_the_first_rows_and_how_many_more() -> None:
    many = Answer([("n", "BIGINT")], [[number] for number in range(100)], truncated=True)
    lines = repr(many).splitlines()
    assert lines[0] == "n" and lines[MOST_SHOWN_ROWS] == str(MOST_SHOWN_ROWS - 1)
    assert lines[-2:] == ["… 80 more rows", "truncated to the first 100 rows: raise `limit`"]
