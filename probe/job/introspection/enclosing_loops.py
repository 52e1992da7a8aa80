"""Enclosing loops: the loops that a thread is in, from its source, and the progress of each.

Reads the header of each `for` and `while` around the current line of the user's functions, and the values of
the names in it. No code of the job is called: no `__len__`, property or iterator. If a header cannot be
parsed, the loop's end is unknown. Agent's thread; standard library only.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from probe.job.introspection import python_frames
from probe.job.introspection.training_frameworks import own_dictionary

LARGEST_FUNCTION_LINES = 2000
_NOT_ENTERED = frozenset({
    "torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "trl",
})
"""Packages whose frames end the search: loops in code that they call are part of a step."""
_SHOWS_PROGRESS = frozenset({"tqdm", "trange", "track", "progress_bar"})
_QUOTES = re.compile(r'"""|\'\'\'')
_LEAVES = re.compile(r"(?:^|:\s*)(?:break|return)\b")
_CLOSING = (")", "]", "}")


class Loop(NamedTuple):
    """A loop that is under way."""

    words: str
    """Its header and place: `for step in range(10_000), train.py:41`; and whether it may end earlier."""
    key: tuple[str, int]
    """File and line."""
    left: int | None
    """Iterations until its end, with the present one; None if unknown."""
    length: int | None
    """Iterations in all; None if unknown, and for `while`."""


Passes = Callable[[Any], tuple[int, int] | None]
"""Batches that a loader has yielded in this pass, and the length of a pass; None if unknown."""


def enclosing(frames: Iterable[FrameType], passes: Passes) -> list[Loop]:
    """The loops around the place where a thread is, the outermost first. `frames`: innermost first."""
    found: list[Loop] = []
    for frame in _own(frames):
        code, line = frame.f_code, frame.f_lineno
        headers = _headers(code, line) if line else ()
        if not headers:
            continue
        values = _Values(frame, passes)
        for number, text, may_end_before in headers:
            left, length = _progress(text, values)
            words = f"{text.rstrip(':')}, {os.path.basename(code.co_filename)}:{number}"
            words += " (a break or return may end it earlier)" if may_end_before else ""
            found.append(Loop(words, (code.co_filename, number), left, length))
    return found


def _own(frames: Iterable[FrameType]) -> list[FrameType]:
    """The frames of the user's functions down to the first of a framework, the outermost first."""
    own: list[FrameType] = []
    for frame in reversed(list(frames)):
        if python_frames.is_user_code(frame.f_code.co_filename):
            own.append(frame)
        elif own and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_ENTERED:
            break
    return own


@functools.lru_cache(maxsize=256)
def _headers(code: CodeType, line: int) -> tuple[tuple[int, str, bool], ...]:
    """Line and text of each loop around a line of a function, the outermost first, and whether its body may
    leave it. A header above the line encloses it if it is less indented."""
    lines = linecache.getlines(code.co_filename)
    first = max(1, code.co_firstlineno)
    if not first <= line <= len(lines) or line - first > LARGEST_FUNCTION_LINES:
        return ()
    lines = _without_texts(lines[first - 1 : line + LARGEST_FUNCTION_LINES])
    indent = _indent(lines[line - first])
    found = []
    for number in range(line - first - 1, -1, -1):
        text = lines[number].strip()
        own = _indent(lines[number])
        if not text or text.startswith("#") or own >= indent:
            continue
        if text.startswith(_CLOSING):  # its header has the same indentation
            indent = own + 1
            continue
        indent = own
        if text.startswith(("for ", "while ", "async for ")):
            found.append((first + number, text, _is_left(lines[number + 1 :], own)))
        elif text.startswith(("def ", "async def ", "class ")):
            break
    return tuple(reversed(found))


def _is_left(body: list[str], indent: int) -> bool:
    """Whether a `break` or `return` is in a loop's body, or in a loop in it."""
    for line in body:
        text = line.strip()
        if text and not text.startswith(("#", *_CLOSING)) and _indent(line) <= indent:
            return False
        if _LEAVES.search(text):
            return True
    return False


def _without_texts(lines: list[str]) -> list[str]:
    """The lines, with those inside a multi-line string made empty."""
    found, closing = [], ""
    for line in lines:
        found.append("" if closing else line)
        for quotes in _QUOTES.findall(line):
            closing = "" if closing == quotes else closing or quotes
    return found


def _indent(line: str) -> int:
    expanded = line.expandtabs()
    return len(expanded) - len(expanded.lstrip())


def _progress(text: str, values: _Values) -> tuple[int | None, int | None]:
    """Iterations left and iterations in all."""
    try:
        [loop] = ast.parse(f"{text} pass" if text.endswith(":") else text).body
    except (SyntaxError, ValueError):
        return None, None
    if isinstance(loop, ast.While):
        return _until(loop.test, values), None
    if not isinstance(loop, ast.For):
        return None, None
    target, source = loop.target, _shown(loop.iter)
    if _called(source) == "enumerate" and isinstance(source, ast.Call) and source.args:
        source = _shown(source.args[0])
        target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    if isinstance(source, ast.Call) and _called(source) in ("range", "trange"):
        return _of_range(source, target, values)
    return values.of_loader(source)


def _shown(source: ast.expr) -> ast.expr:
    """The iterable inside a progress bar, as in `tqdm(loader)`."""
    if isinstance(source, ast.Call) and _called(source) in _SHOWS_PROGRESS - {"trange"} and source.args:
        return source.args[0]
    return source


def _called(expression: ast.expr) -> str:
    function = expression.func if isinstance(expression, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", ""))


def _of_range(call: ast.Call, target: ast.expr, values: _Values) -> tuple[int | None, int | None]:
    bounds = [values.number(one) for one in call.args[:3]]
    at = values.number(target) if isinstance(target, ast.Name) else None
    if None in bounds or at is None:
        return None, None
    whole = [int(one) for one in bounds if one is not None]
    begin, end, stride = (0, whole[0], 1) if len(whole) == 1 else (*whole, 1)[:3]
    if not stride:
        return None, None
    left = len(range(at, end, stride))
    # `range(step, last)` of `for step`: its own beginning is no longer known
    own = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    is_own = isinstance(target, ast.Name) and target.id in own
    return left, None if is_own else len(range(begin, end, stride))


def _until(test: ast.expr, values: _Values) -> int | None:
    """Counts left in `while step < last`; `PlannedEnd` must observe that it really counts."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    kind = test.ops[0]
    at, end = values.number(test.left), values.number(test.comparators[0])
    if at is None or end is None or not isinstance(kind, (ast.Lt, ast.LtE)):
        return None
    return max(0, end - at + isinstance(kind, ast.LtE))


class _Values:
    """Values of names in a frame, read from dictionaries only."""

    def __init__(self, frame: FrameType, passes: Passes) -> None:
        self._variables = python_frames.variables(frame)
        self._globals = frame.f_globals
        self._passes = passes

    def number(self, expression: ast.expr) -> int | None:
        """An integer, in plain arithmetic of names, attributes and constants."""
        if isinstance(expression, ast.BinOp):
            first, second = self.number(expression.left), self.number(expression.right)
            return None if first is None or second is None else _result(expression.op, first, second)
        if _called(expression) == "len" and isinstance(expression, ast.Call) and len(expression.args) == 1:
            found = self._thing(expression.args[0])
            if type(found) in (list, tuple, dict, range):
                return len(found)
            whole = self._passes(found)
            return None if whole is None else whole[1]
        if _called(expression) == "int" and isinstance(expression, ast.Call) and len(expression.args) == 1:
            return self.number(expression.args[0])
        found = self._thing(expression)
        return found if type(found) is int and abs(found) < 1 << 53 else None

    def of_loader(self, expression: ast.expr) -> tuple[int | None, int | None]:
        """Batches left, with the present one, and all of a pass over a loader."""
        found = self._passes(self._thing(expression))
        if found is None:
            return None, None
        given, whole = found
        return max(0, whole - given + 1), whole

    def _thing(self, expression: ast.expr) -> Any:
        if isinstance(expression, ast.Constant):
            return expression.value
        if isinstance(expression, ast.Name):
            return self._variables.get(expression.id, self._globals.get(expression.id))
        if isinstance(expression, ast.Attribute):
            holder = self._thing(expression.value)
            own = [own_dictionary(holder), *(vars(base) for base in type(holder).__mro__[:-1])]
            return next((one[expression.attr] for one in own if expression.attr in one), None)
        if isinstance(expression, ast.Subscript):
            holder, place = self._thing(expression.value), self._thing(expression.slice)
            if type(holder) is dict and type(place) in (str, int):
                return holder.get(place)
        return None


def _result(kind: ast.operator, first: int, second: int) -> int | None:
    if isinstance(kind, ast.Add):
        return first + second
    if isinstance(kind, ast.Sub):
        return first - second
    if isinstance(kind, ast.Mult):
        return first * second
    return first // second if isinstance(kind, ast.FloorDiv) and second else None
