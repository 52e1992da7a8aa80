"""Changes torch's global tables of optimizer hooks safely while other threads train.

Called when instruments start and stop, on any thread, never from within a step. `Optimizer.step`
iterates over the global tables and raises in the training loop if one changes size during the iteration. So
a change waits until no thread is between two hooks, and is made before the GIL can switch to another thread.
Standard library and the job's torch.
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
"""Give up after this time: a step that stays between two hooks this long hangs in another hook."""
_PAUSE_S = 0.0005
_SHARE = 0.5
"""Fraction of the switch interval during which a thread that just got the GIL is sure to keep it."""


def change_between_hooks(change: Callable[[], object], wait_s: float = WAIT_S) -> bool:
    """Call `change` at a moment when no thread is between two global optimizer hooks; False if none came.

    False at once when called from inside such a hook: it would wait for itself."""
    deadline = time.monotonic() + wait_s
    while True:
        time.sleep(0)  # from here on another thread gets the GIL only after a whole switch interval
        start = time.monotonic()
        running = _threads_in_hooks()
        if not running and time.monotonic() - start < _SHARE * sys.getswitchinterval():
            change()
            return True
        if threading.get_ident() in running or time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)


def _threads_in_hooks() -> set[int]:
    """Threads that are, or may be, inside a global optimizer hook."""
    module: Any = sys.modules["torch.optim.optimizer"]
    step = _inner_code(module.Optimizer.profile_hook_step.__code__)
    tables = (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks)
    hooks = [_code_of(hook) for table in tables for hook in list(table.values())]
    if not hooks:
        return set()  # iterating over an empty table takes one bytecode
    return {
        ident for ident, frame in sys._current_frames().items() if _between_hooks(frame, step, hooks)
    }


def _inner_code(code: CodeType) -> set[CodeType]:
    return {constant for constant in code.co_consts if isinstance(constant, CodeType)}


def _between_hooks(frame: FrameType | None, step: set[CodeType], hooks: list[CodeType | None]) -> bool:
    called: CodeType | None = None
    while frame is not None:
        code = frame.f_code
        # A step without a Python callee may be about to call the next hook, or be inside one written in C.
        if code in step and (called is None or called in hooks):
            return True
        called, frame = code, frame.f_back
    return False


def _code_of(hook: Any) -> CodeType | None:
    """The Python code of a hook; None for one written in C."""
    function = hook.__func__ if type(hook) is MethodType else hook
    if type(function) is not FunctionType:  # a callable object of the job's: read its class, run no code
        function = inspect.getattr_static(type(hook), "__call__", None)
    return function.__code__ if type(function) is FunctionType else None
