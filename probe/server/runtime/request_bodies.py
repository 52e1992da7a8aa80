"""Bodies of the server's requests. They are strict: a misspelt field is an error.

Checked on the server's event loop. May import pydantic.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probe.server.runtime.access import Scope

DEFAULT_ROWS = 10_000
MOST_ROWS = 1_000_000
LONGEST_SQL = 64 << 10
LONGEST_WAIT_S = 3600.0
"""Limit of a snippet's run time, and of the wait for the end of a step."""


_B = TypeVar("_B", bound="Body")


class Body(BaseModel):
    """A request's body: unknown fields are refused, values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_text(self: _B) -> _B:
        """Refuse lone surrogates in free-form values: they cannot be encoded."""
        try:
            for value in vars(self).values():
                if isinstance(value, dict):
                    json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("it contains a lone surrogate, or is nested too deeply") from None
        return self


class QueryBody(Body):
    """Body of `POST /v1/query`. `timeout_s` can only shorten the server's own limit."""

    endpoint: str = Field("", max_length=4096)
    sql: str = Field(max_length=LONGEST_SQL)
    limit: int = Field(DEFAULT_ROWS, ge=1, le=MOST_ROWS)
    timeout_s: float | None = Field(None, gt=0, le=86400)
    scope: Scope = "job"


class RowsBody(Body):
    """Body of `POST /v1/rows`: the rows of one host that `sql` may read, in about `room_bytes` at most.

    `sql` is searched for names, and not run: `remote_rows.searchable` of one or more statements."""

    endpoint: str = Field("", max_length=4096)
    sql: str = Field(max_length=LONGEST_SQL)
    room_bytes: int = Field(ge=1, le=1 << 40)
    timeout_s: float = Field(gt=0, le=86400)
    scope: Scope = "host"


class EvalBody(Body):
    """Body of `POST /v1/eval`. `wait_s`: how long a snippet that changes the job waits for a step's end;
    `wait_anyway`: wait even if the job is known to be stalled.

    `when`: `auto` as the guard decides, `now` at once on its own thread, `step` between two steps,
    `reading` at once, and only if it changes nothing. `force`: override a refusal of the guard that can be
    overridden. `together`: on all ranks at the same step, with collectives allowed."""

    endpoint: str = Field("", max_length=4096)
    code: str = Field(max_length=512 << 10)
    timeout_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    wait_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    wait_anyway: bool = False
    when: Literal["auto", "now", "step", "reading"] = "auto"
    force: bool = False
    together: bool = False
    scope: Scope = "job"


class ActBody(Body):
    """Body of `POST /v1/act`: an action by its name. `now`: at once on its own thread, not between steps."""

    endpoint: str = Field("", max_length=4096)
    action: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)
    wait_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    wait_anyway: bool = False
    now: bool = False
    force: bool = False
    scope: Scope = "job"


class UndoBody(Body):
    """Body of `POST /v1/undo`: the `id` in the answer to the action."""

    endpoint: str = Field("", max_length=4096)
    id: str = Field(min_length=1, max_length=64)
    wait_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    wait_anyway: bool = False
    scope: Scope = "job"


class TogetherBody(Body):
    """Body of `POST /v1/together`: one phase of a coordinated request, for the ranks of one host. `asked` is
    passed to the agents; `steps` has the step of each rank."""

    endpoint: str = Field("", max_length=4096)
    id: str = Field(min_length=1, max_length=64)
    phase: Literal["judge", "prepare", "arm", "open", "gather", "decide", "outcome", "drop"]
    asked: dict[str, Any] = Field(default_factory=dict)
    steps: dict[str, int] = Field(default_factory=dict)
    timeout_s: float = Field(gt=0, le=2 * LONGEST_WAIT_S)
    scope: Scope = "host"


class OnIncident(Body):
    """An action to run when `recipe` opens an incident; `words` is how it was typed."""

    recipe: str = Field(min_length=1, max_length=64)
    words: str = Field(min_length=1, max_length=4096)
    action: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)
    now: bool = False


class MonitorBody(Body):
    """Body of `POST /v1/monitor`: destinations to add and to remove (by URL or number), automatic actions of
    one job to add and, by recipe, to remove; `test`: send a message to every destination now."""

    endpoint: str = Field("", max_length=4096)
    notify: list[str] = Field(default_factory=list, max_length=32)
    remove: list[str] = Field(default_factory=list, max_length=32)
    test: bool = False
    on: list[OnIncident] = Field(default_factory=list, max_length=32)
    off: list[str] = Field(default_factory=list, max_length=32)


class EndpointBody(Body):
    """Body of `POST /v1/detach`."""

    endpoint: str = Field("", max_length=4096)


class RelayedHost(Body):
    """A host that a request is relayed to."""

    name: str = Field(max_length=255)
    url: str = Field(max_length=512)


class RelayBody(Body):
    """Body of `POST /v1/relay`: a request for other hosts, with the role that limits it."""

    method: Literal["GET", "POST"]
    path: str = Field(max_length=64)
    body: dict[str, Any]
    role: Literal["viewer", "operator"]
    timeout_s: float = Field(gt=0, le=LONGEST_WAIT_S)
    hosts: list[RelayedHost] = Field(max_length=1024)


class PruneBody(Body):
    """Body of `POST /v1/prune`: the recordings to delete, which match all criteria that are given (at least
    one): ended at least `older_than_s` ago, beyond the newest `keep` runs of their job, of `job`."""

    older_than_s: float | None = Field(None, ge=0)
    keep: int | None = Field(None, ge=0)
    job: str | None = Field(None, max_length=4096)
    dry_run: bool = False


class ErrorText(BaseModel):
    """What happened (`message`) and what to do (`hint`); `code` is one of probe/base/errors.py."""

    code: str
    message: str
    hint: str


class ErrorAnswer(BaseModel):
    """The shape of all errors."""

    error: ErrorText
