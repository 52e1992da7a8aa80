"""Watching: limits the time, memory and calls of a snippet while it runs, on the snippet's own thread.

`sys.settrace` checks the clock and the memory before each line of Python that the snippet runs,
including functions of the job; `sys.setprofile` sees each call before it happens, under any
name. Both affect only the calling thread and are restored at the end. When a trace function raises,
CPython switches tracing off; the checks that `with_checks` puts into the snippet's loops switch it on
again, and so does each call that is seen.

Not seen: a C function called by another C function. Not interrupted: a single C call, and a loop of
the job that catches everything and calls nothing. Runs on the training thread or `probe-eval`.
Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from probe.base import package
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.interruptible import leaks
from probe.job.snippets.guard.memory_allowance import limited, memory_allowance_bytes, resident_bytes
from probe.job.snippets.guard.rules import COLLECTIVE_CLASSES, COLLECTIVE_METHODS, REFUSED_GROUPS

__all__ = (
    "CHECK_NAME", "SnippetForbidden", "SnippetMemory", "SnippetTimeout", "Watch", "memory_allowance_bytes",
    "with_checks",
)

CHECK_NAME = "__probe_check__"
"""Name of the check function in a snippet's namespace."""
_MEMORY_CHECK_S = 0.05
"""Time between two checks of the memory."""
_GRACE_S = 0.1
"""After an exception to end it, a snippet may clean up for this long before the next one."""
_CLEANS_UP = ("__exit__", "__aexit__")
_WAITS = "waits for the other ranks"
_OTHERWISE = "is called on the job's own groups, or changes them"
_COLLECTIVE_MODULES = (
    "torch.distributed.distributed_c10d", "torch.distributed._functional_collectives",
    "torch.distributed.nn.functional", "deepspeed.comm.comm", "horovod.torch.mpi_ops",
)
_CARRIED_MODULE = "torch.distributed.distributed_c10d"
CARRIED = frozenset((
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced",
    "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_object", "reduce_scatter",
    "reduce_scatter_tensor", "reduce", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "all_gather_single",
    "reduce_scatter_single", "barrier", "monitored_barrier",
))
"""Functions of torch.distributed that all ranks call in the same way."""
_COLLECTIVE_OF_CLASSES = (
    "forward", "full_tensor", "redistribute", "step", "consolidate_state_dict", "clip_grad_norm_",
    "summon_full_params",
)
_ASKS = ("get_", "is_", "supports_", "_")
"""Prefixes of functions in those modules that concern only this rank."""
_BY_LIBRARIES = ("os.kill", "os.fork", "signal.")
"""Functions that a library may call for its own children, and a snippet may not."""


class SnippetTimeout(BaseException):
    """The snippet exceeded its time limit."""


class SnippetForbidden(BaseException):
    """The snippet was about to call something forbidden."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} {why}")
        self.what = what
        self.why = why


class SnippetMemory(BaseException):
    """The snippet exceeded its memory limit."""


def with_checks(tree: ast.Module) -> ast.Module:
    """The tree, changed in place, with a call of the check wherever a snippet could run forever.

    At the beginning of each iteration of a loop, outside of any `try` in it; of each function; of each
    handler of an exception. Does not recurse, so that a deep tree cannot fail."""
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler):
            node.body.insert(0, _statement(node.body[0]))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            node.body.insert(int(documented), _statement(first))
        elif isinstance(node, ast.Lambda):
            node.body = ast.copy_location(ast.BoolOp(ast.Or(), [_call(node.body), node.body]), node.body)
        elif isinstance(node, ast.comprehension):
            ask = ast.copy_location(ast.UnaryOp(ast.Not(), _call(node.iter)), node.iter)
            node.ifs.insert(0, ask)
    return tree


def _statement(place: ast.stmt) -> ast.Expr:
    return ast.copy_location(ast.Expr(_call(place)), place)


def _call(place: ast.AST) -> ast.Call:
    name = ast.copy_location(ast.Name(CHECK_NAME, ast.Load()), place)
    return ast.copy_location(ast.Call(name, [], []), place)


class Watch:
    """Watches the thread that enters it, until it leaves."""

    def __init__(
        self, deadline_s: float, *, collectives: bool, training_thread: bool, memory_bytes: int | None,
        carried: bool = False,
    ) -> None:
        """`deadline_s`: of `time.monotonic`. `collectives`: whether they are allowed. `carried`: whether
        those of torch.distributed on the default group are, because a group of our own carries them.
        `training_thread`: whether it runs there, where sleeping would hold the training up.
        `memory_bytes`: how much more memory the process may take; None: no limit."""
        self._deadline_s = deadline_s
        self._forbidden = _forbidden(collectives, training_thread, carried)
        self._groups = not collectives and not carried and _grouped()
        # Bound once: each access to a method makes a new object.
        self._tracer, self._local, self._profiler = self._entered, self._line, self._called
        self._memory_bytes = memory_bytes
        self._limit: contextlib.AbstractContextManager[None] = limited(memory_bytes)
        self._before: tuple[Any, Any] = (None, None)
        self._outside: FrameType | None = None
        self._thread = threading.get_ident()
        self._resident_bytes: int | None = None
        self._next_check_s = deadline_s if memory_bytes is None else 0.0
        self._verdict: BaseException | None = None
        self._judged_s = 0.0
        self._quiet_until_s = 0.0
        self._raised = 0
        self._traced = self._profiled = False
        """Whether the trace and the profile function saw the last call of the check."""

    def __enter__(self) -> Watch:
        self._resident_bytes = resident_bytes()
        self._outside = sys._getframe(1)
        self._thread = threading.get_ident()
        self._before = (sys.gettrace(), sys.getprofile())
        self._limit.__enter__()
        sys.setprofile(self._profiler)
        sys.settrace(self._tracer)
        return self

    def __exit__(self, *_: object) -> None:
        # The trace function first: after that nothing of ours can raise here.
        sys.settrace(self._before[0])
        if hasattr(self._before[1], "enable"):  # cProfile's: before Python 3.12 it is an object, no function
            sys.setprofile(None)
            self._before[1].enable()
        else:
            sys.setprofile(self._before[1])
        self._limit.__exit__(None, None, None)
        self._outside = None

    def check(self) -> None:
        """Called by the checks in a snippet: raises if it must end, and switches watching on again."""
        if self._outside is None:  # the watch is over, but code of the snippet still runs
            return
        # The trace and profile functions see this call. It calls no C function, which they would see, too.
        watched = self._traced and self._profiled
        self._traced = self._profiled = False
        if watched and self._verdict is None:
            return
        if not watched and threading.get_ident() == self._thread:
            self._arm(sys._getframe(1))
        verdict = self._examine()
        if verdict is not None:
            self._raise(verdict)

    # Called by CPython ------------------------------------------------------

    def _entered(self, frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        """A function begins. Functions of ours are not traced."""
        if frame.f_code is _CHECK:
            self._traced = True
            return None
        return None if frame.f_code.co_filename.startswith(package.FOLDER) else self._local

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        """A line is about to run."""
        if event == "line" and time.monotonic() > self._next_check_s:
            verdict = self._examine()
            suitable = self._escapes if self._raised else self._cleans_up
            if verdict is not None and suitable(frame):
                self._raise(verdict)
        return self._local

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        """A function is about to be called, or has returned."""
        if event == "call":
            if frame.f_code is _CHECK:
                self._profiled = True
                return
            # Also if the function is ours, such as our wrapper of `os._exit`.
            forbidden = self._forbidden.code(frame.f_code)
            if forbidden is not None:
                self._forbid(*forbidden, frame.f_back)
        elif event == "c_call":
            forbidden = self._forbidden.functions.get(id(argument))
            if forbidden is None and self._groups and self._is_of_group(argument):
                forbidden = (str(argument.__name__), _WAITS)
            if forbidden is not None and not frame.f_code.co_filename.startswith(package.FOLDER):
                self._forbid(*forbidden, frame)
        late = self._raised and time.monotonic() > self._quiet_until_s
        if late and not frame.f_code.co_filename.startswith(package.FOLDER):
            self._arm(frame)

    # Verdicts ---------------------------------------------------------------

    def _examine(self) -> BaseException | None:
        """The exception that must end the snippet; None while it may continue."""
        if self._verdict is not None:
            return self._verdict
        now_s = time.monotonic()
        if now_s > self._deadline_s:
            self._judged(SnippetTimeout())
        elif now_s > self._next_check_s and self._memory_bytes is not None:
            self._next_check_s = min(now_s + _MEMORY_CHECK_S, self._deadline_s)
            resident = resident_bytes()
            if resident is not None and self._resident_bytes is not None:
                grown = resident - self._resident_bytes
                if grown > self._memory_bytes:
                    self._judged(SnippetMemory(
                        f"it took {grown >> 20} MiB of memory, and may take {self._memory_bytes >> 20}"
                    ))
        return self._verdict

    def _judged(self, verdict: BaseException) -> None:
        """Set the verdict: from now on the snippet must end."""
        self._verdict = verdict
        self._judged_s = time.monotonic()
        self._next_check_s = 0.0

    def _raise(self, verdict: BaseException) -> None:
        self._raised += 1
        self._quiet_until_s = time.monotonic() + _GRACE_S
        raise verdict.with_traceback(None)

    def _forbid(self, what: str, why: str, caller: FrameType | None) -> None:
        file = "" if caller is None else caller.f_code.co_filename
        if what.startswith(_BY_LIBRARIES) and lookup.library_file(file):
            return
        verdict = SnippetForbidden(what, why)
        self._judged(verdict)
        self._raise(verdict)

    def _cleans_up(self, frame: FrameType) -> bool:
        """Whether an exception here runs the cleanup around it, and does not interrupt a cleanup. Code
        without such a place is interrupted anyway, a little later."""
        if time.monotonic() > self._judged_s + _GRACE_S:
            return True
        if frame.f_lasti in leaks(frame.f_code):
            return False
        one: FrameType | None = frame
        while one is not None and one is not self._outside:
            if one.f_code.co_name in _CLEANS_UP:
                return False
            one = one.f_back
        return True

    def _escapes(self, frame: FrameType) -> bool:
        """Whether an exception here leaves the function: a function that catches it would continue."""
        return time.monotonic() > self._quiet_until_s and not _tries(frame.f_code, frame.f_lasti)

    def _arm(self, frame: FrameType | None) -> None:
        """Watch again, from `frame` outwards: an exception from a trace function has switched it off."""
        while frame is not None and frame is not self._outside:
            if not frame.f_code.co_filename.startswith(package.FOLDER):
                frame.f_trace = self._local
            frame = frame.f_back
        sys.settrace(self._tracer)
        if sys.getprofile() is not self._profiler:
            sys.setprofile(self._profiler)

    def _is_of_group(self, argument: Any) -> bool:
        """Whether this is a method of a process group, which is written in C++."""
        name = getattr(argument, "__name__", "")
        if name not in COLLECTIVE_METHODS:
            return False
        receiver = type(getattr(argument, "__self__", None))
        module = getattr(argument, "__module__", None) or ""
        own = (lookup.module_name(base) for base in lookup.mro(receiver))
        return str(module).startswith("torch._C._distributed") or any(
            name.startswith("torch._C._distributed") for name in own
        ) or lookup.class_name(receiver) == "PyCapsule"  # pybind11 binds its functions to it


_CHECK = Watch.check.__code__


class _Forbidden:
    """Functions that a snippet may not call, by identity: their names, and why."""

    def __init__(self, collectives: bool, training_thread: bool, carried: bool) -> None:
        self.functions: dict[int, tuple[str, str]] = {}
        self._codes: dict[int, tuple[str, str]] = {}
        self._kept: list[Any] = []
        """Objects that are known by their id, kept alive so that the id stays theirs."""
        self._names = {name for group in REFUSED_GROUPS for name in group.names}
        self._cleared: set[int] = set()
        self._collectives = collectives
        self._carried = carried
        if training_thread:
            self._add(time.sleep, "time.sleep", "would hold the training up")
        self._resolve()

    def code(self, code: CodeType) -> tuple[str, str] | None:
        """Name and reason of a forbidden Python function, also in a module loaded since; else None."""
        if code.co_name in self._names and id(code) not in self._codes and id(code) not in self._cleared:
            self._resolve()
            self._kept.append(code)
            self._cleared.add(id(code))
        return self._codes.get(id(code))

    def _resolve(self) -> None:
        for group in REFUSED_GROUPS:
            for name in group.names:
                shown = name if group.of == "builtins" else f"{group.of}.{name}"
                self._add(lookup.by_name(f"{group.of}.{name}"), shown, group.why)
        if not self._collectives:
            for name, thing in _collectives(self._carried):
                self._add(thing, name, _OTHERWISE if self._carried else _WAITS)

    def _add(self, thing: Any, name: str, why: str) -> None:
        """Add a function, inside any wrappers, or an object with a `__call__` in Python."""
        thing = lookup.unwrapped(thing)
        while type(thing) is types.FunctionType:
            inner = thing.__dict__.get("__wrapped__")
            if type(inner) in lookup.C_CALLABLES:
                self._kept.append(inner)
                self.functions.setdefault(id(inner), (name, why))
            if type(inner) is not types.FunctionType:
                break
            thing = inner
        if type(thing) in lookup.C_CALLABLES:
            self._kept.append(thing)
            self.functions.setdefault(id(thing), (name, why))
        elif type(thing) is types.FunctionType:
            self._kept.append(thing.__code__)
            self._codes.setdefault(id(thing.__code__), (name, why))
        elif thing is not None and not lookup.is_class(thing):
            call = lookup.find(type(thing), "__call__")
            if call is not None and type(call[1]) is types.FunctionType:
                self._add(call[1], name, why)


def _grouped() -> bool:
    """Whether there is a process group, and so other ranks that could wait."""
    asks = lookup.by_name("torch.distributed.is_initialized")
    return type(asks) is types.FunctionType and bool(asks())


def _forbidden(collectives: bool, training_thread: bool, carried: bool) -> _Forbidden:
    """The forbidden functions; made anew only after a module was loaded or a process group was made."""
    state = (collectives, training_thread, carried, _grouped(), len(sys.modules))
    if state not in _made:
        if len(_made) >= _MOST_MADE:
            _made.clear()
        _made[state] = _Forbidden(collectives, training_thread, carried)
    return _made[state]


_MOST_MADE = 8
_made: dict[tuple[bool, bool, bool, bool, int], _Forbidden] = {}


def _collectives(carried: bool) -> Iterator[tuple[str, Any]]:
    """Functions that wait for other ranks; `carried`: without those that a group of our own carries."""
    for name in _COLLECTIVE_MODULES:
        module = sys.modules.get(name)
        entries = lookup.module_dict(module) if module is not None and lookup.is_module(module) else {}
        for key, thing in tuple(entries.items()):
            own = type(thing) is types.FunctionType and thing.__module__ == name
            passes = key.startswith(_ASKS) or (carried and name == _CARRIED_MODULE and key in CARRIED)
            if own and not passes:
                yield key, thing
    for name in COLLECTIVE_CLASSES:
        cls = lookup.by_name(name)
        for method in _COLLECTIVE_OF_CLASSES if cls is not None and lookup.is_class(cls) else ():
            if method in lookup.class_dict(cls):
                yield f"{lookup.class_name(cls)}.{method}", lookup.class_dict(cls)[method]
    if _grouped():
        yield "backward", lookup.by_name("torch.autograd.backward")


@functools.lru_cache(maxsize=512)
def _tried(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Ranges of a function's instructions, in bytes, from which an exception goes to a handler in it."""
    parse: Any = getattr(dis, "_parse_exception_table", None)
    if parse is not None:
        return tuple((entry.start, entry.end) for entry in parse(code))
    # Python 3.10 keeps blocks on a stack: a range goes from the setup of a handler to the handler.
    found = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"):
            found.append((instruction.offset, int(instruction.argval)))
    return tuple(found)


def _tries(code: CodeType, offset: int) -> bool:
    return any(start <= offset < end for start, end in _tried(code))
