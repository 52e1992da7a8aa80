"""The tree of errors that a user may see.

    ProbeError
    ├── UsageError            exit 2   bad argument, setting or snippet
    │   ├── SettingInvalid
    │   ├── SqlInvalid
    │   ├── RecipeInvalid
    │   ├── RecipeUnknown
    │   ├── DestinationInvalid
    │   ├── LogUnreadable
    │   ├── PackageMissing
    │   └── BadRequest
    ├── EndpointError         exit 3   nothing answers under that name
    │   ├── EndpointUnknown
    │   ├── EndpointAmbiguous
    │   ├── AgentMissing
    │   ├── AgentUnreachable
    │   ├── ProcessDead
    │   ├── AttachRefused
    │   ├── AttachFailed
    │   ├── AttachPending
    │   ├── StacksUnavailable
    │   ├── HostUnreachable
    │   └── ServerUnavailable
    ├── AccessDenied          exit 4   somebody else's process, wrong token, forbidden role or code
    │   ├── NotYours
    │   ├── TracingDenied
    │   ├── TokenInvalid
    │   ├── Forbidden
    │   └── SnippetRefused
    ├── LimitReached          exit 5   deadline, memory, size, rate
    │   ├── QueryTimeout
    │   ├── QueryOutOfMemory
    │   ├── QueryWorkerDied
    │   ├── EvalTimeout
    │   ├── EvalBusy
    │   ├── NoBoundary
    │   ├── TooLarge
    │   └── TooMany
    ├── RecordingError        exit 6   the recording cannot be made or read
    │   ├── DirectoryRefused
    │   └── NoRoom
    └── ActionError           exit 7   an action on a job was not done, or not wholly
        ├── ActionRefused
        ├── ActionFailed
        ├── ActionUnknown
        ├── NotUndoable
        ├── NotTogether
        └── CheckpointInvalid
    exit 1 belongs to the snippet or command that ran and failed (a traceback of `eval`).

Each class carries its `code` (on the wire), HTTP `status`, `exit_code` and a
`hint`: what to do next. `message` says what happened. Standard library only;
raised anywhere, printed in one place (the command), serialised in one place
(the server's error handler).
"""

from __future__ import annotations


class ProbeError(Exception):
    """Base of all errors with a sentence for the user."""

    code = "error"
    status = 500
    exit_code = 1
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def as_dict(self) -> dict[str, dict[str, str]]:
        """The one error shape on the wire."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class UsageError(ProbeError):
    """What was asked makes no sense as it stands."""

    code = "usage"
    status = 400
    exit_code = 2
    hint = "See `probe --help`."


class SettingInvalid(UsageError):
    """An environment variable holds a value that cannot be used."""

    code = "setting_invalid"
    hint = "See `probe config`."


class SqlInvalid(UsageError):
    """The SQL was refused by the engine or by the rules for SQL from outside."""

    code = "sql_invalid"
    hint = "See `probe ENDPOINT tables` for tables, columns and an example of each."


class RecipeInvalid(UsageError):
    """A recipe's file cannot be used as it is."""

    code = "recipe_invalid"
    hint = "docs/recipes.md describes what a recipe is made of."


class RecipeUnknown(UsageError):
    """There is no recipe, or no symptom, of that name."""

    code = "recipe_unknown"
    hint = "`probe recipes` lists them."


class DestinationInvalid(UsageError):
    """A destination of alerts is no URL that can be delivered to."""

    code = "destination_invalid"
    hint = "Such as slack://…, mailto://…, pagerduty://… or json://…; see docs/alerts.md."


class LogUnreadable(UsageError):
    """A text has no lines with a step and a loss that could be read."""

    code = "log_unreadable"
    hint = "Understood are lines such as `Step 10: loss=2.45, lr=6.67e-05`, JSON and printed dictionaries."


class PackageMissing(UsageError):
    """What was asked for needs a package that is not installed."""

    code = "package_missing"


class BadRequest(UsageError):
    """A malformed HTTP request."""

    code = "bad_request"
    hint = "The routes and their bodies are described at /openapi.json."


class EndpointError(ProbeError):
    """Nothing answers under the given name."""

    code = "endpoint"
    status = 404
    exit_code = 3
    hint = "`probe ps` lists what is running."


class EndpointUnknown(EndpointError):
    """No process, job, socket or recording has that name."""

    code = "endpoint_unknown"


class EndpointAmbiguous(EndpointError):
    """The name means several processes and the command needs one."""

    code = "endpoint_ambiguous"
    status = 409
    hint = "Name one rank: JOB/RANK."


class AgentMissing(EndpointError):
    """The process lives and has no agent."""

    code = "agent_missing"
    hint = (
        "`probe PID attach` starts one in it. Or start the job with PROBE=1 in its environment, or with "
        "`probe run python train.py`."
    )


class AgentUnreachable(EndpointError):
    """The process has an agent that does not answer in time (the GIL is held, or it is stopped)."""

    code = "agent_unreachable"
    status = 503
    hint = "`diagnose` and `backtrace` look at it from outside, and its recording answers `query`."


class ProcessDead(EndpointError):
    """The process has ended; its recording can be queried, it cannot be asked."""

    code = "process_dead"
    status = 410
    hint = "Its recording still answers `query`."


class AttachRefused(EndpointError):
    """The process cannot be attached to as it is now; nothing was done to it."""

    code = "attach_refused"
    status = 409


class AttachFailed(EndpointError):
    """Attaching was tried and did not come to be; the process goes on as before."""

    code = "attach_failed"
    status = 503


class AttachPending(EndpointError):
    """The agent is loaded and waits for the GIL; it starts by itself when the GIL is released."""

    code = "attach_pending"
    status = 503


class StacksUnavailable(EndpointError):
    """The process could not be read from outside."""

    code = "stacks_unavailable"
    status = 503


class HostUnreachable(EndpointError):
    """Another host of the job does not answer, or not in time."""

    code = "host_unreachable"
    status = 504
    hint = "`probe JOB ranks` says which hosts answer; what they hold is answered without it."


class ServerUnavailable(EndpointError):
    """The server beside the jobs cannot be reached or started."""

    code = "server_unavailable"
    status = 503
    hint = "`probe doctor` says what is missing on this machine."


class AccessDenied(ProbeError):
    """Not allowed."""

    code = "access_denied"
    status = 403
    exit_code = 4


class NotYours(AccessDenied):
    """The process or folder belongs to another user."""

    code = "not_yours"
    hint = "Run probe as the user who owns the job."


class TracingDenied(AccessDenied):
    """The kernel does not let us read or attach to the process (ptrace)."""

    code = "tracing_denied"


class TokenInvalid(AccessDenied):
    """No token, or a wrong one."""

    code = "token_invalid"
    status = 401
    hint = (
        "Put the token of that host (its PROBE_DIR/token) in a file of mode 0600 and name it in "
        "PROBE_TOKEN_FILE."
    )


class Forbidden(AccessDenied):
    """The caller is known and may not do this."""

    code = "forbidden"


class SnippetRefused(AccessDenied):
    """The guard does not let this snippet run: it would end, stop or corrupt the job."""

    code = "snippet_refused"
    hint = "docs/guard.md says what is classed how, and what to use instead."


class LimitReached(ProbeError):
    """Stopped by a limit that protects the job or the server."""

    code = "limit"
    status = 503
    exit_code = 5


class QueryTimeout(LimitReached):
    """The query was stopped at its deadline."""

    code = "query_timeout"
    status = 504
    hint = "Ask for fewer steps (WHERE step > …), or raise PROBE_QUERY_TIMEOUT_S for the server."


class QueryOutOfMemory(LimitReached):
    """The query needed more memory than queries may use."""

    code = "query_out_of_memory"
    hint = "Ask for fewer rows or columns, or raise PROBE_QUERY_MEMORY_BYTES for the server."


class QueryWorkerDied(LimitReached):
    """The query ended the process that ran it; server and job are unharmed."""

    code = "query_worker_died"
    hint = "The job and the server are unharmed. Write the query differently."


class EvalTimeout(LimitReached):
    """The snippet did not finish in time."""

    code = "eval_timeout"
    status = 504
    hint = (
        "Raise the wait with `eval --timeout SECONDS`, or look at `backtrace --all-threads` "
        "(thread probe-eval)."
    )


class EvalBusy(LimitReached):
    """An earlier snippet still runs; one at a time."""

    code = "eval_busy"
    status = 409
    hint = "`backtrace --all-threads` shows where it is (thread probe-eval)."


class NoBoundary(LimitReached):
    """The training thread did not get between two steps in time; nothing was changed."""

    code = "no_boundary"
    status = 504
    hint = "`probe PID diagnose` says what it waits for; `--now` does not wait for a step's end."


class TooLarge(LimitReached):
    """A request body or header beyond the limit."""

    code = "too_large"
    status = 413


class TooMany(LimitReached):
    """Too many requests at once or per second."""

    code = "too_many"
    status = 429
    hint = "Wait a moment and ask again."


class RecordingError(ProbeError):
    """The recording cannot be made or read."""

    code = "recording"
    exit_code = 6


class DirectoryRefused(RecordingError):
    """The folder is not private to this user, or cannot be made."""

    code = "directory_refused"
    hint = "Set PROBE_DIR to a folder of your own on a local disk."


class NoRoom(RecordingError):
    """There is no memory or disk left for the rings."""

    code = "no_room"
    hint = "Free some room, or set PROBE_RINGS_BYTES lower, or PROBE_RINGS_DIR to another folder."


class ActionError(ProbeError):
    """An action on a job was not done, or not wholly."""

    code = "action"
    exit_code = 7
    hint = "`probe PID actions` lists what was done to the job."


class ActionRefused(ActionError):
    """The action makes no sense in this job as it is; nothing was changed."""

    code = "action_refused"
    status = 409


class ActionFailed(ActionError):
    """The action was begun and did not succeed; the message says what was changed, if anything."""

    code = "action_failed"


class ActionUnknown(ActionError):
    """No action has that name or number."""

    code = "action_unknown"
    status = 404


class NotUndoable(ActionError):
    """There is nothing to put back, or it cannot be put back any more."""

    code = "not_undoable"
    status = 409


class NotTogether(ActionError):
    """What all ranks were to do at the same step was done by none: the message names the rank and why."""

    code = "not_together"
    status = 409
    hint = "`probe JOB ranks` shows where each rank is; nothing was changed on any."


class CheckpointInvalid(ActionError):
    """The file is not a checkpoint of probe, is damaged, or does not fit what is to be loaded."""

    code = "checkpoint_invalid"
    status = 422


def _tree(root: type[ProbeError]) -> dict[str, type[ProbeError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[ProbeError]] = _tree(ProbeError)
"""Every error class by its code on the wire."""


def from_dict(body: object, status: int) -> ProbeError:
    """The error that a response body describes; tolerant of bodies that are not ours."""
    inner = body.get("error") if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        return ServerUnavailable(f"unexpected answer with status {status}")
    kind = BY_CODE.get(str(inner.get("code")), ProbeError)
    return kind(str(inner.get("message", "")), hint=str(inner.get("hint", "")))
