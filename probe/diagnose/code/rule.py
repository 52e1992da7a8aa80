"""What a rule about source code is, and what it gives. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from probe.diagnose.code.program import Program


class Remark(NamedTuple):
    """One place where a rule found a mistake: the node it stands at, and the sentence that says what is wrong
    there, in the program's own names."""

    node: ast.AST
    said: str


class Rule(NamedTuple):
    """One kind of mistake: `why` says what it does to a training, `remedy` what to write instead."""

    name: str
    area: str
    why: str
    remedy: str
    find: Callable[[Program], Iterator[Remark]]

