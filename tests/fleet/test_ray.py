"""Questions to runs over a real Ray cluster on this host: the answers are those without it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.written_archive import Simulated, write
from probe.archive.store import FolderStore
from probe.base.errors import UsageError
from probe.diagnose.recipes.library import built_in_folder, load
from probe.fleet import per_run, run_checks
from probe.fleet.fleet_runs import Fleet, Limits
from probe.fleet.per_run import Answering, Workers
from probe.fleet.ray_tasks import Over

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.campaign
RUNS = [
    Simulated(f"job{n % 3}", f"run-{n}", ("n1", f"n{n}"), 2, day=n, nan_from=30 if n == 4 else None)
    for n in range(6)
]
INNER = "SELECT rank, host, count(*) AS steps, max(loss) AS loss FROM python.steps GROUP BY ALL"
SLOW = (
    "SELECT (SELECT max(loss) FROM python.steps) AS loss, count(*) AS pairs"
    " FROM range(20000) a, range(2000) b WHERE a.range * b.range % 7 = 1"
)
OUTER = "SELECT * FROM per_run ORDER BY ALL"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("archive")
    write(folder, RUNS, 60)
    with Fleet(FolderStore(folder), limits=Limits(60.0, 1 << 30, 1)) as found:
        yield found


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def answers(fleet: Fleet, answering: Answering, inner: str) -> list[list[Any]]:
    """The rows of the outer statement."""
    runs = fleet.runs()
    asks = per_run.asks_about(fleet, runs, inner)
    found = dict(answering.each(asks))
    assert [one.error for one in found.values() if one.error] == []
    content = per_run.together(runs, [found[place].body for place in range(len(runs))])
    rows: list[list[Any]] = fleet.query(OUTER, content).body["rows"]
    return rows


def over(fleet: Fleet) -> Over:
    return Over("local", fleet.catalog.store.url, 60.0)


@pytest.mark.usefixtures("cluster")
def test_a_statement_over_each_run_answers_the_same_row_for_row(fleet: Fleet) -> None:
    alone = answers(fleet, Workers(fleet), INNER)
    assert len(alone) == 12
    assert answers(fleet, over(fleet), INNER) == alone


@pytest.mark.usefixtures("cluster")
def test_recipes_find_the_same(fleet: Fleet) -> None:
    recipes = list(load([built_in_folder()]).values())
    recipes = [one for one in recipes if one.name in ("loss-nan", "slow-step", "loss-spike")]
    found = [
        {one.run.run: [finding.as_dict() for finding in one.findings]
         for one in run_checks.judge(fleet, fleet.runs(), recipes, answering)}
        for answering in (Workers(fleet), over(fleet))
    ]
    assert found[0] == found[1]
    assert found[0]["run-4"]


@pytest.mark.usefixtures("cluster")
def test_a_ray_worker_that_is_killed_in_the_middle_changes_nothing(fleet: Fleet) -> None:
    alone = answers(fleet, Workers(fleet), SLOW)
    killed: list[int] = []

    class Killing(Over):
        def each(self, asks: Any) -> Any:
            for one in super().each(asks):
                if not killed:
                    killed.extend(tasks())
                    for pid in killed:
                        os.kill(pid, signal.SIGKILL)
                yield one

    assert answers(fleet, Killing("local", fleet.catalog.store.url, 60.0), SLOW) == alone
    assert killed


def tasks() -> list[int]:
    """Processes of this test's cluster that run a task of ours now."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title = (place / "cmdline").read_bytes()
            raylet = (place / "stat").read_bytes().rpartition(b")")[2].split()[1].decode()
            starter = Path("/proc", raylet, "stat").read_bytes().rpartition(b")")[2].split()[1]
        except OSError:
            continue
        if title.startswith(b"ray::answered") and int(starter) == os.getpid():
            found.append(int(place.name))
    return found


@pytest.mark.usefixtures("cluster")
def test_a_statement_that_fails_says_so_for_its_run(fleet: Fleet) -> None:
    asks = per_run.asks_about(fleet, fleet.runs()[:2], "SELECT error('no: ' || run) FROM python.steps")
    found = [one for _, one in over(fleet).each(asks)]
    assert all("no: run-" in str(one.error) for one in found)


def test_an_address_where_no_cluster_is_is_an_error(fleet: Fleet) -> None:
    if ray.is_initialized():
        ray.shutdown()
    asks = per_run.asks_about(fleet, fleet.runs()[:1], INNER)
    with pytest.raises(UsageError, match="no Ray cluster answers"):
        list(Over("127.0.0.1:1", fleet.catalog.store.url, 5.0).each(asks))
