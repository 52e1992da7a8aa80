"""Reversed gradients: finds the job's autograd functions that pass their input on and negate its gradient.

A gradient reversal layer (Ganin and Lempitsky, 2015) is such a function: what lies before it learns to raise
the term of the loss that lies behind it, so the terms compete. Runs on the agent's thread; it reads bytecode
and calls no code of the job. Standard library only.
"""

from __future__ import annotations

import dis
from types import CodeType, FunctionType
from typing import Any

_PASSES_ON = frozenset({
    "view_as", "view", "clone", "alias", "contiguous", "save_for_backward", "shape", "size", "mark_dirty",
    "set_materialize_grads",
})
"""Names that a forward may load and still return its input unchanged."""
_NEGATES = frozenset({"neg", "neg_", "negative", "negative_"})
_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"})


def reverses(node_type: Any) -> bool:
    """Whether a node's type belongs to a `torch.autograd.Function` whose forward returns its input and whose
    backward negates the gradient."""
    function = vars(node_type).get("_forward_cls") if isinstance(node_type, type) else None
    forward, backward = _code(function, "forward"), _code(function, "backward")
    if forward is None or backward is None:
        return False
    return _loaded(forward) <= _PASSES_ON and not _computes(forward) and _is_negated(backward)


def _code(function: Any, name: str) -> CodeType | None:
    """The bytecode of a static method that the class itself defines."""
    held = vars(function).get(name) if isinstance(function, type) else None
    inner = held.__func__ if isinstance(held, staticmethod) else held
    return inner.__code__ if isinstance(inner, FunctionType) else None


def _loaded(code: CodeType) -> set[str]:
    return {str(one.argval) for one in dis.get_instructions(code) if one.opname in _LOADS}


def _computes(code: CodeType) -> bool:
    return any(one.opname.startswith(("BINARY_", "INPLACE_", "UNARY_")) for one in dis.get_instructions(code))


def _is_negated(code: CodeType) -> bool:
    """Whether a backward has a minus sign, calls `neg`, or multiplies by a negative number."""
    if any(isinstance(one, (int, float)) and one < 0 for one in code.co_consts):
        return True
    return bool(_loaded(code) & _NEGATES) or any(
        one.opname == "UNARY_NEGATIVE" for one in dis.get_instructions(code)
    )
