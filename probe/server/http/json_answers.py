"""The routes' answers, for `/openapi.json`; they are not validated when answering, but by tests.

An `OpenAnswer` may have more fields than are listed here. May import pydantic.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from probe.diagnose.recipes.recipe import Zone
from probe.server.runtime import packed_answers
from probe.server.runtime.request_bodies import ErrorAnswer, ErrorText

AN_ERROR: dict[str, Any] = {
    "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}},
}
"""An `ErrorAnswer`, in the description of a route. A `model` would be prepared anew for every status of every
route, which takes half of the time to build the application."""
AGENT_ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys((409, 410, 504), AN_ERROR)
"""Errors of routes that call agents or other hosts."""
PACKED: dict[int | str, dict[str, Any]] = {
    **AGENT_ERRORS, 200: {"content": {packed_answers.MEDIA_TYPE: {}}},
}


class Answer(BaseModel):
    """An answer with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class OpenAnswer(BaseModel):
    """An answer that has at least these fields."""

    model_config = ConfigDict(extra="allow")


class ThreadFailure(Answer):
    """A part of the server that failed and was restarted."""

    thread: str
    times: int
    last: str
    ago_s: float


class Health(Answer):
    """The server's state, and the caller's role."""

    status: Literal["ok"]
    version: str
    pid: int
    uptime_s: float
    processes: int
    unreadable: int
    failures: list[ThreadFailure]
    role: str


class Process(OpenAnswer):
    """A recorded process. `total_steps`: the step at which it will end, according to `total_source`;
    `left_s`: the time until then, at the usual step time; null if unknown. `figures` on request."""

    job: str
    name: str
    run: str
    attempt: int
    rank: int
    local_rank: int | None
    world_size: int | None
    host: str
    pid: int
    state: str
    how: str
    exit_status: int | None
    step: int | None
    last_step_s: float | None
    last_seen_s: float | None
    started_ns: int
    ended_ns: int | None
    elapsed_s: float
    total_steps: int | None
    total_source: str | None
    left_s: float | None
    folder: str
    argv: list[str]


class Processes(Answer):
    """The recorded processes."""

    processes: list[Process]
    notes: list[str]


class TableColumn(Answer):
    """A column as it is declared."""

    name: str
    type: str
    unit: str
    doc: str


class Table(Answer):
    """A table."""

    name: str
    doc: str
    source: str
    columns: list[TableColumn]
    example: str


class Tables(Answer):
    """Every table."""

    tables: list[Table]


class Frame(OpenAnswer):
    """A frame of a stack; `depth` 0 is the innermost. `locals` on request."""

    depth: int
    func: str
    file: str | None
    lineno: int | None
    frame_type: str
    module: str | None = None
    is_user: bool | None = None


class ThreadStack(OpenAnswer):
    """A thread and its frames, the innermost first."""

    thread_id: int | None = None
    thread_name: str | None = None
    training: bool | None = None
    frames: list[Frame]


class StackNode(OpenAnswer):
    """A frame that the stacks of `ranks` (`0,2-7`) go through, as in cluster.stacks."""

    node: int
    parent: int | None
    depth: int
    func: str
    file: str | None
    lineno: int | None
    ranks: str
    rank_count: int
    ends: int


class StackClass(OpenAnswer):
    """Ranks whose training threads are at the same place, as in cluster.stack_classes."""

    number: int = Field(alias="class")
    ranks: str
    rank_count: int
    state: str
    stack: str
    phase: str | None = None
    step: int | None = None


class Capture(OpenAnswer):
    """Stacks of one process (`threads`), or of the ranks of a job (`ranks`, `tree`, `classes`, `missing`).
    `source`: `agent`, `outside` or `recording`."""

    source: str | None = None
    pid: int | None = None
    t_ns: int | None = None
    step: int | None = None
    phase: str | None = None
    notes: list[str] | None = None
    threads: list[ThreadStack] | None = None
    ranks: dict[str, Capture] | None = None
    tree: list[StackNode] | None = None
    classes: list[StackClass] | None = None
    missing: list[str] | None = None


class Finding(OpenAnswer):
    """A finding of a recipe."""

    recipe: str
    severity: str
    what: str
    why: list[str]
    next: list[str]
    step: int | None
    rank: int | None


class Unknown(Answer):
    """A recipe that could not be evaluated, and why."""

    recipe: str
    title: str
    reason: str


class Counts(Answer):
    """How many recipes had which result."""

    found: int
    clear: int
    unknown: int


class Diagnosis(OpenAnswer):
    """A verdict, its evidence, and the results of the recipes (without them for a process without an agent).
    For another host's server: the facts alone."""

    job: str | None = None
    state: str | None = None
    severity: str | None = None
    what: str | None = None
    why: list[str] | None = None
    next: list[str] | None = None
    evidence: dict[str, Any] | None = None
    notes: list[str] | None = None
    findings: list[Finding] | None = None
    position: int | None = None
    judged: Counts | None = None
    unknown: list[Unknown] | None = None


class RecipeParameter(Answer):
    """A threshold of a recipe."""

    name: str
    value: bool | float | str
    unit: str
    source: str


class Recipe(OpenAnswer):
    """A recipe."""

    name: str
    title: str
    severity: str
    what: str
    why: list[str]
    next: list[str]
    parameters: list[RecipeParameter]
    sql: str
    zone: Zone | None
    built_in: bool


class Recipes(Answer):
    """The recipes, the stall thresholds, and problems in their files."""

    recipes: list[Recipe]
    stall_thresholds: list[RecipeParameter]
    problems: list[str]


class Summary(OpenAnswer):
    """Learning, speed and memory of a run."""

    job: str
    run: str
    rank: int
    pid: int
    host: str
    state: str
    name: str
    steps: dict[str, Any]
    learning: dict[str, Any]
    speed: dict[str, Any]
    memory: dict[str, Any]
    unread: list[str]
    notes: list[str]


class Column(Answer):
    """A column of rows."""

    name: str
    type: str


class Rows(Answer):
    """Rows of a query; `truncated`: there are more."""

    columns: list[Column]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float
    notes: list[str]


class Detached(Answer):
    """A process whose agent has stopped."""

    pid: int
    name: str
    folder: str
    ended: list[Any]


class PrunedRecording(OpenAnswer):
    """A recording; `why` it was left, if it was."""

    bytes: int
    why: str | None = None


class Pruned(Answer):
    """Recordings that were deleted, or would be."""

    deleted: list[PrunedRecording]
    left: list[PrunedRecording]
    dry_run: bool
    bytes: int


class Raised(OpenAnswer):
    """The exception of a snippet."""

    type: str
    message: str
    traceback: str | None = None
    hint: str | None = None


class RankAnswer(OpenAnswer):
    """One rank's answer, or its error."""

    rank: int
    pid: int | None = None
    host: str | None = None
    answer: dict[str, Any] | None = None
    error: ErrorText | None = None


class Evaluated(OpenAnswer):
    """The result of a snippet in one process, or (`answers`) in all ranks."""

    output: str | None = None
    value: str | None = None
    error: Raised | None = None
    step: int | None = None
    answers: list[RankAnswer] | None = None
    missing: list[str] | None = None


class Acted(OpenAnswer):
    """The result of an action in one process, or (`answers`) in all ranks."""

    id: str
    step: int | None
    what: str | None
    notes: list[str] | None
    action: str | None = None
    state: str | None = None
    undoable: bool | None = None
    answers: list[RankAnswer] | None = None
    missing: list[str] | None = None


class RankReply(OpenAnswer):
    """One rank's reply."""

    rank: int
    pid: int
    host: str


class Phase(OpenAnswer):
    """One host's part of a phase of a coordinated request."""

    ranks: list[RankReply] | None = None


class Rank(OpenAnswer):
    """A rank of a job; null where another host sent no value. `midway`: whether its recording began after its
    first step."""

    run: str
    attempt: int
    rank: int
    pid: int
    started_ns: int
    endpoint: str
    lag_steps: int | None
    job: str | None
    local_rank: int | None
    world_size: int | None
    host: str | None
    state: str | None
    how: str | None
    step: int | None
    last_step_s: float | None
    last_seen_s: float | None
    ended_ns: int | None
    elapsed_s: float | None
    total_steps: int | None
    total_source: str | None
    left_s: float | None
    midway: bool | None


class JobHost(Answer):
    """A host of a job."""

    host: str
    url: str | None
    source: str
    state: str
    error: str | None
    elapsed_s: float | None


class Ranks(Answer):
    """All ranks of a job on all hosts."""

    ranks: list[Rank]
    hosts: list[JobHost]
    missing: list[str]
    world_size: int | None


class Held(Answer):
    """A host's part of a run."""

    run: str
    ranks: str
    attempt: int
    world_size: int | None
    started_ns: int | None
    ended_ns: int | None


class Peer(Answer):
    """Another host's server."""

    name: str
    url: str


class Peers(Answer):
    """A host's identity, its part of a run, and the other hosts that it knows."""

    id: str
    host: str
    held: Held
    peers: list[Peer]


class Incident(OpenAnswer):
    """Something that is wrong with a run."""

    incident: str
    job: str
    run: str
    rank: int | None
    recipe: str
    severity: str
    step: int | None
    what: str
    why: list[str]
    next: list[str]
    opened_ns: int
    lives: bool


class Destination(Answer):
    """A destination of alerts; `least`: the minimum severity."""

    number: int
    destination: str
    least: str
    added: bool


class AutomaticAction(OpenAnswer):
    """An action that the server runs when a recipe opens an incident."""

    run: str
    job: str
    recipe: str
    words: str


class Monitoring(OpenAnswer):
    """Open incidents; for operators also destinations and automatic actions."""

    monitor: bool
    incidents: list[Incident]
    notes: list[str]
    destinations: list[Destination] | None = None
    rules: list[AutomaticAction] | None = None
