"""What is known of a run beside its steps: parameters, modules, hyper-parameters, what it logs, memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent.asking import tell
from agent.nursery import Nursery, forked
from harness import PATIENCE_S, Job, Place, run_probe
from probe.base import wire
from probe.job.instruments.core.host_memory import HostMemory, HostMemoryReader
from probe.job.instruments.facts.hyperparameters import flat
from probe.job.instruments.facts.model_facts import _TRAINING_MODE, ModelFacts
from probe.job.instruments.modules.module_names import ModuleNames
from probe.recording import places

STAND_INS = {
    "tensorboardX/__init__.py": "from tensorboardX.writer import SummaryWriter\n",
    "tensorboardX/writer.py": """
class SummaryWriter:
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False,
                   double_precision=False):
        pass
    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        pass
""",
    "wandb/sdk/wandb_run.py": """
import wandb
class Run:
    def log(self, data, step=None, commit=None, sync=None):
        wandb.CALLS.append(data)
""",
    "wandb/__init__.py": """
CALLS = []
def log(data, step=None, commit=None, sync=None):
    raise RuntimeError("call wandb.init() first")
def init(**kwargs):
    from wandb.sdk.wandb_run import Run
    global log
    log = Run().log
""",
    "wandb/sdk/__init__.py": "",
    "mlflow/__init__.py": "from mlflow.tracking.fluent import log_metric, log_metrics\n",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/client.py": """
class MlflowClient:
    def log_metric(self, run_id, key, value, timestamp=None, step=None, synchronous=None):
        pass
""",
    "mlflow/tracking/fluent.py": """
from mlflow.tracking.client import MlflowClient
def log_metric(key, value, step=None, synchronous=None, timestamp=None, run_id=None):
    MlflowClient().log_metric("0", key, value, 0, step or 0)
def log_metrics(metrics, step=None, synchronous=None, run_id=None, timestamp=None):
    for key, value in metrics.items():
        log_metric(key, value, step)
""",
}
"""Functions with the parameters of the real ones."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Iterator[tuple[Place, Job]]:
    """One run, of which all tests here ask."""
    place = Place()
    stand_ins = tmp_path_factory.mktemp("stand_ins")
    for name, text in STAND_INS.items():
        path = stand_ins / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = ("known_run", str(stand_ins), "--rest-ms", "20")
    try:
        with forked(nursery, place, command, NCCL_DEBUG="WARN") as [job]:
            job.wait_for("READY")
            wait_for(place, job, "SELECT 1 FROM probe.facts WHERE name = 'duckdb'")
            wait_for(place, job, "SELECT 1 FROM python.scalars WHERE source = 'mlflow'")
            yield place, job
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def ask(place: Place, job: Job, sql: str) -> list[list[Any]]:
    done = run_probe(place, str(job.pid), "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    rows: list[list[Any]] = json.loads(done.stdout)["rows"]
    return rows


def wait_for(place: Place, job: Job, sql: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ask(place, job, sql):
        assert time.monotonic() < deadline, f"no row: {sql}\n{job.errors()}"
        time.sleep(0.2)


def test_parameters_are_those_of_the_models_with_their_optimizers_and_groups(run: tuple[Place, Job]) -> None:
    rows = ask(*run, "SELECT param, place, module, shape, numel, requires_grad, optimizer, param_group "
                     "FROM python.parameters ORDER BY param LIKE 'Critic%', place")
    assert rows == [
        ["scale", 0, "", "[]", 1, True, "AdamW", 1],
        ["layers.0.weight", 1, "layers.0", "[16, 8]", 128, False, None, None],
        ["layers.0.bias", 2, "layers.0", "[16]", 16, False, None, None],
        ["layers.1.weight", 3, "layers.1", "[16]", 16, True, None, None],
        ["layers.1.bias", 4, "layers.1", "[16]", 16, True, None, None],
        ["head.weight", 5, "head", "[4, 16]", 64, True, "AdamW", 0],
        ["head.bias", 6, "head", "[4]", 4, True, "AdamW", 0],
        ["Critic.body.0.weight", 0, "Critic.body.0", "[3, 4]", 12, True, "SGD", 0],
        ["Critic.body.0.bias", 1, "Critic.body.0", "[3]", 3, True, "SGD", 0],
        ["Critic.body.1.weight", 2, "Critic.body.1", "[1, 3]", 3, True, "SGD", 0],
        ["Critic.body.1.bias", 3, "Critic.body.1", "[1]", 1, True, "SGD", 0],
    ]


def test_modules_tell_their_mode_their_size_and_what_numerics_hang_on(run: tuple[Place, Job]) -> None:
    rows = ask(*run, "SELECT module, class, training, parameters, trainable, eps, p FROM python.modules "
                     "WHERE module NOT LIKE 'Critic%' ORDER BY module")
    assert rows == [
        ["", "Generator", True, 1, 1, None, None], ["head", "Linear", True, 68, 68, None, None],
        ["layers", "Sequential", True, 0, 0, None, None], ["layers.0", "Linear", True, 144, 0, None, None],
        ["layers.1", "LayerNorm", True, 32, 32, 1e-7, None], ["layers.2", "Dropout", True, 0, 0, None, 0.25],
    ]
    modes = ask(*run, "SELECT DISTINCT training_mode FROM python.steps WHERE NOT shadow AND step > 0")
    assert modes == [[True]]


def test_hyperparameters_and_seeds_are_found_and_secrets_are_not_kept(run: tuple[Place, Job]) -> None:
    rows = ask(*run, "SELECT kind, name, value FROM probe.facts")
    facts = {(kind, name): value for kind, name, value in rows}
    wanted = {
        ("hyperparameter", "args.learning_rate"): "0.05", ("hyperparameter", "args.api_key"): "<redacted>",
        ("seed", "seed"): "1234", ("seed", "torch"): "1234", ("hyperparameter", "optimizer"): "AdamW",
        ("hyperparameter", "optimizer.lr"): "0.05", ("hyperparameter", "optimizer.weight_decay"): "0.1",
        ("hyperparameter", "optimizer.group1.weight_decay"): "0.0", ("hyperparameter", "optimizer2"): "SGD",
        ("hyperparameter", "scheduler"): "StepLR", ("hyperparameter", "scheduler.step_size"): "1000",
        ("hyperparameter", "loader.batch_size"): "8", ("hyperparameter", "loader.shuffle"): "True",
        ("hyperparameter", "loader.dataset_length"): "6400", ("environment", "NCCL_DEBUG"): "WARN",
        ("model", "class"): "Generator", ("model", "parameters"): "245", ("model", "trainable"): "101",
        ("package", "torch"): torch.__version__,
    }
    assert {key: facts.get(key) for key in wanted} == wanted
    assert not any("0123456789abcdef" in str(value) for value in facts.values())
    assert facts[("command", "script")].endswith("known_run.py") and ("package", "duckdb") in facts


def test_what_the_job_logs_itself_is_kept_with_its_source_and_its_step(run: tuple[Place, Job]) -> None:
    rows = ask(*run, "SELECT source, name, any_value(value), max(logged_step) > 0, count(*) = "
                     "count(DISTINCT t_ns) FROM python.scalars WHERE name <> 'train/loss' "
                     "GROUP BY ALL ORDER BY ALL")
    assert rows == [
        ["mlflow", "f1", 0.25, True, True], ["mlflow", "recall", 1.0, None, True],
        ["probe", "mine", 3.0, None, True], ["tensorboard", "norms/a", 1.5, True, True],
        ["wandb", "val.acc", 0.5, True, True],
    ]
    assert ask(*run, "SELECT count(*) > 0, bool_and(abs(value - loss) < 1e-6) FROM python.scalars AS logged "
                     "JOIN python.steps ON steps.step = logged.logged_step - 1 "
                     "WHERE name = 'train/loss'") == [[True, True]]


def test_host_memory_has_a_limit_and_what_is_left_of_it(run: tuple[Place, Job]) -> None:
    [[available, limit, device]] = ask(
        *run, "SELECT available_bytes, limit_bytes, device_total_bytes FROM process.memory "
              "ORDER BY t_ns DESC LIMIT 1")
    assert 0 < available < limit and device is None


def test_a_run_compared_with_itself_shows_no_difference_and_its_health_names_the_phases(
    run: tuple[Place, Job]
) -> None:
    place, job = run
    shown = run_probe(place, str(job.pid), "health")
    assert shown.returncode == 0, shown.stderr
    for word in ("known_run/0", "loss", "lr 0.05", "backward", "samples/s", "available"):
        assert word in shown.stdout, shown.stdout
    # Without findings: those of `health` are what all recipes find, which takes three seconds.
    socket = places.server_socket(place.directory)
    answer = wire.call(socket, "GET", "/v1/summary?endpoint=known_run", timeout_s=PATIENCE_S)
    phases = answer["speed"]["phases"]
    assert phases["comm_s"] is None and 0 < phases["data_s"]["share"] < 1
    assert answer["speed"]["mfu"] is None and answer["learning"]["training_mode"] is True
    tell(job)  # or the second summary is of a later step, and both are made once more
    job.result()
    same = json.loads(run_probe(place, str(job.pid), "compare", "known_run", "--format", "json").stdout)
    assert "no difference in step time or loss" in same["conclusion"], same
    assert not [one for one in same["differences"] if one["section"] in ("configuration", "environment")]


# Without a job -----------------------------------------------------------------


class _Stand:
    """In place of the recorder, the names, the optimizers and the journal."""

    step = counted_step = 5
    last_row: dict[int, Any] | None = None
    phase = "backward"
    interval = None
    ready = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.records: list[dict[str, Any]] = []
        self.thread = None
        self.others: list[torch.optim.Optimizer] = []
        self.others_stepped: dict[int, int] = {}

    def prefix(self, model: nn.Module, *, first: bool) -> str:
        return ModuleNames.prefix(self, model, first=first)  # type: ignore[arg-type]

    def roots(self) -> list[nn.Module]:
        return [self.model]

    def path(self, module: nn.Module) -> str | None:
        named = self.model.named_modules()
        return next((name or type(one).__name__ for name, one in named if one is module), None)

    def alive(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer, *self.others]

    def leader(self) -> torch.optim.Optimizer:
        return self.optimizer

    def append(self, record: dict[str, Any], *, bulk: bool = False) -> bool:
        self.records.append(json.loads(json.dumps(record)))
        return True

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for record in self.records if record["table"] == table for row in record["rows"]]


def looked(stand: _Stand, facts: ModelFacts) -> None:
    """One whole look."""
    stand.records.clear()
    facts._next_s = 0.0
    facts.step()
    while facts._walk is not None:
        facts.step()


class _Hostile(nn.Module):
    """Whoever asks it for something else than its dictionary runs code of the job's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.asked: list[str] = []

    @property
    def eps(self) -> float:
        raise AssertionError("the job's own code was called")

    def __getattr__(self, name: str) -> Any:
        if name in ("p", "training"):
            raise AssertionError("the job's own code was called")
        return super().__getattr__(name)


def test_only_what_changed_is_written_again_and_no_code_of_the_jobs_is_called() -> None:
    model = nn.Sequential(_Hostile(), nn.Linear(2, 2), nn.LazyLinear(3))
    tied = model[1].weight
    model[0].inner.weight = tied
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    stand = _Stand(model, optimizer)
    facts = ModelFacts(stand, stand, stand, stand, stand)  # type: ignore[arg-type]
    looked(stand, facts)
    names = [row["param"] for row in stand.rows("python.parameters")]
    assert names == [name for name, _ in model.named_parameters()]
    assert len(stand.rows("python.modules")) == len(list(model.modules()))
    looked(stand, facts)
    assert stand.records == []
    model[1].bias.requires_grad_(False)
    model[0].inner.train(False)
    looked(stand, facts)
    assert [row["param"] for row in stand.rows("python.parameters")] == ["1.bias"]
    assert {row["module"]: row["training"] for row in stand.rows("python.modules")}["0.inner"] is False


def test_a_change_of_the_steps_mode_is_followed_by_one_walk_before_the_next_is_due() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    stand = _Stand(model, torch.optim.SGD(model.parameters(), lr=0.1))
    facts = ModelFacts(stand, stand, stand, stand, stand)  # type: ignore[arg-type]
    stand.last_row = {_TRAINING_MODE: True}
    looked(stand, facts)
    facts._early_s = 0.0
    facts.step()
    assert facts._walk is None, "the mode is as it was"

    def changed(*, training: bool) -> None:
        stand.records.clear()
        model.train(training)
        stand.last_row = {_TRAINING_MODE: training}
        for _ in range(1000):
            facts.step()

    changed(training=False)
    assert {row["module"]: row["training"] for row in stand.rows("python.modules")}["1"] is False
    changed(training=True)
    assert stand.records == [], "a second walk waits until it is due"


def test_what_has_no_effect_and_what_piles_up_stands_in_the_rows() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad = False  # type: ignore[assignment]
    model[1].bias.require_grad = False
    for _ in range(20):
        model[1].register_forward_hook(lambda *_: None)
    stand = _Stand(model, torch.optim.SGD(model.parameters(), lr=0.1))
    both, idle = (torch.optim.SGD([model[1].weight], lr=0.1) for _ in range(2))
    wrapper = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper.base_optimizer = stand.optimizer  # type: ignore[attr-defined]
    wrapper.param_groups = stand.optimizer.param_groups
    stand.others = [both, idle, wrapper]
    stand.others_stepped = {id(both): stand.step - 1, id(wrapper): stand.step - 1}
    looked(stand, ModelFacts(stand, stand, stand, stand, stand))  # type: ignore[arg-type]
    modules = {row["module"]: row for row in stand.rows("python.modules")}
    assert [modules[name]["requires_grad"] for name in ("", "0", "1")] == [None, False, None]
    assert [modules[name]["hooks"] for name in ("0", "1")] == [0, 16]
    parameters = {row["param"]: row for row in stand.rows("python.parameters")}
    assert [parameters[name]["misspelt"] for name in ("1.weight", "1.bias")] == [None, "require_grad"]
    assert [parameters[name]["optimizers"] for name in ("0.weight", "1.weight")] == [1, 2]


def test_values_are_found_in_the_usual_containers_and_nothing_else_is_read() -> None:
    class Config:
        width = 3
        name = "x"

        def __init__(self) -> None:
            self.deep = {"lr": 0.1, "_own": 1, "layers": [1, 2]}
            self.model = object()
            self.text = "y" * 10_000

        @property
        def bad(self) -> int:
            raise AssertionError

    assert dict(flat("cfg", Config())) == {
        "cfg.width": 3, "cfg.name": "x", "cfg.deep.lr": 0.1, "cfg.deep.layers": "[1, 2]",
    }
    assert list(flat("args", (1, 2))) == [] and list(flat("args", lambda: 1)) == []


@pytest.mark.parametrize("version", [1, 2])
def test_the_memory_limit_is_the_smallest_of_the_groups_above(tmp_path: Path, version: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 900 kB\n")
    top = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    inner = top / "outer/inner"
    inner.mkdir(parents=True)
    line = "4:memory:/outer/inner" if version == 1 else "0::/outer/inner"
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    limit, usage, cache = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file") if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    assert HostMemoryReader(tmp_path).read() == HostMemory(900 * 1024, 1000 * 1024)
    (inner / limit).write_text("9223372036854771712\n" if version == 1 else "max\n")
    (inner.parent / limit).write_text("500000\n")
    (inner.parent / usage).write_text("400000\n")
    (inner.parent / "memory.stat").write_text(f"cache 9\n{cache} 150000\n")
    assert HostMemoryReader(tmp_path).read() == HostMemory(250_000, 500_000)
