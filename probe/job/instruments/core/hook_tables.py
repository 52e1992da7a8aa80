"""Changing torch's tables of optimizer hooks while another thread may be going through them.

Called when instruments start and stop, on any thread, never during a step of its
own. `Optimizer.step` iterates over the global tables; a table that grows or
shrinks meanwhile makes it raise inside the training loop. So a change waits for a
moment in which no thread is between two hooks, and is made within the time for
which the interpreter cannot be taken from this thread. Standard library, and the
torch that is there.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

WAIT_S = 2.0
"""A step that is between two hooks for this long hangs in somebody else's hook."""
_PAUSE_S = 0.0005
_SHARE = 0.5
"""Of the switch interval: who has just got the interpreter keeps it at least that long."""


def change_between_hooks(change: Callable[[], object], wait_s: float = WAIT_S) -> bool:
    """Call `change` when no thread goes through torch's global optimizer hooks; False when none came.

    Called from inside such a hook, it is False at once: waiting would be for oneself."""
    deadline = time.monotonic() + wait_s
    while True:
        time.sleep(0)  # whoever waits for the interpreter has to wait a whole interval from here on
        start = time.monotonic()
        running = _threads_in_hooks()
        if not running and time.monotonic() - start < _SHARE * sys.getswitchinterval():
            change()
            return True
        if threading.get_ident() in running or time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)


def _threads_in_hooks() -> set[int]:
    """Threads inside a global optimizer hook, or at a place where that cannot be told."""
    module: Any = sys.modules["torch.optim.optimizer"]
    step = _inner_code(module.Optimizer.profile_hook_step.__code__)
    tables = (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks)
    hooks = [_code_of(hook) for table in tables for hook in list(table.values())]
    if not hooks:
        return set()  # nothing to be between: an empty table is gone through in one go
    return {
        ident for ident, frame in sys._current_frames().items() if _between_hooks(frame, step, hooks)
    }


def _inner_code(code: CodeType) -> set[CodeType]:
    return {constant for constant in code.co_consts if isinstance(constant, CodeType)}


def _between_hooks(frame: FrameType | None, step: set[CodeType], hooks: list[CodeType | None]) -> bool:
    called: CodeType | None = None
    while frame is not None:
        code = frame.f_code
        # A step that called nothing visible may be about to call the next hook, and a hook
        # without code of its own (written in C) cannot be told from it.
        if code in step and (called is None or called in hooks):
            return True
        called, frame = code, frame.f_back
    return False


def _code_of(hook: Any) -> CodeType | None:
    """The code that runs when the hook is called; None when it is not Python's."""
    function = hook.__func__ if type(hook) is MethodType else hook
    if type(function) is not FunctionType:  # an object of the job's: ask its class, never itself
        function = inspect.getattr_static(type(hook), "__call__", None)
    return function.__code__ if type(function) is FunctionType else None
