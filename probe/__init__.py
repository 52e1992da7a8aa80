"""Watch, query and debug a running PyTorch job from inside.

    import probe

    probe.start()               begin recording here, without PROBE=1 in the environment
    probe.stop()                detach: hooks, thread and socket are gone
    probe.log("accuracy", 0.9)  one row of python.scalars
    probe.step()                end of a step, in a loop without an optimizer
    with probe.span("rollout"): one row of python.spans; @probe.span("rollout") times a function
    probe.event("saved", path)  one row of python.events
    @probe.table                a dataclass is a table of the job's own, user.NAME …
    probe.record(row)           … and each of its objects a row
    probe.load_checkpoint(…)    continue from a file that `probe PID checkpoint` wrote

and from anywhere:

    job = probe.connect("train")    ask another process: job.query(…), job.diagnose(), job.eval(…)
    await probe.connect_async(…)    the same for asyncio
    %load_ext probe                 in a notebook: %probe and %%probe_sql

All of these but the last never raise: what cannot be done, a value that is no number and wrong arguments are
one line on stderr, and the program goes on. `load_checkpoint` raises `CheckpointInvalid`, before there is a
training.

Most jobs need none of them: `PROBE=1 python train.py` records, the command
`probe` asks. Names are resolved when they are first used; importing `probe`
imports nothing else.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.checkpoint.loading import load_checkpoint
    from probe.client.async_job import connect_async
    from probe.client.job import connect
    from probe.client.notebook import load_ipython_extension, unload_ipython_extension
    from probe.job.agent.lifecycle import log, start, step, stop
    from probe.job.instruments.own_spans import event, span
    from probe.job.instruments.own_tables import record, table

__all__ = [
    "__version__", "connect", "connect_async", "event", "load_checkpoint", "load_ipython_extension", "log",
    "record", "span", "start", "step", "stop", "table", "unload_ipython_extension",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    value: Any
    if name == "load_checkpoint":
        from probe.checkpoint.loading import load_checkpoint as value
    elif name == "connect":
        from probe.client.job import connect as value
    elif name == "connect_async":
        from probe.client.async_job import connect_async as value
    elif name in ("load_ipython_extension", "unload_ipython_extension"):
        from probe.client import notebook

        value = getattr(notebook, name)
    elif name in ("log", "start", "step", "stop", "event", "span", "record", "table"):
        value = _of_the_job(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _of_the_job(name: str) -> Any:
    from probe.base import versions

    refusal = versions.refusal()
    if refusal:  # of this Python, in which the agent cannot even be imported

        def stay_out(*_args: Any, **_kwargs: Any) -> None:
            if name == "start" and sys.stderr is not None:
                sys.stderr.write(f"probe: {refusal}\n")

        return _NOTHING.get(name, stay_out)
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "probe.job.agent.lifecycle")), name)


class _Span:
    """What `span` is where the agent stays out."""

    def __init__(self, _name: Any = None) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: Any) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function


def _table(cls: Any = None, **_kwargs: Any) -> Any:
    return cls if cls is not None else _table


_NOTHING = {"span": _Span, "table": _table}
_SPANS, _TABLES = "probe.job.instruments.own_spans", "probe.job.instruments.own_tables"
_MODULES = {"event": _SPANS, "span": _SPANS, "record": _TABLES, "table": _TABLES}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
