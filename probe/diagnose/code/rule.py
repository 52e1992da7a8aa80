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


Find = Callable[[Program], Iterator[Remark]]


class Rule(NamedTuple):
    """One kind of mistake: `why` says what it does to a training, `remedy` what to write instead."""

    name: str
    area: str
    why: str
    remedy: str
    find: Find


class Rules(list[Rule]):
    """The rules of one file, in its order; all are of one area."""

    def __init__(self, area: str) -> None:
        super().__init__()
        self.area = area

    def add(self, name: str, why: str, remedy: str) -> Callable[[Find], Find]:
        """Stands before the function that finds a mistake, and makes a rule of it."""

        def kept(find: Find) -> Find:
            self.append(Rule(name, self.area, why, remedy, find))
            return find

        return kept
