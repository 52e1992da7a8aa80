"""Watch, query and debug a running PyTorch job from inside.

    import probe

    probe.start()               begin recording here, without PROBE=1 in the environment
    probe.stop()                detach: hooks, thread and socket are gone
    probe.log("accuracy", 0.9)  one row of python.scalars
    probe.step()                end of a step, in a loop without an optimizer
    probe.load_checkpoint(…)    continue from a file that `probe PID checkpoint` wrote

and from anywhere:

    job = probe.connect("train")    ask another process: job.query(…), job.diagnose(), job.eval(…)
    await probe.connect_async(…)    the same for asyncio
    %load_ext probe                 in a notebook: %probe and %%probe_sql

The first four never raise: what cannot be done, a value that is no number and wrong arguments are one line
on stderr, and the program goes on. `load_checkpoint` raises `CheckpointInvalid`, before there is a training.

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

__all__ = [
    "__version__", "connect", "connect_async", "load_checkpoint", "load_ipython_extension", "log", "start",
    "step", "stop", "unload_ipython_extension",
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
    elif name in ("log", "start", "step", "stop"):
        value = _of_the_agent(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _of_the_agent(name: str) -> Any:
    from probe.base import versions

    refusal = versions.refusal()
    if refusal:  # of this Python, in which the agent cannot even be imported

        def stay_out(*_args: Any, **_kwargs: Any) -> None:
            if name == "start" and sys.stderr is not None:
                sys.stderr.write(f"probe: {refusal}\n")

        return stay_out
    from probe.job.agent import lifecycle

    return getattr(lifecycle, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
