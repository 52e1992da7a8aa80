"""Bodies of the server's requests: strict, so that a misspelt field is an error and not ignored.

Checked on the server's event loop. May import pydantic.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probe.server.runtime.access import Scope

DEFAULT_ROWS = 10_000
MOST_ROWS = 1_000_000
LONGEST_WAIT_S = 3600.0
"""Of a snippet, and of waiting for the end of a step."""


_B = TypeVar("_B", bound="Body")


class Body(BaseModel):
    """A request's body: nothing unknown in it, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_text(self: _B) -> _B:
        """Half a character (a lone surrogate) in what may hold anything cannot be passed on."""
        try:
            for value in vars(self).values():
                if isinstance(value, dict):
                    json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("a text in it holds half a character, or it is nested too deeply") from None
        return self


class QueryBody(Body):
    """Body of `POST /v1/query`. `timeout_s` can shorten the server's own deadline, not lengthen it."""

    endpoint: str = Field("", max_length=4096)
    sql: str = Field(max_length=64 << 10)
    limit: int = Field(DEFAULT_ROWS, ge=1, le=MOST_ROWS)
    timeout_s: float | None = Field(None, gt=0, le=86400)
    scope: Scope = "job"


class RowsBody(Body):
    """Body of `POST /v1/rows`: the rows of one host that `sql` may read, in at most about `room_bytes`."""

    endpoint: str = Field("", max_length=4096)
    sql: str = Field(max_length=64 << 10)
    room_bytes: int = Field(ge=1, le=1 << 40)
    timeout_s: float = Field(gt=0, le=86400)
    scope: Scope = "host"


class EvalBody(Body):
    """Body of `POST /v1/eval`. `wait_s`: how long a snippet that changes the job waits for a step's end.

    `when`: `auto` as the guard says, `now` on a thread of its own whatever it does, `step` between two
    steps even when it only reads. `force`: also what the guard would refuse and may be forced. `together`:
    on all ranks at the same step even when it only reads, and with collectives."""

    endpoint: str = Field("", max_length=4096)
    code: str = Field(max_length=512 << 10)
    timeout_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    wait_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    when: Literal["auto", "now", "step"] = "auto"
    force: bool = False
    together: bool = False
    scope: Scope = "job"


class ActBody(Body):
    """Body of `POST /v1/act`: an action by its name. `now`: on a thread of its own, not between steps."""

    endpoint: str = Field("", max_length=4096)
    action: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)
    wait_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    now: bool = False
    force: bool = False
    scope: Scope = "job"


class UndoBody(Body):
    """Body of `POST /v1/undo`: the `id` that the action was answered with."""

    endpoint: str = Field("", max_length=4096)
    id: str = Field(min_length=1, max_length=64)
    wait_s: float | None = Field(None, gt=0, le=LONGEST_WAIT_S)
    scope: Scope = "job"


class TogetherBody(Body):
    """Body of `POST /v1/together`: one phase of what all ranks do at the same step, for the ranks of one
    host. `asked` is what the agents are told in it; `step` has the step of each rank by its number."""

    endpoint: str = Field("", max_length=4096)
    id: str = Field(min_length=1, max_length=64)
    phase: Literal["judge", "prepare", "arm", "open", "gather", "decide", "outcome", "drop"]
    asked: dict[str, Any] = Field(default_factory=dict)
    steps: dict[str, int] = Field(default_factory=dict)
    timeout_s: float = Field(gt=0, le=2 * LONGEST_WAIT_S)
    scope: Scope = "host"


class OnIncident(Body):
    """An action that is done when `recipe` opens an incident; `words` is how it was typed."""

    recipe: str = Field(min_length=1, max_length=64)
    words: str = Field(min_length=1, max_length=4096)
    action: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)
    now: bool = False


class MonitorBody(Body):
    """Body of `POST /v1/monitor`: destinations to add and to remove (by URL or number), actions of one job
    to add and, by recipe, to take out; `test`: send a message to every destination now."""

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
    """A host that another server wants asked."""

    name: str = Field(max_length=255)
    url: str = Field(max_length=512)


class RelayBody(Body):
    """Body of `POST /v1/relay`: a question for other hosts, in a role of which none may do more."""

    method: Literal["GET", "POST"]
    path: str = Field(max_length=64)
    body: dict[str, Any]
    role: Literal["viewer", "operator"]
    timeout_s: float = Field(gt=0, le=LONGEST_WAIT_S)
    hosts: list[RelayedHost] = Field(max_length=1024)


class PruneBody(Body):
    """Body of `POST /v1/prune`: what is to fit a recording that is deleted; at least one of them."""

    older_than_s: float | None = Field(None, ge=0)
    keep: int | None = Field(None, ge=0)
    job: str | None = Field(None, max_length=4096)
    dry_run: bool = False


class ErrorText(BaseModel):
    """What went wrong (`message`) and what to do next (`hint`); `code` is one of probe/base/errors.py."""

    code: str
    message: str
    hint: str


class ErrorAnswer(BaseModel):
    """The one shape of all errors."""

    error: ErrorText
