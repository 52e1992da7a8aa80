"""Bodies that fit the description and make no sense: an error that says so, and never one of ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from probe.base.errors import BadRequest, ProbeError
from probe.recording import checked
from server.beside import Beside, Writer

ODD = (":", "..", "a/b", "ä", "x")
ASKED: tuple[dict[str, Any], ...] = (
    {}, {"members": 7}, {"members": ["x"]}, {"members": {}}, {"question": []}, {"question": "go", "yes": 3},
    {"why": "\ud800", "question": "go"}, {"why": 3}, {"member": None},
)


def test_no_body_of_a_phase_of_all_ranks_is_an_internal_error(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    record(job="gpt").tell("write 3")
    beside.start()
    for phase, name, asked in itertools.product(("arm", "open", "gather", "decide"), ODD, ASKED):
        body = {"endpoint": "gpt", "id": name, "phase": phase, "asked": asked, "timeout_s": 0.05}
        try:
            beside.call("POST", "/v1/together", body)
        except ProbeError as error:
            assert error.code != "error", (body, error.message)
    assert "Traceback" not in beside.log()


def test_half_a_character_in_arguments_is_refused(beside: Beside, record: Callable[..., Writer]) -> None:
    record(job="gpt").tell("write 3")
    beside.start()
    for arguments in ({"x": "\ud800"}, {"\udfff": 1}, {"x": [{"y": "\udc80"}]}):
        with pytest.raises(BadRequest, match="lone surrogate"):
            beside.call("POST", "/v1/act", {"endpoint": "gpt", "action": "lr", "arguments": arguments})
    assert "Traceback" not in beside.log()


def test_half_a_character_in_what_is_recorded_is_answered(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    meta = {**writer.meta(), "argv": ["train.py", "\udcff.txt"]}
    (writer.folder / "meta.json").write_bytes(checked.sealed("meta.json", meta))
    beside.start()
    (process,) = beside.call("GET", "/v1/processes")["processes"]
    assert process["argv"] == ["train.py", "\\udcff.txt"]
