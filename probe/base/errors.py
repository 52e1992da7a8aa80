"""The errors that a user may see.

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
    ├── EndpointError         exit 3   the process, job or host cannot be reached
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
    ├── AccessDenied          exit 4   another user's process, wrong token, forbidden role or code
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
    ├── RecordingError        exit 6   the recording cannot be created or read
    │   ├── DirectoryRefused
    │   ├── BundleInvalid
    │   ├── ArchiveUnavailable
    │   │   └── ObjectMissing
    │   ├── ArchiveInvalid
    │   └── NoRoom
    └── ActionError           exit 7   an action on a job failed or was refused
        ├── ActionRefused
        ├── ActionFailed
        ├── ActionUnknown
        ├── NotUndoable
        ├── NotTogether
        └── CheckpointInvalid
    exit 1: the snippet or command ran and failed (a traceback of `eval`; in Python `SnippetRaised`).

Each class has a `code` (on the wire), an HTTP `status`, an `exit_code` and a `hint`: what to do next.
`message` says what happened. Standard library only; raised anywhere, printed by the command, serialized by
the server's error handler.
"""

from __future__ import annotations


class ProbeError(Exception):
    """Base of all errors with a message for the user."""

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
    """An invalid argument, setting or request."""

    code = "usage"
    status = 400
    exit_code = 2
    hint = "See `probe --help`."


class SettingInvalid(UsageError):
    """An environment variable has an invalid value."""

    code = "setting_invalid"
    hint = "See `probe config`."


class SqlInvalid(UsageError):
    """The engine or the sandbox refused the SQL."""

    code = "sql_invalid"
    hint = "`probe ENDPOINT tables` lists tables and columns, with an example query each."


class RecipeInvalid(UsageError):
    """A recipe's file is invalid."""

    code = "recipe_invalid"
    hint = "docs/recipes.md describes the format of recipes."


class RecipeUnknown(UsageError):
    """No recipe or symptom has that name."""

    code = "recipe_unknown"
    hint = "`probe recipes` lists them."


class DestinationInvalid(UsageError):
    """An alert destination is not a supported URL."""

    code = "destination_invalid"
    hint = "Expected an Apprise URL, e.g. slack://…, mailto://… or json://…; see docs/alerts.md."


class LogUnreadable(UsageError):
    """A log has no readable lines with a step and a loss."""

    code = "log_unreadable"
    hint = "Supported are lines such as `Step 10: loss=2.45, lr=6.67e-05`, JSON, and printed dictionaries."


class PackageMissing(UsageError):
    """The command needs a package that is not installed."""

    code = "package_missing"


class BadRequest(UsageError):
    """A malformed HTTP request."""

    code = "bad_request"
    hint = "/openapi.json describes the routes and their bodies."


class EndpointError(ProbeError):
    """The named process, job or host cannot be reached."""

    code = "endpoint"
    status = 404
    exit_code = 3
    hint = "`probe ps` lists what is running."


class EndpointUnknown(EndpointError):
    """No process, job, socket or recording has that name."""

    code = "endpoint_unknown"


class EndpointAmbiguous(EndpointError):
    """The name matches several processes and the command needs one."""

    code = "endpoint_ambiguous"
    status = 409
    hint = "Name one rank: JOB/RANK."


class AgentMissing(EndpointError):
    """The process is alive and has no agent."""

    code = "agent_missing"
    hint = (
        "`probe PID attach` starts one in it. Or start the job with PROBE=1 in its environment, or with "
        "`probe run python train.py`."
    )


class AgentUnreachable(EndpointError):
    """The agent does not answer in time: the GIL is held, or the process is stopped."""

    code = "agent_unreachable"
    status = 503
    hint = "`diagnose` and `backtrace` read the process from outside; `query` still reads its recording."


class ProcessDead(EndpointError):
    """The process has ended; only its recording can be queried."""

    code = "process_dead"
    status = 410
    hint = "`query` still reads its recording."


class AttachRefused(EndpointError):
    """The process cannot be attached to in its current state; nothing was changed."""

    code = "attach_refused"
    status = 409


class AttachFailed(EndpointError):
    """Attaching failed; the process continues as before."""

    code = "attach_failed"
    status = 503


class AttachPending(EndpointError):
    """The agent is loaded and starts once the GIL is released."""

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
    hint = "`probe JOB ranks` shows which hosts answer; queries use those."


class ServerUnavailable(EndpointError):
    """The server cannot be reached or started."""

    code = "server_unavailable"
    status = 503
    hint = "`probe doctor` shows what is missing on this machine."


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
    """The kernel denies reading or attaching to the process (ptrace)."""

    code = "tracing_denied"


class TokenInvalid(AccessDenied):
    """No token, or a wrong one."""

    code = "token_invalid"
    status = 401
    hint = (
        "Copy that host's token (its PROBE_DIR/token) to a file of mode 0600 and put the file's path in "
        "PROBE_TOKEN_FILE."
    )


class Forbidden(AccessDenied):
    """The caller's role does not allow this."""

    code = "forbidden"


class SnippetRefused(AccessDenied):
    """The guard refused the snippet: it would end, stop or corrupt the job."""

    code = "snippet_refused"
    hint = "docs/guard.md says which snippets are refused, and what to use instead."


class LimitReached(ProbeError):
    """A limit that protects the job or the server was reached."""

    code = "limit"
    status = 503
    exit_code = 5


class QueryTimeout(LimitReached):
    """The query was stopped at its deadline."""

    code = "query_timeout"
    status = 504
    hint = "Query fewer steps (WHERE step > …), or raise PROBE_QUERY_TIMEOUT_S for the server."


class QueryOutOfMemory(LimitReached):
    """The query exceeded its memory limit."""

    code = "query_out_of_memory"
    hint = "Query fewer rows or columns, or raise PROBE_QUERY_MEMORY_BYTES for the server."


class QueryWorkerDied(LimitReached):
    """The query's worker process died; server and job are not affected."""

    code = "query_worker_died"
    hint = "The job and the server are not affected. Rewrite the query."


class EvalTimeout(LimitReached):
    """The snippet did not finish in time."""

    code = "eval_timeout"
    status = 504
    hint = (
        "Wait longer with `eval --timeout SECONDS`, or see where it is with `backtrace --all-threads` "
        "(thread probe-eval)."
    )


class EvalBusy(LimitReached):
    """An earlier snippet is still running."""

    code = "eval_busy"
    status = 409
    hint = "`backtrace --all-threads` shows where that snippet is (thread probe-eval)."


class NoBoundary(LimitReached):
    """No step ended in time; nothing was changed."""

    code = "no_boundary"
    status = 504
    hint = "`probe PID diagnose` shows what the job waits for; `--now` does not wait for the end of a step."


class TooLarge(LimitReached):
    """A request exceeds a size limit."""

    code = "too_large"
    status = 413


class TooMany(LimitReached):
    """Too many requests at once or per second."""

    code = "too_many"
    status = 429
    hint = "Wait a moment and try again."


class RecordingError(ProbeError):
    """The recording cannot be created or read."""

    code = "recording"
    exit_code = 6


class DirectoryRefused(RecordingError):
    """The folder is not private to this user, or cannot be made."""

    code = "directory_refused"
    hint = "Set PROBE_DIR to a folder of your own on a local disk."


class BundleInvalid(RecordingError):
    """The file is not a bundle of `probe bundle`, or was damaged on its way."""

    code = "bundle_invalid"
    hint = "Nothing was kept. Ask the sender for a new one: `probe JOB bundle` makes it."


class ArchiveUnavailable(RecordingError):
    """The archive cannot be reached, read or written."""

    code = "archive_unavailable"
    status = 503
    hint = "Rows that were not shipped stay on this host and are retried: see `probe archive --status`."


class ObjectMissing(ArchiveUnavailable):
    """A file of the archive is gone: merged or deleted since it was listed."""

    code = "archive_object_missing"
    status = 404
    hint = "The archive changed in the meantime: run the command again."


class ArchiveInvalid(RecordingError):
    """A file of the archive is invalid or changes while it is used."""

    code = "archive_invalid"


class NoRoom(RecordingError):
    """No memory or disk is left for the rings."""

    code = "no_room"
    hint = "Free some space, lower PROBE_RINGS_BYTES, or set PROBE_RINGS_DIR to another folder."


class ActionError(ProbeError):
    """An action on a job failed or was refused."""

    code = "action"
    exit_code = 7
    hint = "`probe PID actions` lists what was done to the job."


class ActionRefused(ActionError):
    """The action is not possible in this job now; nothing was changed."""

    code = "action_refused"
    status = 409


class ActionFailed(ActionError):
    """The action failed; the message says what was changed, if anything."""

    code = "action_failed"


class ActionUnknown(ActionError):
    """No action has that name or id."""

    code = "action_unknown"
    status = 404


class NotUndoable(ActionError):
    """The action cannot be undone, or not any more."""

    code = "not_undoable"
    status = 409


class NotTogether(ActionError):
    """A coordinated action was done on no rank; the message names the rank and the reason."""

    code = "not_together"
    status = 409
    hint = "`probe JOB ranks` shows where each rank is. Nothing was changed on any rank."


class CheckpointInvalid(ActionError):
    """The file is not a checkpoint of probe, is damaged, or does not fit the objects to load."""

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
    """The error that a response body describes; accepts any body."""
    inner = body.get("error") if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        return ServerUnavailable(f"unexpected answer with status {status}")
    kind = BY_CODE.get(str(inner.get("code")), ProbeError)
    return kind(str(inner.get("message", "")), hint=str(inner.get("hint", "")))
