"""Interruptible places: where a trace function may raise in a function without skipping its cleanup.

CPython also calls a trace function at places from which an exception leaves a function without running the
`__exit__` of the `with` around it. The code object alone identifies them:

- a jump back to the same line, from Python 3.12 on: the handler of the error is looked up elsewhere;
- the line of a `with` that is left: its `__exit__` is about to be called, and that call is not covered;
- the line of a `try` itself, from Python 3.11 on: no exception is expected there, so no table covers it.

Found by trying every event of small functions in 3.10 to 3.13. Standard library only.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType

_CALLS = ("CALL", "CALL_FUNCTION")
_FILLERS = ("PRECALL",)
_BEFORE = ("SWAP", "ROT_TWO", "NOP")
"""Instructions that may be between the line's beginning and the call of `__exit__`."""


@functools.lru_cache(maxsize=512)
def leaks(code: CodeType) -> frozenset[int]:
    """Offsets (`f_lasti`) at which to raise only if there is no other place."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _FILLERS]
    found: set[int] = set()
    if sys.version_info >= (3, 12):
        line_at = _lines(code)
        for one in instructions:
            if one.opname.startswith("JUMP_BACKWARD"):
                target = int(one.argval)
                if line_at.get(target) == line_at.get(one.offset):
                    found |= {one.offset, target}
    found |= {one.offset for one in instructions if one.opname == "NOP"}
    for number, one in enumerate(instructions[:-3]):
        second, third, call = instructions[number + 1 : number + 4]
        if call.opname in _CALLS and all(map(_is_none, (one, second, third))) and one.opname == "LOAD_CONST":
            found.add(one.offset)
            before = instructions[number - 1] if number else one
            if before.opname in _BEFORE:
                found.add(before.offset)
    return frozenset(found)


def _lines(code: CodeType) -> dict[int, int | None]:
    """The line of each instruction, by its offset."""
    return {
        offset: line for start, end, line in code.co_lines() for offset in range(start, end, 2)
    }


def _is_none(instruction: dis.Instruction) -> bool:
    """Whether it loads None, or copies one that was loaded just before."""
    if instruction.opname == "DUP_TOP":
        return True
    return instruction.opname == "LOAD_CONST" and instruction.argval is None
