"""Watch, query and debug a running PyTorch job from inside.

    import probe

    probe.start()               begin recording here, without PROBE=1 in the environment
    probe.stop()                detach: hooks, thread and socket are gone
    probe.log("accuracy", 0.9)  one row of python.scalars
    probe.step()                end of a step, in a loop without an optimizer

Most jobs need none of them: `PROBE=1 python train.py` records, the command
`probe` asks. Names are resolved when they are first used; importing `probe`
imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.agent.lifecycle import log, start, step, stop

__all__ = ["__version__", "log", "start", "step", "stop"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in ("log", "start", "step", "stop"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from probe.agent import lifecycle

    value = globals()[name] = getattr(lifecycle, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
