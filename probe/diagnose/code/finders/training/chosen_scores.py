"""What the best state, or a threshold, is chosen by, and whether the state is kept. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Value, bare, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_call, is_method, short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.updates import optimizer_of
from probe.diagnose.code.traits.weights import shared

FINDERS = Finders()
TEST = re.compile(r"(^|_)test(_|$)", re.I)
"""Words in the name of the part that is kept for the end."""
VALIDATION = re.compile(r"(^|_)(val|valid|validation|dev)(_|$)", re.I)
"""Words in the name of the part that choices are made by."""
_KEEPS = ("deepcopy", "state_dict", "save")


@FINDERS.add("chosen-by-the-test")
def _chosen(program: Program) -> Iterator[Remark]:
    """A state is kept where its score is the best so far, and the score is that of the test part, the only one there is
    beside that of the training."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    judged = {id(one.named["loader"]): one.named["loader"] for run in computation.of("run") if run.where.no_grad for one in origins(run) if one.op == "rows" and "loader" in one.named and id(one) not in learned}
    if not judged or any(VALIDATION.search(name) for one in judged.values() for name in names_of(computation, one)):
        return
    said: set[ast.AST] = set()
    copies = (one for one in computation.values if is_call(one.node, "deepcopy") or is_method(one.node, "deepcopy"))
    for kept in (*computation.of(*_KEEPS), *copies):
        for test, holds in kept.where.under if kept.where.loops else ():
            loaders = {id(one.named["loader"]): one.named["loader"] for one in origins(test) if one.op == "rows" and "loader" in one.named}
            named = [one for key, one in loaders.items() if key in judged and any(TEST.search(name) for name in names_of(computation, one))]
            if holds and test.op in ("gt", "ge", "lt", "le") and named and len(loaders) == len(named) and test.node not in said:
                said.add(test.node)
                yield Remark(test.node, f"{short(test.node)} keeps what is best on the test part: {short(named[0].node)} (line {named[0].line})")


@FINDERS.add("chosen-by-the-test")
def _chosen_by_rows(program: Program) -> Iterator[Remark]:
    """The same without a loader: the score under which a state is kept is that of the rows that the program calls its test
    part, and those of its validation part, which it has too, decide nothing."""
    computation = computation_of(program)
    names: dict[int, set[str]] = {}
    for target, given in computation.stored.items():
        for one in given:
            names.setdefault(id(one), set()).add(target.id)
    if not any(VALIDATION.search(name) for found in names.values() for name in found):
        return
    said: set[ast.AST] = set()
    for kept in computation.of(*_KEEPS):
        for test, holds in kept.where.under if kept.where.loops else ():
            if not holds or test.op not in ("gt", "ge", "lt", "le") or test.node in said or not any(one.op == "run" for one in origins(test)):
                continue
            words = {name for one in origins(test) if not isinstance(one, Instance) for name in names.get(id(one), ())}
            named = sorted(name for name in words if TEST.search(name))
            if named and not any(VALIDATION.search(name) for name in words):
                said.add(test.node)
                yield Remark(test.node, f"{short(test.node)} keeps what is best on {named[0]}, and no score of a validation part decides anything")


@FINDERS.add("threshold-of-the-test")
def _threshold(program: Program) -> Iterator[Remark]:
    """Of the scores of a row of thresholds on the test part, the best one is taken for the score of the test."""
    computation = computation_of(program)
    for best in computation.of("argmax", "max"):
        one = _score_of_each(best)
        limits = [each for each in origins(one) if each.op in ("ge", "gt") and any(_is_threshold(side) for side in each.args)] if one is not None else []
        if one is None or not limits:
            continue
        loaders = {id(each.named["loader"]): each.named["loader"] for each in origins(one) if each.op == "rows" and "loader" in each.named}
        given = list(loaders.values()) or [bare(each.args[-1]) for each in origins(one) if each.op == "run" and not any(part.op == "run" for part in origins(each.args[-1]))]
        if len({id(each) for each in given}) == 1 and (any(TEST.search(name) for name in (*names_of(computation, given[0]), *_owners(computation, given[0]))) or _is_third_part(computation, best, given[0])):
            yield Remark(best.node, f"{short(best.node)} takes the threshold that scores best on the test part, and the score is that of the same part ({short(limits[0].node)}, line {limits[0].line})")
            return


def _is_third_part(computation: Computation, best: Value, rows: Value) -> bool:
    """Whether rows are one of three parts of an order of rows, of which one is trained on and the other one is only looked at; and
    whether what was chosen by these rows is used on no others."""
    order = rows.args[1] if rows.op == "part" and len(rows.args) == 2 else rows
    if order.op != "part" or len(order.args) != 2 or order.args[1].op != "slice" or any(VALIDATION.search(name) for one in (rows, order) for name in names_of(computation, one)):
        return False
    cut = [one for one in computation.users(order.args[0]) if one.op == "part" and one.args[0] is order.args[0] and one.args[1].op == "slice"]
    parts = {id(one): one for one in cut if not same(one.args[1], order.args[1])}
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    looked = {id(one) for run in computation.of("run") if run.where.no_grad for one in origins(run)} - learned
    trained = [one for one in parts.values() if id(one) in learned]
    judged = [one for one in parts.values() if id(one) in looked]
    used = [one for one in computation.of("gt", "ge") if any(side is best for side in one.args)]
    return bool(trained and judged and used) and all(any(each is order for each in origins(one, without=[best])) for one in used)


def _score_of_each(best: Value) -> Value | None:
    """The score of one of a row of numbers, of which the best is taken: by `argmax` over a list of scores, or by `max(row,
    key=score)`."""
    if "key" in best.named:
        return best.named["key"]
    row = bare(best.args[0]) if best.args else best
    row = row.args[0] if row.op in ("array", "list") and row.args else row
    return row.parts[0] if isinstance(row, Many) and row.grown and row.parts else None


def _owners(computation: Computation, value: Value) -> Iterator[str]:
    """What the program calls the objects that hold a value."""
    for target, given in computation.stored.items():
        if any(isinstance(one, Instance) and any(bare(part) is value for part in one.attributes.values()) for one in given):
            yield target.id


def _is_threshold(value: Value) -> bool:
    """Whether a value is one of a row of numbers."""
    value = bare(value)
    return value.op in ("element", "part") and bool(value.args) and bare(value.args[0]).op in ("linspace", "arange")


def names_of(computation: Computation, value: Value) -> Iterator[str]:
    """What the program calls a value."""
    yield from (target.id for target, given in computation.stored.items() if any(one is value for one in given))
    for user in computation.users(value):
        if user.op == "set_attribute" and isinstance(user.data, str):
            yield user.data


@FINDERS.add("kept-without-a-copy")
def _kept_by_reference(program: Program) -> Iterator[Remark]:
    """The weights of the best score so far are kept as they lie in the network, and are loaded later: the steps between have
    changed them."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for load in computation.of("load_state_dict"):
        state = next((one for one in shared(load.args[1]) if one.op == "state_dict"), None) if len(load.args) > 1 else None
        if state is None or state.node in said or not state.where.loops:
            continue
        best = [test for test, holds in state.where.under if holds and test.op in ("gt", "ge", "lt", "le") and not any(test is each for each, _ in load.where.under)]
        learns = any(one.where.loops[: len(state.where.loops)] == state.where.loops for one in computation.of("step") if optimizer_of(one) is not None)
        if best and learns:
            said.add(state.node)
            yield Remark(state.node, f"{short(state.node)} holds the weights themselves, not a copy: the steps after line {state.line} change it too, and {short(load.node)} (line {load.line}) loads what they are then")
