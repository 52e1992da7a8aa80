"""Averages of weights that are kept in dicts and lists, and averages that nothing reads. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, Where, origins, same
from probe.diagnose.code.finders.losses.followers import owner, settled
from probe.diagnose.code.flow import may_be_run
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import optimizer_of
from probe.diagnose.code.traits.weights import in_place

FINDERS = Finders()
_AVERAGED = "torch.optim.swa_utils.AveragedModel"
_SAME = ("data", "detach", "clone", "to", "float", "cpu", "copy")


def _store(value: Value) -> Value | None:
    """The dict or list that a value is an entry of."""
    at = value
    for _ in range(6):
        if isinstance(at, (Table, Many)):
            return at if at is not value and at.op != "tuple" else None
        if at.op not in ("part", "element", "values", "items", *_SAME) or not at.args:
            return None
        at = at.args[0]
    return None


def _shares(value: Value, store: Value, where: Where, share: float = 1.0) -> tuple[float, float] | None:
    """How much of a store's own entry, and of the weights of a network, a value is; None where that is not known."""
    if _store(value) is store:
        return share, 0.0
    if owner(value, where) is not None:
        return 0.0, share
    args = value.args
    if value.op in _SAME and args:
        return _shares(args[0], store, where, share)
    if value.op == "mul" and len(args) == 2:
        for one, other in (args, args[::-1]):
            if (known := settled(one)) is not None:
                return _shares(other, store, where, share * known)
        return None
    if value.op == "lerp" and len(args) > 1:
        weight = value.argument("weight", 2)
        known = None if weight is None else settled(weight)
        return None if known is None else _both(_shares(args[0], store, where, share * (1 - known)), _shares(args[1], store, where, share * known))
    if value.op in ("add", "sub") and len(args) == 2:
        alpha = settled(value.named["alpha"]) if "alpha" in value.named else 1.0
        return None if alpha is None else _both(_shares(args[0], store, where, share), _shares(args[1], store, where, share * alpha * (1 if value.op == "add" else -1)))
    return None


def _both(one: tuple[float, float] | None, other: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if one is None or other is None else (one[0] + other[0], one[1] + other[1])


def _kept_up(computation: Computation) -> Iterator[tuple[Value, Value, float]]:
    """Where the entries of a dict or list are moved towards the weights of a network: the value, the store, and how much of
    the old entry is kept."""
    for value in computation.of("set_item", "add", "lerp", "copy"):
        if value.op == "set_item":
            store, new = (value.args[0], value.args[2]) if len(value.args) == 3 else (None, value)
        elif in_place(value) and value.args:
            root = value.args[0]
            while root.op in ("mul", "data") and root.args:
                root = root.args[0]
            store, new = _store(root), value.args[1] if value.op == "copy" else value
        else:
            continue
        shares = _shares(new, store, value.where) if store is not None else None
        if store is not None and shares is not None and 0 < shares[0] < 1 and abs(sum(shares) - 1) < 1e-6:
            yield value, store, shares[0]


@FINDERS.add("average-forgets")
def _average_forgets(program: Program) -> Iterator[Remark]:
    """An average of weights that is kept in a dict or list keeps next to nothing of itself."""
    for value, _, kept in _kept_up(computation_of(program)):
        if kept < 0.1:
            yield Remark(value.node, f"{short(value.node)} keeps only {kept:.3g} of the old average: decay and share of the new weights are the wrong way round")
            return


@FINDERS.add("copy-of-itself")
def _mixed_with_itself(program: Program) -> Iterator[Remark]:
    """An entry of a dict or list of weights is set to a mixture of nothing but itself."""
    for value in computation_of(program).of("set_item"):
        new = value.args[2] if len(value.args) == 3 else value
        store = value.args[0]
        if new.op not in ("add", "lerp") or len(new.args) < 2 or not isinstance(store, Table | Many):
            continue
        shares, entries = _shares(new, store, value.where), [one for one in origins(new, ("part",)) if one.op == "part" and one.args and one.args[0] is store]
        if shares is not None and shares[1] == 0 and abs(shares[0] - 1) < 1e-6 and len(entries) > 1 and all(same(one, entries[0]) for one in entries):
            yield Remark(value.node, f"{short(value.node)} mixes an entry with itself: nothing of the network comes into the average")
            return


@FINDERS.add("average-never-used")
def _never_read(program: Program) -> Iterator[Remark]:
    """An average of the weights is kept up in the training, and nothing ever reads it."""
    computation = computation_of(program)
    for value in computation.of("update_parameters"):
        average = value.args[0] if value.args else value
        if average.op == _AVERAGED and _in_training(computation, value) and not _is_used(computation, average):
            yield Remark(value.node, f"{short(value.node)} keeps the average up, and nothing else ever uses it: what is judged and saved has the weights of the last step")
            return
    for value, store, kept in _kept_up(computation):
        if kept > 0.5 and _in_training(computation, value) and not _is_read(computation, store):
            yield Remark(value.node, f"{short(value.node)} keeps the average up, and nothing else ever reads it: what is judged and saved has the weights of the last step")
            return


def _in_training(computation: Computation, value: Value) -> bool:
    """Whether the script itself runs a value in a loop in which an optimizer steps, and judges or saves a network."""
    steps = any(optimizer_of(one) is not None and one.where.loops and one.where.loops[:1] == value.where.loops[:1] for one in computation.of("step"))
    shown = any((one.op == "run" and one.where.no_grad) or one.op == "save" for one in computation.of("run", "save"))
    return steps and shown and not value.where.apart and computation.complete


def _is_used(computation: Computation, average: Value) -> bool:
    """Whether anything is done with a network but to move it, or with an object that has it."""
    for user in computation.users(average):
        if user.op == "set_attribute" and isinstance(user.args[0], Instance):
            if _is_given_away(computation, user.args[0]):
                return True
        elif user.op not in ("update_parameters", "train", "eval", "to", "torch.optim.swa_utils.update_bn", "update_bn", "is_not", "is") and not user.where.apart:
            return True
    return any(one is average for found in computation.returned.values() for one in found if one.where.apart)


def _is_given_away(computation: Computation, holder: Value) -> bool:
    """Whether an object is given to what is not known, or kept in a list or dict."""
    return any(one.op not in ("set_attribute", "is_not", "is") and not one.where.apart for one in computation.users(holder))


def _may_run(computation: Computation, value: Value) -> bool:
    """Whether what the script does not call itself may run, as a method that a library or another name calls."""
    method, program = value.where.functions[0], computation.program
    of = program.class_of(method)
    return isinstance(method, ast.FunctionDef) and of is not None and may_be_run(program, method, of)


def _is_read(computation: Computation, store: Value) -> bool:
    """Whether anything but what keeps up a dict or list reads it."""
    for one in computation.of("@object"):
        if isinstance(one, Instance) and any(each is store for each in one.attributes.values()) and _is_given_away(computation, one):
            return True
    if any(isinstance(part, Table) and part is not store and any(one is store for one in origins(part)) for value in computation.values for part in value.made_of()):
        return True
    kept = [one.args[2] for one in computation.of("set_item") if one.args[0] is store and len(one.args) > 2]
    waiting, seen = [store, *store.made_of(), *kept], {id(store)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            if id(user) in seen or (user.where.apart and not _may_run(computation, user)):
                continue
            seen.add(id(user))
            own = user.args[0] if user.args else user
            if (user.op == "set_item" and own is store) or (user.op == "set_attribute" and at is store and isinstance(own, Instance)) or (user.op == "copy" and own is at and in_place(user)):
                continue
            if user.op not in _LOOKS or (user.op == "copy" and own is not at):
                return True
            waiting.append(user)
    return False


_LOOKS = ("part", "element", "values", "items", "zip", "tuple", "mul", "add", "sub", "lerp", "keys", "in", *_SAME)
"""What is done with an entry of an average to move it."""
