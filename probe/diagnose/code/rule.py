"""What a rule about source code is, and what it gives. Pure; standard library only."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
    finds: tuple[Find, ...]
    """Ways to find it, which may find the same place: where one has found it, the others are not needed."""

    def find(self, program: Program) -> Iterator[Remark]:
        """Its mistakes in a program."""
        return distinct(program, [find(program) for find in self.finds])


def distinct(program: Program, found: Iterable[Iterable[Remark]]) -> Iterator[Remark]:
    """What several ways have found: in each file, what the first way that finds anything there finds, each
    line once where that is not the first way of all."""
    files: set[str] = set()
    for place, remarks in enumerate(found):
        lines: dict[tuple[str, int], Remark] = {}
        for remark in remarks:
            path, line = program.source_of[remark.node].path, getattr(remark.node, "lineno", 0)
            if path not in files and (place == 0 or (path, line) not in lines):
                lines.setdefault((path, line), remark)
                yield remark
        files |= {path for path, _ in lines}


class Rules(list[Rule]):
    """The rules of one file, in its order; all are of one area."""

    def __init__(self, area: str) -> None:
        super().__init__()
        self.area = area

    def add(self, name: str, why: str, remedy: str) -> Callable[[Find], Find]:
        """Stands before the function that finds a mistake, and makes a rule of it."""

        def kept(find: Find) -> Find:
            self.append(Rule(name, self.area, why, remedy, (find,)))
            return find

        return kept


class Finders(list[tuple[str, Find]]):
    """Other ways to find the mistakes of rules that have a name already: by what the program computes,
    whatever it is written like."""

    def add(self, *names: str) -> Callable[[Find], Find]:
        """Stands before the function that finds the mistakes of the rules `names`."""

        def kept(find: Find) -> Find:
            self.extend((name, find) for name in names)
            return find

        return kept


def with_finders(rules: Iterable[Rule], finders: Iterable[tuple[str, Find]]) -> Iterator[Rule]:
    """The rules, each with its other finders. No two have one name."""
    rules = tuple(rules)
    twice = [name for name, count in Counter(one.name for one in rules).items() if count > 1]
    assert not twice, f"several rules are named {', '.join(twice)}"
    found: dict[str, tuple[Find, ...]] = {}
    for name, find in finders:
        found[name] = (*found.get(name, ()), find)
    for rule in rules:
        yield rule._replace(finds=(*rule.finds, *found.pop(rule.name, ())))
    assert not found, f"no rule is named {', '.join(found)}"
