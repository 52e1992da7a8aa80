"""Reads the native stacks of another process: `python -m probe.outside.stacks.native_process PID …`.

A read can hang in the kernel until the reading process ends, so `native` starts this child process for it.
It reads once, writes one line of JSON to stdout and exits:
{"stopped_ms", "threads": [{"tid", "holds_gil", "waits_for_gil", "merged", "frames"}]} with frames as in a
capture, or {"error": "…"}. Standard library; pystack inside functions.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from probe.base import package

LONGEST_NAME = 120
"""Characters of a native function's name; torch has names of 2 KB."""
NAMELESS = "???"
"""pystack's name for a function of a library without symbols."""
_THREAD_STARTS = frozenset({
    "_start", "__libc_start_main", "__libc_start_call_main", "__clone3", "clone3", "clone", "__clone",
    "start_thread", "execute_native_thread_routine",
})
_INTERPRETER = re.compile(r"/(?:libpython|python)[^/]*$")
_PLUMBING = re.compile(
    r"(?:slot|call|object|type|cfunction|method|partial|bounded_lru_cache|infinite_lru_cache|wrap|builtin)_"
    r"|Py(?:Object|Iter|Eval|Number|Sequence|Mapping)_"
)
_RUNTIME = re.compile(r"/(?:libc|libpthread|ld-|libstdc\+\+|libgcc)[^/]*$")
_OPERATOR = re.compile(r"\boperator(?:\(\)|<=>|<<=?|>>=?|->\*?|[<>]=?)")


def main(words: list[str]) -> int:
    """Read and print; returns 0, or 1 when it could not be read (`error` says why)."""
    parser = argparse.ArgumentParser(prog="probe.outside.stacks.native_process")
    parser.add_argument("pid", type=int)
    parser.add_argument("--all-threads", action="store_true", help="include threads that run no Python")
    parser.add_argument("--locals", action="store_true")
    options = parser.parse_args(words)
    found = read(options.pid, all_threads=options.all_threads, locals=options.locals)
    sys.stdout.write(json.dumps(found) + "\n")
    return int("error" in found)


def read(pid: int, *, all_threads: bool, locals: bool) -> dict[str, Any]:
    """Stop the process, read all its stacks, continue it."""
    try:
        from pystack.engine import NativeReportingMode, get_process_threads
        from pystack.errors import PystackError
    except ImportError as error:
        return {"error": f"pystack cannot be imported ({error})"}
    mode = NativeReportingMode.ALL if all_threads else NativeReportingMode.PYTHON
    began = time.monotonic()
    try:
        threads = get_process_threads(pid, native_mode=mode, locals=locals)
    except (PystackError, RuntimeError, OSError) as error:
        return {"error": str(error).partition("\n")[0] or type(error).__name__}
    stopped_ms = round((time.monotonic() - began) * 1e3)
    return {"stopped_ms": stopped_ms, "threads": [_thread(thread) for thread in threads]}


def _thread(thread: Any) -> dict[str, Any]:
    from pystack.types import NativeFrame, frame_type

    kinds = {NativeFrame.FrameType.EVAL: "eval", NativeFrame.FrameType.IGNORE: "ignore"}

    def kind(frame: Any) -> str:
        return kinds.get(frame_type(frame, thread.python_version), "other")

    python = list(thread.all_frames)
    native = list(thread.native_frames)
    entries = sum(frame.is_entry for frame in python)
    mergeable = entries == sum(kind(frame) == "eval" for frame in native)
    together = merged if mergeable else beside
    frames = list(without_repeats(together(python, native, kind)))
    frames.reverse()
    return {
        "tid": thread.tid,
        "holds_gil": thread.holds_the_gil > 0,
        "waits_for_gil": waits_for_gil(native),
        "merged": mergeable,
        "frames": [{"depth": depth, **frame} for depth, frame in enumerate(frames)],
    }


def waits_for_gil(native: list[Any]) -> bool | None:
    """Whether a thread is in `take_gil`; None where the interpreter has no names of its functions."""
    if any(frame.symbol.partition("@")[0] == "take_gil" for frame in native):
        return True
    nameless = any(frame.symbol == NAMELESS and _INTERPRETER.search(frame.library) for frame in native)
    return None if nameless else False


def merged(python: list[Any], native: list[Any], kind: Callable[[Any], str]) -> Iterator[dict[str, Any]]:
    """Both stacks as one, outermost first: a native frame that evaluates bytecode is replaced by the
    Python frames from one entry into the interpreter to the next."""
    waiting = iter(runs(python))
    inside = not python  # frames that start the interpreter, or the thread, are left out
    for frame in native:
        what = kind(frame)
        if what == "eval":
            inside = True
            yield from (python_frame(one) for one in next(waiting) if not one.is_shim)
        elif what == "other" and (inside or not _INTERPRETER.search(frame.library)):
            yield from native_frame(frame)


def without_repeats(frames: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One frame for several nameless frames of the same library in a row."""
    before: dict[str, Any] = {}
    for frame in frames:
        if frame["func"] != NAMELESS or frame != before:
            yield frame
        before = frame


def runs(python: Iterable[Any]) -> Iterator[list[Any]]:
    """Python frames, outermost first, cut before each entry into the interpreter."""
    run: list[Any] = []
    for frame in python:
        if frame.is_entry and run:
            yield run
            run = []
        run.append(frame)
    if run:
        yield run


def beside(python: list[Any], native: list[Any], kind: Callable[[Any], str]) -> Iterator[dict[str, Any]]:
    """Both stacks if they cannot be merged: the Python frames, then the native frames below the last one."""
    yield from (python_frame(frame) for frame in python if not frame.is_shim)
    kinds = [kind(frame) for frame in native]
    if "eval" not in kinds:
        return
    last = len(kinds) - 1 - kinds[::-1].index("eval")
    for frame, what in zip(native[last:], kinds[last:], strict=True):
        if what == "other":
            yield from native_frame(frame)


def python_frame(frame: Any) -> dict[str, Any]:
    """A Python frame; its variables as [name, repr] pairs, arguments first."""
    return {
        "func": frame.code.scope,
        "file": package.without_detour(frame.code.filename),
        "lineno": frame.code.location.lineno,
        "frame_type": "Python",
        "locals": [*frame.arguments.items(), *frame.locals.items()],
    }


def native_frame(frame: Any) -> Iterator[dict[str, Any]]:
    """A C or C++ frame, unless it is noise: thread start, the interpreter's call machinery, inlined libc."""
    symbol = frame.symbol.partition(" (inlined)")[0]
    func = readable(symbol)
    if func in _THREAD_STARTS:
        return
    if _RUNTIME.search(frame.library) and (func == NAMELESS or symbol != frame.symbol):
        return
    if _INTERPRETER.search(frame.library) and (func == NAMELESS or _PLUMBING.match(func)):
        return
    yield {
        "func": func, "file": frame.library or frame.path, "lineno": None, "frame_type": "Native",
        "locals": [],
    }


def readable(symbol: str) -> str:
    """A demangled name without template arguments, parameters, result type and version.

    >>> readable("void c10d::f<std::vector<int> >(int, T const&)::{lambda(int)#1}::_FUN(int)")
    'c10d::f::{lambda}::_FUN'
    """
    name = symbol.partition("@")[0] if not symbol.startswith("@") else symbol
    name = name.partition(" [clone")[0].replace("(anonymous namespace)", "{anonymous}")
    name = _OPERATOR.sub(lambda found: found[0].translate(_HIDDEN), name)
    name = _without_brackets(name)
    name = re.sub(r"\{(lambda|unnamed type|unnamed)[^{}]*\}", r"{\1}", name)
    name = re.sub(r"\) ?(?:const|volatile|&&?|noexcept)*$", ")", name.strip())
    name = re.sub(r"(?: const| volatile| &&?| noexcept)+$", "", name)
    if "operator" not in name:
        name = name.rpartition(" ")[2]
    name = name.translate(_SHOWN)
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


_SIGNS = "<>()"
_STAND_INS = "\ue000\ue001\ue002\ue003"
_HIDDEN = str.maketrans(_SIGNS, _STAND_INS)
_SHOWN = str.maketrans(_STAND_INS, _SIGNS)


def _without_brackets(name: str) -> str:
    """Drop the contents of <…> and (…); the contents of {…} stay, without parameters."""
    kept: list[str] = []
    depth = 0
    for sign in name:
        if sign in "<(":
            depth += 1
        elif sign in ">)":
            depth = max(0, depth - 1)
        elif not depth:
            kept.append(sign)
    return "".join(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
