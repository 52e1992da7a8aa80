"""What a run is called, on how many hosts it is, and which hosts its launcher names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from probe.base.errors import SettingInvalid
from probe.base.settings import Settings
from probe.job.agent.announcing import candidates, nodes, reachable
from probe.job.agent.identity import counted_attempt, identify, several_hosts
from probe.recording import announcement
from probe.recording.announcement import Announcement
from probe.server.peers import peer_discovery

TORCHRUN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}


@pytest.mark.parametrize(
    ("environ", "several"),
    [
        (TORCHRUN, True),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NNODES": "1", "MASTER_ADDR": "n"}, False),
        ({}, False),
    ],
)
def test_a_job_is_on_several_hosts_when_its_launcher_says_so(environ: dict[str, str], several: bool) -> None:
    assert several_hosts(environ) is several


def test_a_run_has_one_name_on_all_hosts_and_another_for_every_run() -> None:
    static = [identify("gpt", {**TORCHRUN, "RANK": str(rank)}) for rank in range(4)]
    assert {one.run for one in static} == {"gpt-node1-29500"} and all(one.counted for one in static)
    named = identify("gpt", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "night-7"})
    assert (named.run, named.counted) == ("gpt-night-7", False)
    here = identify("gpt", {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"})
    assert here.run.startswith(f"gpt-{os.getppid()}.") and not here.counted


def test_ranks_that_one_launcher_started_together_are_one_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run=x"
    assert [counted_attempt(run, 0, rank) for rank in (1, 0, 2)] == [0, 0, 0]
    assert [counted_attempt(run, 1, rank) for rank in (0, 1)] == [1, 1], "the launcher's own restart"
    (run / "attempt=1" / "process=0-1").mkdir()
    assert [counted_attempt(run, 1, rank) for rank in (0, 1)] == [2, 2], "rank 0 was started once more"


def test_a_run_that_is_launched_again_is_its_next_attempt_on_every_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun counts its restarts from 0 after each launch, by hand or by a requeue of Slurm."""
    elastic = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "night-7", "TORCHELASTIC_RESTART_COUNT": "0"}
    file = "/tmp/torchelastic_x/night-7_{}/attempt_{}/{}/error.json"

    def attempt(host: str, launch: str, restarts: int, rank: int, **more: str) -> int:
        environ = {**elastic, "TORCHELASTIC_ERROR_FILE": file.format(launch, restarts, rank),
                   "TORCHELASTIC_RESTART_COUNT": str(restarts), **more}
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", environ["TORCHELASTIC_ERROR_FILE"])
        found = identify("gpt", environ)
        assert (found.run, found.counted) == ("gpt-night-7", True)
        number = counted_attempt(tmp_path / host, found.attempt, rank)
        (tmp_path / host / f"attempt={number}" / f"process={rank}-{launch}{restarts}").mkdir(exist_ok=True)
        return number

    assert [attempt("one", "a", 0, rank) for rank in (1, 0)] == [0, 0]
    assert [attempt("one", "a", 1, rank) for rank in (0, 1)] == [1, 1], "a restart by torchrun"
    assert attempt("joined", "a", 1, 2) == 1, "a host that took the place of another"
    assert [attempt("one", "b", 0, rank) for rank in (0, 1)] == [2, 2], "launched again under the same id"
    requeued = {"SLURM_RESTART_COUNT": "1"}
    assert [attempt("one", "c", 0, rank, **requeued) for rank in (0, 1)] == [1000, 1000]
    assert attempt("new", "c", 0, 2, **requeued) == 1000, "a node that the requeue brought"
    alone = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_RESTART_COUNT": "3"}
    assert identify("gpt", alone).attempt == 3


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("r[1-2]n[8-9]", ["r1n8", "r1n9", "r2n8", "r2n9"]),
        ("a[1-999999999]", []), ("a[x-y]", []), ("a[", ["a"]), ("", []),
    ],
)
def test_node_lists_of_slurm_are_expanded(text: str, names: list[str]) -> None:
    assert nodes(text) == names


def test_the_launcher_names_candidates_other_than_this_host() -> None:
    own = os.uname().nodename
    environ = {"SLURM_JOB_NODELIST": f"{own},other[1-2]", "MASTER_ADDR": "other1"}
    assert candidates(environ) == [("other1", "slurm"), ("other2", "slurm")]
    assert candidates({"MASTER_ADDR": "127.0.0.1"}) == []


def test_an_address_is_announced_as_others_can_use_it() -> None:
    assert reachable("http://10.0.0.7:7130", "10.0.0.1", 1) == "http://10.0.0.7:7130"
    assert reachable("http://127.0.0.1:7130", "10.0.0.1", 1) == reachable("", "10.0.0.1", 1) == ""
    own = os.uname().nodename
    assert reachable("https://0.0.0.0:7130", "127.0.0.1", 1) == f"https://{own}:7130"
    assert reachable("http://0.0.0.0:7130", "127.0.0.1", 1) == f"http://{own}:7130"


def test_an_announcement_is_believed_only_with_the_right_proof(tmp_path: Path) -> None:
    settings = Settings({"PROBE_INSECURE_NO_TLS": "1"})
    said = Announcement("node2", "http://node2:7130", "run-x", 0, "2-3", 5)
    lines = [
        announcement.signed(said, "secret"),
        announcement.signed(said._replace(host="node3", url="http://evil:1"), "another secret"),
        announcement.signed(said._replace(host="node4"), "secret").replace("7130", "7131"),
        announcement.signed(said._replace(host="node5", url="", ranks="0-99999999999"), "secret"),
        announcement.signed(said._replace(host="node6", run="run-y"), "secret"),
        announcement.signed(said._replace(host="node7"), ""),
        "[1, 2]", "{", "x" * 10_000, '{"host": 1}',
    ]
    announcement.write(tmp_path, announcement.Peers(lines, [("node2", "slurm"), ("node9", "slurm")]))
    hosts = peer_discovery.from_recordings([tmp_path], "run-x", "secret", 7130, settings)
    found = {host.name: host for host in hosts}
    assert (found["node2"].url, found["node2"].ranks) == ("http://node2:7130", (2, 3))
    assert {name for name, host in found.items() if host.url} == {"node2", "node9"}
    assert all("another token" in found[name].why for name in ("node3", "node4", "node7"))
    assert "PROBE_LISTEN" in found["node5"].why and found["node5"].ranks == ()
    assert "node6" not in found and found["node9"].source == "slurm"


def test_a_bad_peers_file_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "peers"
    path.write_text("# hosts\nnode1:7130\nhttp://10.0.0.2:99  # by hand\n[fe80::1]:7130\n")
    settings = Settings({"PROBE_PEERS": str(path)})
    urls = [host.url for host in peer_discovery.from_file(settings)]
    assert urls == ["https://node1:7130", "http://10.0.0.2:99", "https://[fe80::1]:7130"]
    path.write_text("node1:7130\nnode2\n")
    with pytest.raises(SettingInvalid, match="line 2"):
        peer_discovery.from_file(settings)


def test_a_worker_of_ray_train_is_a_rank_of_the_run_that_ray_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps this in an object, and sets no variable before the training begins."""
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    place = SimpleNamespace(world_rank=1, local_rank=0, world_size=2, local_world_size=1)
    run = SimpleNamespace(run_id="5f0c", run_config=SimpleNamespace(name="tiny"))
    context = SimpleNamespace(train_run_context=run, distributed_context=place)
    kept = SimpleNamespace(_train_context=context)
    monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.context", kept)
    found = identify("")
    assert (found.job, found.run, found.rank) == ("tiny", "tiny-5f0c", 1)
    assert (found.world_size, found.local_rank) == (2, 0)
    assert found.counted, "Ray starts workers again without counting"
    assert identify("given").job == "given"
    kept._train_context = None  # a worker that trains nothing, or Ray keeps it elsewhere
    assert identify("").rank == 0 and identify("").world_size is None
