"""Facts about each rank of a job, as plain data that servers exchange.

Each host's server collects the facts of its own ranks; `job_rules.diagnose_job` receives all of them. None
means unknown. Pure. Standard library only; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from probe.base import rank_sets
from probe.diagnose.finding import Finding
from probe.diagnose.process import wording
from probe.diagnose.process.stall_thresholds import DEFAULTS
from probe.diagnose.states import OK

DEFAULT_GROUP = "0"
CALLS_SENT = 256
"""Number of last rows of python.collectives sent to another host: 40 KB per rank."""
PENDING, DONE, FAILED = "pending", "done", "failed"
_POINT_TO_POINT = ("send", "isend", "recv", "irecv", "recv_anysource")


class Call(NamedTuple):
    """One row of python.collectives; see that table for the columns."""

    step: int | None
    t_ns: int
    pg: str | None
    ranks: str | None
    seq: int | None
    op: str | None
    dtype: str | None
    shapes: str | None
    elements: int | None
    peer: int | None
    call_site: str | None
    asynchronous: bool | None
    duration_s: float | None
    wait_s: float | None
    state: str | None
    source: str | None

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return self.op in _POINT_TO_POINT

    def members(self, world_size: int) -> frozenset[int]:
        """Ranks of the job that take part."""
        if not self.ranks:
            return frozenset(range(world_size))
        try:
            return frozenset(rank_sets.from_text(self.ranks))
        except ValueError:
            return frozenset(range(world_size))

    @property
    def name(self) -> str:
        """`all_reduce #54,611 (default group)`."""
        number = f" #{self.seq:,}" if self.seq is not None else ""
        if self.point_to_point:
            where = " from" if self.op and "recv" in self.op else " to"
            return f"{self.op}{where} rank {self.peer}" if self.peer is not None else str(self.op)
        default = self.pg in (None, DEFAULT_GROUP)
        group = "default group" if default else f"group {self.pg} of ranks {self.ranks}"
        return f"{self.op}{number} ({group})"

    @property
    def content(self) -> str:
        """The input: `1,024 × Float (32, 32)`."""
        size = f"{self.elements:,} × " if self.elements is not None else ""
        shapes = f" {self.shapes}" if self.shapes else ""
        return f"{size}{self.dtype or 'no tensor'}{shapes}"

    @property
    def place(self) -> str:
        """Where it was called."""
        return self.call_site or "C++ (DistributedDataParallel, inside backward)"


class Step(NamedTuple):
    """One row of python.steps; see that table for the columns."""

    step: int
    t_ns: int
    wall_s: float
    data_s: float | None
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    comm_s: float | None
    held_s: float | None
    other_s: float | None
    samples: int | None
    tokens: int | None
    sampled: bool | None
    shadow: bool | None


@dataclass(frozen=True)
class Facts:
    """Facts about one rank. Durations are seconds before `now_ns`."""

    rank: int
    pid: int
    host: str
    job: str
    world_size: int
    now_ns: int
    state: str
    """State in the registry: `running`, `starting`, `finished`, `failed`, `dead`."""
    how: str = ""
    exit_status: int | None = None
    ended_ns: int | None = None
    """When its end began: at its exception, before the process was gone."""
    raised: str | None = None
    """The exception that ended it: type, place, message."""
    step: int | None = None
    last_step_s: float | None = None
    usual_step_s: float | None = None
    quiet_s: float | None = None
    """Since the training thread wrote a row of any kind."""
    late_s: float | None = None
    """Quiet time beyond which a step is late."""
    usual_quiet_s: float | None = None
    """Quiet time up to which it counts as running normally."""
    phase: str | None = None
    phase_s: float | None = None
    calls: tuple[Call, ...] = ()
    """The last rows of python.collectives, oldest first."""
    steps: tuple[Step, ...] = ()
    verdict: Finding | None = None
    """The verdict on this rank alone; None if it was not examined."""
    frame: str | None = None
    """The current frame of its training thread, or the last one if it ended."""
    cpu_wait_ratio: float | None = None
    """Share of the last samples' time in which its training thread was ready to run, but waited for a CPU."""

    @property
    def lives(self) -> bool:
        """Whether the process is running."""
        return self.state in ("running", "starting", "idle")  # `idle`: a host with an older server

    @property
    def killed(self) -> bool:
        """Whether it ended abnormally."""
        return self.state in ("failed", "dead")

    @property
    def name(self) -> str:
        """`rank 1 (pid 4242)`."""
        return f"rank {self.rank} (pid {self.pid})"

    @property
    def pending(self) -> Call | None:
        """The last call that is still pending."""
        return next((call for call in reversed(self.calls) if call.state == PENDING), None)

    @property
    def last_call(self) -> Call | None:
        """The call that it entered last."""
        return self.calls[-1] if self.calls else None

    @property
    def is_late(self) -> bool:
        """Whether it has been quiet for too long."""
        known = self.quiet_s is not None and self.late_s is not None
        return self.lives and known and (self.quiet_s or 0.0) > (self.late_s or 0.0)

    @property
    def gets_on(self) -> bool:
        """Whether its training thread wrote a row of any kind recently."""
        if not self.lives or self.quiet_s is None or self.usual_step_s is None:
            return False
        usual_s = self.usual_quiet_s
        if usual_s is None:
            usual_s = max(DEFAULTS.quiet_s, DEFAULTS.quiet_steps * self.usual_step_s)
        if self.late_s is not None:  # with a short limit, a second is not "recently"
            usual_s = min(usual_s, self.late_s / 4)
        return self.quiet_s <= usual_s

    @property
    def off(self) -> bool:
        """Whether it is alive but not running normally."""
        looked = self.verdict is not None and self.verdict.severity != OK
        return self.lives and (self.is_late or looked)

    def issued(self, call: Call) -> bool:
        """Whether it entered this collective, or a later one of the same group."""
        return call.seq is not None and any(
            own.pg == call.pg and own.seq is not None and own.seq >= call.seq for own in self.calls
        )

    def as_dict(self) -> dict[str, Any]:
        """The facts as a JSON object; the last rows as lists."""
        found = asdict(replace(self, calls=(), steps=()))
        found["verdict"] = self.verdict and self.verdict.as_dict()
        found["calls"] = [list(call) for call in self.calls[-CALLS_SENT:]]
        found["steps"] = [list(step) for step in self.steps]
        return found

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Facts:
        """The facts from another server's `as_dict`; raises `ValueError`, `TypeError` or `KeyError`."""
        known = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
        known["calls"] = tuple(Call(*row) for row in raw.get("calls", ()))
        known["steps"] = tuple(Step(*row) for row in raw.get("steps", ()))
        known["verdict"] = None if raw.get("verdict") is None else Finding(**raw["verdict"])
        return cls(**known)

    def line(self) -> str:
        """The rank's progress in one line."""
        at = f"last finished step {self.step:,}" if self.step is not None else "no step finished yet"
        if self.last_step_s is not None and self.lives:
            at += f", {wording.seconds(self.last_step_s)} ago"
        phase = f", phase {self.phase}" if self.phase and self.phase != "other" and self.lives else ""
        return f"{at}{phase}"


def calls_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    """Rows of python.collectives as calls, in the order of entry."""
    found = [Call(*(row.get(name) for name in Call._fields)) for row in rows]  # type: ignore[arg-type]
    return tuple(sorted(found, key=lambda call: call.t_ns or 0))


def steps_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Rows of python.steps as steps."""
    return tuple(Step(*(row.get(name) for name in Step._fields)) for row in rows)  # type: ignore[arg-type]
