"""A checkpoint of all ranks: the ranks are threads here, each with a model of its own."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probe
from control.saved import Site, left_in, trained, values
from probe.base.errors import ActionFailed, ActionRefused, BadRequest, CheckpointInvalid, ProbeError
from probe.checkpoint.all_ranks import LATEST, MANIFEST, RanksFolder, chosen_folder
from probe.job.actions.saving import gathering, verified_file
from probe.job.actions.saving.checkpoint_of_all import SaveOfAll
from probe.job.actions.saving.gathering import Gathering


def rank_of(rank: int, world_size: int, name: str, **things: Any) -> Site:
    """One rank of a job that stands between two steps, all of which do something under this name."""
    site: Any = Site(**things)
    site.rank, site.world_size, site.several_ranks = rank, world_size, True
    site.together, site.together_name = True, name
    site.settings = probe_settings()
    return site  # type: ignore[no-any-return]


def probe_settings() -> Any:
    from probe.base.settings import Settings

    return Settings({})


def save_all(folder: Path, ranks: list[dict[str, Any]], name: str = "all-1") -> list[Any]:
    """Answers, or errors, of all ranks: asked, begun one after the other, written at the same time."""
    saves = [
        SaveOfAll({"path": str(folder)}, rank_of(rank, len(ranks), name, **things))  # type: ignore[arg-type]
        for rank, things in enumerate(ranks)
    ]
    for one in saves:
        one.begin()

    def finish(one: SaveOfAll) -> Any:
        try:
            return one.finish()
        except ProbeError as error:
            return error

    with ThreadPoolExecutor(len(saves)) as pool:
        return list(pool.map(finish, saves))


def replicas(count: int) -> list[dict[str, Any]]:
    """The same model on every rank, but for the statistics of its batches."""
    found = []
    for rank in range(count):
        torch.manual_seed(0)
        things = trained()
        things["model"][1].running_mean += rank
        found.append(things)
    return found


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """This process is that rank of a job that only its launcher's environment tells of."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def test_what_ranks_have_alike_is_written_once_and_each_gets_its_own_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = replicas(3)
    expected = [{name: values(thing) for name, thing in things.items()} for things in ranks]
    answers = save_all(tmp_path / "kept", ranks)
    assert {one["what"] for one in answers} == {answers[0]["what"]}
    assert "step 7 of all 3 ranks is saved in" in answers[0]["what"] and answers[0]["notes"] == []
    assert left_in(tmp_path / "kept") == [LATEST, "step-00000007"]
    assert left_in(tmp_path / "kept" / "step-00000007") == [
        MANIFEST, "rank-00000.pt", "rank-00001.pt", "rank-00002.pt",
    ]
    part = torch.load(tmp_path / "kept" / "step-00000007" / "rank-00002.pt", weights_only=True)
    own = [key for key, value in part["model"].items() if isinstance(value, torch.Tensor)]
    assert own == ["1.running_mean"]
    for rank in range(3):
        as_rank(monkeypatch, rank, 3)
        fresh = trained(0)
        state = probe.load_checkpoint(tmp_path / "kept", rng=False, **fresh)
        assert state.step == 7 and {name: values(one) for name, one in fresh.items()} == expected[rank]


def test_each_rank_gets_its_own_random_states_and_another_number_of_ranks_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = []
    for rank, things in enumerate(replicas(2)):
        site = rank_of(rank, 2, "all-1", **things)
        site.position = {
            "loader": "l", "batches": rank, "torch_state": None, "generator_state": None, "untouched": False,
        }
        saves.append(SaveOfAll({"path": str(tmp_path)}, site))  # type: ignore[arg-type]
        torch.manual_seed(10 + rank)
        saves[-1].begin()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(SaveOfAll.finish, saves))
    drawn = []
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        state = probe.load_checkpoint(tmp_path, **trained(0))
        assert state.data is not None and state.data["batches"] == rank
        drawn.append(torch.rand(1).item())
    expected = [torch.rand(1, generator=torch.Generator().manual_seed(10 + rank)).item() for rank in (0, 1)]
    assert drawn == expected
    as_rank(monkeypatch, 0, 4)
    torch.manual_seed(5)
    state = probe.load_checkpoint(tmp_path, **trained(0))
    with pytest.raises(CheckpointInvalid, match="another number of ranks"):
        state.rest_of([])
    assert state.data is None and torch.initial_seed() == 5


def test_replicas_that_have_drifted_apart_are_named_by_parameter(tmp_path: Path) -> None:
    ranks = replicas(3)
    with torch.no_grad():
        ranks[1]["model"][2].bias += 1e-3
    notes = save_all(tmp_path, ranks)[2]["notes"]
    assert len(notes) == 1
    assert "rank 1 has other values than rank 0 in model.2.bias" in notes[0] and "drifted apart" in notes[0]


def test_ranks_with_different_models_are_saved_whole_and_need_as_many_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [{"model": nn.Linear(3, 4 + rank)} for rank in range(2)]
    expected = [values(one["model"]) for one in stages]
    assert save_all(tmp_path, stages)[0]["notes"] == []
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        model = nn.Linear(3, 4 + rank)
        probe.load_checkpoint(tmp_path, rng=False, model=model)
        assert values(model) == expected[rank]
    as_rank(monkeypatch, 0, 1)
    with pytest.raises(CheckpointInvalid, match="2 ranks with different models"):
        probe.load_checkpoint(tmp_path, model=nn.Linear(3, 4))


def test_an_earlier_checkpoint_is_never_replaced_and_the_newest_is_named(tmp_path: Path) -> None:
    for name in ("all-1", "all-2"):
        save_all(tmp_path, replicas(2), name)
    assert left_in(tmp_path) == [LATEST, "step-00000007", "step-00000007.2"]
    assert chosen_folder(str(tmp_path)).name == "step-00000007.2"
    assert chosen_folder(str(tmp_path / "step-00000007")).name == "step-00000007"


def test_parameters_that_are_nan_are_saved_and_the_newest_stays_the_good_one(tmp_path: Path) -> None:
    save_all(tmp_path, replicas(2), "all-1")
    spoilt = replicas(2)
    with torch.no_grad():
        spoilt[1]["model"][0].weight[0, 0] = float("nan")
    answers = save_all(tmp_path, spoilt, "all-2")
    assert any("NaN or infinite on rank 1" in note for note in answers[0]["notes"])
    assert chosen_folder(str(tmp_path)).name == "step-00000007"


def test_a_rank_that_cannot_write_leaves_no_checkpoint_and_is_named_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_all(tmp_path, replicas(3), "all-1")
    before = left_in(tmp_path)
    whole = verified_file.Writing._write

    def full(self: Any, content: Any) -> None:
        if content["probe"]["rank"] == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, content)

    monkeypatch.setattr(verified_file.Writing, "_write", full)
    answers = save_all(tmp_path, replicas(3), "all-2")
    assert all(isinstance(one, ActionFailed) for one in answers)
    assert "No space left on device" in answers[1].message
    assert all("rank 1 has no part: writing failed: No space" in answers[rank].message for rank in (0, 2))
    assert left_in(tmp_path) == before and chosen_folder(str(tmp_path)).name == "step-00000007"


def test_ranks_that_fail_at_the_same_time_leave_no_folder(tmp_path: Path) -> None:
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(60):
            ranks = [Gathering(tmp_path, f"all-{number}", rank, 3) for rank in range(3)]
            for one in ranks:
                for file in range(12):
                    one.part.with_name(f"{one.part.stem}.{file}.json").write_text("{}")
            with ThreadPoolExecutor(len(ranks)) as pool:
                list(pool.map(lambda one: one.fail("no room"), ranks))
    finally:
        sys.setswitchinterval(switch_s)
    assert left_in(tmp_path) == []


def test_a_rank_that_cannot_be_saved_at_its_step_is_named_by_the_others(tmp_path: Path) -> None:
    ranks = replicas(2)
    ranks[1]["model"] = nn.Linear(1, 1, device="meta")
    first, second = (
        SaveOfAll({"path": str(tmp_path)}, rank_of(rank, 2, "all-1", **things))  # type: ignore[arg-type]
        for rank, things in enumerate(ranks)
    )
    first.begin()
    with pytest.raises(ActionRefused, match="has no values"):
        second.begin()
    with pytest.raises(ActionFailed, match=r"rank 1 has no part: model\.weight has no values"):
        first.finish()
    assert left_in(tmp_path) == []


def test_what_does_not_take_place_leaves_nothing(tmp_path: Path) -> None:
    saves = [
        SaveOfAll({"path": str(tmp_path / "new")}, rank_of(rank, 2, "all-1", **things))  # type: ignore[arg-type]
        for rank, things in enumerate(replicas(2))
    ]
    assert len(left_in(tmp_path / "new" / ".all-1.tmp")) == 2
    for one in saves:
        one.give_up()
    assert left_in(tmp_path / "new") == []


def test_a_rank_whose_process_ended_is_named_and_what_it_left_is_taken_away(tmp_path: Path) -> None:
    one, other = (Gathering(tmp_path, "all-1", rank, 2) for rank in (0, 1))
    told = json.loads((other.making / "rank-00001.here").read_bytes())
    (other.making / "rank-00001.here").write_text(json.dumps({**told, "start_ticks": 1}))
    (other.making / ".rank-00001.pt.77.tmp").write_bytes(b"half")
    one.tell({"files": []})
    with pytest.raises(ActionFailed, match="the process of rank 1 ended before its part") as raised:
        one.conclude(1e9, lambda records: {"step": 1, "files": []})
    one.fail(raised.value.message)
    assert left_in(tmp_path) == []


def test_hosts_that_do_not_share_the_folder_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "SEEN_S", 0.05)
    one = Gathering(tmp_path / "here", "all-1", 0, 3)
    Gathering(tmp_path / "there", "all-1", 1, 3)
    one.tell({"files": []})
    with pytest.raises(ActionFailed, match="rank 1-2 does not see this folder: it is not shared"):
        one.conclude(1e9, lambda records: {"step": 1, "files": []})


@pytest.mark.parametrize("round_number", range(5))
def test_many_ranks_that_finish_at_once_make_one_checkpoint(tmp_path: Path, round_number: int) -> None:
    count = 8
    ranks = [Gathering(tmp_path, "all-1", rank, count) for rank in range(count)]
    start = threading.Barrier(count)

    def files_of(records: list[dict[str, Any]]) -> list[Any]:
        return [file for record in records for file in record["files"]]

    def conclude(one: Gathering) -> tuple[str, int]:
        one.part.write_bytes(b"part")
        start.wait()
        one.tell({"files": [{"name": one.part.name, "bytes": 4}]})
        path, manifest = one.conclude(1e9, lambda records: {"step": 3, "files": files_of(records)})
        return path.name, len(manifest["files"])

    with ThreadPoolExecutor(count) as pool:
        assert set(pool.map(conclude, ranks)) == {("step-00000003", count)}
    assert left_in(tmp_path) == [LATEST, "step-00000003"]
    assert len(left_in(tmp_path / "step-00000003")) == count + 1


def test_what_was_interrupted_is_not_taken_for_a_checkpoint_and_damage_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank(monkeypatch, 1, 2)
    Gathering(tmp_path, "all-0", 0, 2)
    with pytest.raises(CheckpointInvalid, match="no complete checkpoint"):
        RanksFolder(str(tmp_path))
    save_all(tmp_path, replicas(2))
    path = tmp_path / "step-00000007" / "rank-00001.pt"
    whole = path.read_bytes()
    for damaged in (whole[:-7], bytes([*whole[:-9], whole[-9] ^ 1, *whole[-8:]])):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointInvalid, match=r"rank-00001\.pt is damaged"):
            RanksFolder(str(tmp_path)).content()
    path.unlink()
    with pytest.raises(CheckpointInvalid, match=r"rank-00001\.pt is missing"):
        RanksFolder(str(tmp_path)).content()
    shutil.rmtree(tmp_path / "step-00000007")
    with pytest.raises(CheckpointInvalid, match="names 'step-00000007'"):
        RanksFolder(str(tmp_path))


def test_what_cannot_be_a_checkpoint_of_all_ranks_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused: list[tuple[dict[str, Any], type[ProbeError], str]] = [
        ({"path": str(tmp_path / "file")}, ActionRefused, "is not a folder and cannot be created"),
        ({"path": str(tmp_path / "no" / "such")}, ActionRefused, "is not a folder and cannot be created"),
        ({"path": str(tmp_path), "overwrite": True}, BadRequest, "has its own name"),
        ({"folder": str(tmp_path), "every": 3}, ActionRefused, "by one rank only"),
    ]
    for arguments, error, said in refused:
        with pytest.raises(error, match=said):
            SaveOfAll(arguments, rank_of(0, 2, "all-1", **trained(1)))  # type: ignore[arg-type]
    assert left_in(tmp_path) == ["file"] and os.path.getsize(tmp_path / "file") == 0
