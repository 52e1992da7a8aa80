"""The best state so far, kept otherwise than under a condition. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, alternatives
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import modules, optimizer_of, plain
from probe.diagnose.code.traits.weights import shared

FINDERS = Finders()
_CHOOSES = ("min", "max", "sorted", "heapq.heappush", "heapq.heappushpop", "heappush")


@FINDERS.add("kept-without-a-copy")
def _chosen_by_its_score(program: Program) -> Iterator[Remark]:
    """Pairs of a score and a network's own weights, of which the best is kept while the network is trained further."""
    computation = computation_of(program)
    for choice in computation.of(*_CHOOSES):
        for pair in choice.args:
            for taken in _weights_in(pair):
                if taken.where.loops and taken.where.loops == choice.where.loops and _trains(computation, plain(taken.args[0]), taken.where.loops):
                    yield Remark(taken.node, f"{short(taken.node)} holds the weights themselves, not a copy: of what {short(choice.node, 40)} (line {choice.line}) keeps, the steps change the weights and not the score")
                    return


@FINDERS.add("kept-without-a-copy")
def _copied_back(program: Program) -> Iterator[Remark]:
    """The parameters of a network are kept in a list or dict under a condition, as they lie in it, and copied into it later."""
    computation = computation_of(program)
    for copy in computation.of("copy", "set_attribute"):
        if len(copy.args) != 2 or (copy.op == "set_attribute" and copy.data != "data"):
            continue
        into = shared(copy.args[0])
        for kept in alternatives(copy.args[1]):
            for taken in shared(kept):
                own = bool(into) and plain(into[0].args[0]) is plain(taken.args[0]) and taken is not into[0]
                chosen = [test for test, holds in taken.where.under if holds and test.op in ("gt", "ge", "lt", "le") and not any(test is each for each, _ in copy.where.under)]
                outside = len(copy.where.loops) <= len(taken.where.loops) or copy.where.loops[:1] != taken.where.loops[:1]
                if own and chosen and outside and taken.where.loops and _trains(computation, plain(taken.args[0]), taken.where.loops[:1]):
                    yield Remark(taken.node, f"{short(taken.node)} gives the weights themselves, not a copy: the steps after it change them too, before line {copy.line} puts them back")
                    return


def _weights_in(pair: Value) -> list[Value]:
    """The weights of networks that stand beside a score, without a copy."""
    if not isinstance(pair, (Many, Table)) or len(list(pair.made_of())) < 2:
        return []
    return [one for part in pair.made_of() for one in shared(part) if one.op != "parameters" or isinstance(part, (Many, Table)) or part.op in ("list", "tuple")]


def _trains(computation: Computation, module: Value, loops: tuple[object, ...]) -> bool:
    """Whether an optimizer that holds a network steps in a loop."""
    return any(
        one.where.loops[: len(loops)] == loops and (optimizer := optimizer_of(one)) is not None and any(held is module for held in modules(optimizer))
        for one in computation.of("step")
    )
