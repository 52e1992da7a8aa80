"""Weights that two layers are to share, and that are copied; weights that are to stay as they were, and are not. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Code, Many, Table, Value, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.updates import optimizer_of, plain, runs
from probe.diagnose.code.traits.weights import shared

FINDERS = Finders()
_COPIES = ("clone", "deepcopy", "tensor", "copy", "cat", "add", "numpy")
_MODULES = ("torch.nn.Linear", "torch.nn.Embedding")


@FINDERS.add("tie-broken")
def _tied_by_a_copy(program: Program) -> Iterator[Remark]:
    """Where weights are to be tied, a layer gets a copy of the other one's weight: a parameter of its own."""
    for value in computation_of(program).of("set_attribute"):
        layer, given = (value.args[0], value.args[-1]) if len(value.args) == 2 else (value, value)
        if value.data != "weight" or layer.op not in _MODULES or not _says_tied(program, value):
            continue
        copied: Value | None = None
        while given.op in ("torch.nn.Parameter", "Parameter", *KEPT) and given.args:
            copied = given if given.op in _COPIES else copied
            given = given.args[0]
        other = given.args[0] if given.op == "weight" and given.args else layer
        if copied is not None and other is not layer and other.op in _MODULES:
            yield Remark(value.node, f"{short(copied.node)} (line {copied.line}) is a copy, and {short(value.node)} gets it as a weight of its own: the two layers share nothing")
            return


@FINDERS.add("tie-broken")
def _replaced_after_the_tie(program: Program) -> Iterator[Remark]:
    """Two layers share their weight, and one of them is replaced by a new one afterwards: `net["table"] = nn.Embedding(…)`."""
    computation = computation_of(program)
    for tie in computation.of("set_attribute"):
        shared = tie.args[-1] if len(tie.args) == 2 and tie.data == "weight" else tie
        if shared.op != "weight" or not shared.args or not isinstance(shared.node, ast.Attribute) or not isinstance(tie.node, ast.Attribute):
            continue
        owners = {ast.unparse(one.value) for one in (shared.node, tie.node)}
        for value in computation.of("set_item", "set_attribute"):
            made = value.args[-1] if value.args else value
            later = value.number > tie.number and program.function_of(value.node) is program.function_of(tie.node) and value.where.under == tie.where.under
            new = made.op.startswith(_MODULES) and made.number > tie.number
            again = any(one.op == "set_attribute" and one.data == "weight" and one.number > value.number for one in computation.of("set_attribute"))
            target = _target(program, value)
            if later and new and not again and target in owners:
                yield Remark(value.node, f"{target} becomes {short(made.node)}, which has a weight of its own: line {tie.line} has tied {ast.unparse(tie.node)} to {ast.unparse(shared.node)}")
                return


def _target(program: Program, value: Value) -> str:
    """What a statement gives a new value to."""
    statement = program.statement(value.node)
    return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else ""


def _says_tied(program: Program, value: Value) -> bool:
    """Whether the function, or a condition around it, says that weights are tied."""
    function = program.function_of(value.node)
    names = [getattr(function, "name", "")]
    at: ast.AST | None = value.node
    while at is not None and at is not function:
        if isinstance(at, ast.If):
            names.append(ast.unparse(at.test))
        at = program.parent.get(at)
    words = {part for name in names for part in name.lower().replace(".", "_").replace("(", "_").split("_")}
    return bool(words & {"tie", "tied", "ties", "tying", "share", "shared"})


@FINDERS.add("tie-broken")
def _given_anew_in_a_loop(program: Program) -> Iterator[Remark]:
    """Two layers share their weight, and afterwards each layer of the network is given a new parameter as its weight, in a loop over
    the modules or by `apply`."""
    computation = computation_of(program)
    for tie in computation.of("set_attribute"):
        shared = tie.args[-1] if len(tie.args) == 2 and tie.data == "weight" else tie
        if shared.op != "weight" or not shared.args or tie.args[0].op not in _MODULES:
            continue
        layers = {tie.args[0].op, shared.args[0].op}
        again = [one.number for one in computation.of("set_attribute") if one is not tie and one.data == "weight" and one.args[-1].op == "weight"]
        for value in computation.of("set_attribute"):
            made = value.args[-1] if len(value.args) == 2 and value.data == "weight" else value
            when = _reached_at(computation, value)
            asked = [test for test, holds in value.where.under if test.op == "isinstance" and holds and len(test.args) == 2]
            classes = {str(one.data) for test in asked for one in origins(test.args[1]) if one.op == "@library"}
            if made.op == "torch.nn.Parameter" and when is not None and when > tie.number and not any(number > when for number in again) and (not asked or classes & layers):
                yield Remark(value.node, f"{short(value.node)} becomes {short(made.node)} in each layer, a parameter of its own: line {tie.line} has tied {short(tie.node)} to {short(shared.node)}")
                return


def _reached_at(computation: Computation, value: Value) -> int | None:
    """When a loop over all modules of a network, or what is applied to each of them, comes to a value; None where it is no layer of
    such a walk that is changed there."""
    layer = value.args[0] if value.args else value
    if layer.op == "part" and layer.args:  # of `for name, module in net.named_modules()`
        layer = layer.args[0]
    if layer.op == "element" and layer.args and layer.args[0].op in ("modules", "named_modules", "children"):
        return value.number
    if layer.op != "@input" or not value.where.functions:
        return None
    calls = [one for one in computation.of("apply") if len(one.args) == 2 and isinstance(one.args[1], Code) and one.args[1].function is value.where.functions[-1]]
    return max((one.number for one in calls), default=None)


# Weights that a penalty holds near what they were ---------------------------------------


_DIFFERENCES = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "torch.dist", "dist")
_ONE_BY_ONE = ("weight", "bias", "torch.nn.Parameter")
_SAME_MEMORY = ("detach", "data", "numpy", "from_numpy", "as_tensor", "asarray", "requires_grad_")
_MOVES = ("to", "cuda", "half", "double", "bfloat16", "torch.nn.utils.vector_to_parameters", "torch.utils.swap_tensors", "to_empty", "share_memory")
"""What may give parameters memory of their own, apart from that of what was taken of them before."""


@FINDERS.add("state-without-its-past")
def _held_to_itself(program: Program) -> Iterator[Remark]:
    """A loss has a term for how far parameters have gone from those that were kept before the loop, and what was kept are the
    parameters themselves."""
    computation = computation_of(program)
    asked: set[int] | None = None
    for value in computation.of(*_DIFFERENCES):
        for own, kept in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 and value.where.loops else ():
            taken = _taken_before(computation, own, kept, value)
            if taken is None or not _is_stepped(computation, value) or _may_be_moved(computation, taken, value):
                continue
            if asked is None:
                asked = {id(one) for _, loss in losses(computation) for one in origins(loss)}
            if id(value) in asked:
                yield Remark(taken.node, f"{short(taken.node)} gives the weights themselves, not a copy: the steps change what is kept too, and {short(value.node)} (line {value.line}) is always 0")
                return


def _taken_before(computation: Computation, own: Value, kept: Value, difference: Value) -> Value | None:
    """Where what is kept of a parameter, without a copy, was taken from its network, outside of the loop that compares it with
    the parameter; None where it is a copy, or of another one."""
    mine, stored = _in_memory(own), _in_memory(kept)
    if mine.op in _ONE_BY_ONE:
        one = mine is stored or (mine.op == stored.op and mine.op != "torch.nn.Parameter" and plain(mine.args[0]) is plain(stored.args[0]))
        return kept if one and kept is not own and kept.op in _SAME_MEMORY and _is_outside(kept, difference) else None
    begun, named = shared(mine), _kept_as(computation, stored)
    if len(begun) != 1 or begun[0].op == "state_dict" or not (named is not stored or _go_together(computation, mine, stored, own, difference)):
        return None
    stored = _in_memory(named)
    before = {id(one): one for leaf in _leaves(stored) for one in shared(leaf)}
    found = next(iter(before.values())) if len(before) == 1 else None
    of = plain(begun[0].args[0])
    same = found is not None and found is not begun[0] and plain(found.args[0]) is of and of.op != "either"
    return found if same and found is not None and _is_outside(found, difference) else None


def _in_memory(value: Value) -> Value:
    """A tensor without what gives another view of its memory."""
    while value.op in _SAME_MEMORY and value.args:
        value = value.args[0]
    return value


def _leaves(value: Value, depth: int = 8) -> Iterator[Value]:
    """What may be read from a store, each without what gives another view of its memory."""
    value = _in_memory(value)
    store = value.args[0] if value.op in ("part", "element") and value.args else value
    if depth and isinstance(store, (Many, Table)):
        for one in store.made_of():
            yield from _leaves(one, depth - 1)
    else:
        yield value


def _kept_as(computation: Computation, read: Value) -> Value:
    """What an object keeps under a name that is made of that of a parameter, where it is read under such a name."""
    if read.op != "getattr" or len(read.args) < 2:
        return read
    found = [one.args[2] for one in computation.of("register_buffer", "setattr") if len(one.args) > 2 and one.args[0] is read.args[0] and _made_alike(one.args[1], read.args[1])]
    return found[0] if len(found) == 1 else read


def _made_alike(one: Value, other: Value) -> bool:
    """Whether two names are made in the same way of those of parameters."""
    if one.op != other.op or len(one.args) != len(other.args):
        return False
    return one.data == other.data if one.op == "@constant" else one.op == "element" or all(_made_alike(a, b) for a, b in zip(one.args, other.args, strict=True))


def _is_outside(taken: Value, difference: Value) -> bool:
    """Whether what is kept was taken before the loop in which it is compared began."""
    loops = taken.where.loops
    return taken.number < difference.number and runs(taken) == runs(difference) and len(loops) < len(difference.where.loops) and difference.where.loops[: len(loops)] == loops


def _go_together(computation: Computation, mine: Value, stored: Value, own: Value, difference: Value) -> bool:
    """Whether what is kept is that of the same parameter: it is kept under its name or its number, or the two are walked side by
    side."""
    key = stored.args[1] if stored.op == "part" and len(stored.args) == 2 else None
    if key is not None and mine.op == "part" and len(mine.args) == 2 and constant(mine.args[1]) == 1 and key.op == "part" and constant(key.args[1]) == 0:
        return key.args[0] is mine.args[0]
    if key is not None and key.op == "index":
        return key.where.loops == mine.where.loops
    if key is None and _is_numbered(mine, difference):
        return True
    return any(isinstance(one, Many) and any(_in_memory(part) is mine for part in one.parts) and any(_in_memory(part) is stored for part in one.parts) for one in (*computation.users(own), *computation.users(mine)))


def _is_numbered(mine: Value, difference: Value) -> bool:
    """Whether a difference reads a store at what the loop over the parameters counts or calls them by: `kept[i]`."""
    loop = mine.where.loops[-1] if mine.where.loops else None
    targets = [loop.target] if isinstance(loop, ast.For) else [one.target for one in getattr(loop, "generators", ())]
    names = {name for one in targets for name in names_of(one)}
    return any(isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Name) and one.slice.id in names for one in ast.walk(difference.node))


def _is_stepped(computation: Computation, difference: Value) -> bool:
    """Whether an optimizer steps in a loop around a difference."""
    return any(optimizer_of(one) is not None and one.where.loops[:1] == difference.where.loops[:1] for one in computation.of("step"))


def _may_be_moved(computation: Computation, taken: Value, difference: Value) -> bool:
    """Whether a network may be given other memory for its parameters after something was taken of it."""
    if any(one.op == "set_attribute" and one.data == "data" for one in computation.values):
        return True
    moved = (one for one in computation.of(*_MOVES) if one.args and taken.number < one.number < difference.number)
    return any(plain(one.args[0]) is plain(taken.args[0]) or not one.op.islower() or "." in one.op for one in moved)
