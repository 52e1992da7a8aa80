"""Averages of weights that are kept in 16 bit, where each step towards the weights is rounded away. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, number
from probe.diagnose.code.finders.losses.followers import mixtures, owner
from probe.diagnose.code.finders.runs.begun_averages import comes_back, kept_and_taken, store_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import says, short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.updates import plain
from probe.diagnose.code.traits.weights import bits_of, in_place

FINDERS = Finders()
_ROUNDED_AWAY = {"bfloat16": 0.0101, "float16": 0.00126}
"""The largest share of the weights that is lost where they differ from the average by less than about half of it."""
_TYPED = ("to", "half", "bfloat16", "float", "double", "type", "astype", "float32", "float64")
_SAME = ("data", "detach", "clone", "cpu", "cuda", "deepcopy", "copy", "contiguous", "requires_grad_")
_AVERAGED = "torch.optim.swa_utils.AveragedModel"
_DECAYS = ("torch.optim.swa_utils.get_ema_multi_avg_fn", "torch.optim.swa_utils.get_ema_avg_fn")
_USUAL = 0.999


@FINDERS.add("stepped-in-half")
def _averaged_in_half(program: Program) -> Iterator[Remark]:
    """An average of a network's weights is kept in 16 bit, and moved by a small share of what it is away from them."""
    computation = computation_of(program)
    for value, share, cast in (*_of_networks(computation), *_of_stores(computation), *_of_torch(computation)):
        kind = bits_of(cast)
        if kind is not None and 0 < share <= _ROUNDED_AWAY[kind] and (value.where.loops or value.where.apart):
            step = "four thousandth" if kind == "float16" else "five hundredth"
            yield Remark(value.node, f"{short(value.node)} moves an average that is kept in {kind} ({short(cast.node)}, line {cast.line}) by {share:.3g} of what the weights are away from it: a change of a weight by less than about a {step} of itself is rounded away, so the average hardly leaves the weights that it began with")
            return


def _of_networks(computation: Computation) -> Iterator[tuple[Value, float, Value]]:
    """Networks of 16 bit that follow another one: what moves them, by which share, and what gave them the type."""
    for one in mixtures(computation):
        others = one.others()
        target = one.value.args[0]
        while target.op in ("mul", "add") and target.args:
            target = target.args[0]
        cast = _type_of(computation, target, one.value, others[0]) if len(others) == 1 and abs(sum(part.share for part in one.parts) - 1) < 1e-6 else None
        if cast is not None and _stays(one.value):
            yield one.value, 1 - one.share_of(one.into), cast


def _type_of_network(computation: Computation, into: Value, source: Value | None, before: Value) -> Value | None:
    """What gave a network its type last, or the network that it is a copy of."""
    own = _casts(computation, into, before)
    if not own and source is not None and isinstance(into.node, ast.Call) and says(into.node.func, "deepcopy"):
        own = _casts(computation, source, into)
    return own[-1] if own else None


def _casts(computation: Computation, network: Value, before: Value) -> list[Value]:
    return [one for one in computation.of(*_TYPED) if one.args and one.number < before.number and module(one.args[0]) is module(network) and (one.op != "to" or _names_a_type(one)) and one is not before]


def _names_a_type(value: Value) -> bool:
    """Whether a call of `to` gives another type, and not a device alone."""
    return any(one.op == "dtype" or (one.op == "@library" and "float" in str(one.data)) for one in (*value.args[1:], *value.named.values()))


def _stays(value: Value) -> bool:
    """Whether what is written has the type of what it is written into: in place; else what is written is made so itself."""
    return in_place(value) or (len(value.args) > 1 and bits_of(value.args[-1]) is not None)


def _of_stores(computation: Computation) -> Iterator[tuple[Value, float, Value]]:
    """Dicts and lists of weights of 16 bit that follow a network."""
    for value in computation.of("add", "lerp", "copy", "set_item"):
        written = value.args[-1] if value.op in ("copy", "set_item") and len(value.args) > 1 else value
        if not _stays(value):
            continue
        mixed = written
        while mixed.op in (*_TYPED, *_SAME) and mixed.args:
            mixed = mixed.args[0]
        found = kept_and_taken(mixed)
        store = store_of(found[0]) if found is not None else None
        share = _share_taken(mixed)
        if found is None or store is None or share is None or owner(_weight(found[1]), value.where) is None:
            continue
        first = [one for one in _filled(computation, store) if not comes_back(one, store)]
        types = [_type_of(computation, one, value) for one in first]
        if types and all(one is not None and bits_of(one) is not None for one in types) and types[0] is not None:
            yield value, share, types[0]


def _share_taken(value: Value) -> float | None:
    """The share of the weights in `decay * average + share * weights`."""
    if value.op == "lerp":
        return number(value.argument("weight", 2))
    alpha = number(value.named.get("alpha"))
    if alpha is not None:
        return alpha
    shares = [known for side in value.args for one in side.args if side.op == "mul" and (known := number(one)) is not None]
    return min(shares) if shares else None


def _weight(value: Value) -> Value:
    """A weight without the share that it is multiplied by."""
    while value.op == "mul" and len(value.args) == 2:
        value = value.args[1] if number(value.args[0]) is not None else value.args[0]
    return value


def _filled(computation: Computation, store: Value) -> list[Value]:
    """What a dict or list of weights was filled with."""
    inside = [*(one for _, one in store.others), *store.entries.values()] if isinstance(store, Table) else store.parts if isinstance(store, Many) else []
    return [*inside, *(one.args[2] for one in computation.of("set_item") if len(one.args) == 3 and one.args[0] is store)]


def _type_of(computation: Computation, value: Value, before: Value, source: Value | None = None) -> Value | None:
    """What gave a weight its type last: the weight itself, or its network, which may be a copy of `source`."""
    found = owner(value, value.where)
    while value.op in (*_TYPED, *_SAME) and value.args:
        if value.op in _TYPED and (value.op != "to" or _names_a_type(value)):
            return value
        value = value.args[0]
    return _type_of_network(computation, found[0], source, before) if found is not None else None


def _of_torch(computation: Computation) -> Iterator[tuple[Value, float, Value]]:
    """An AveragedModel of 16 bit with an exponential average."""
    for value in computation.of("update_parameters"):
        average = plain(value.args[0]) if value.args else value
        mixed = next((one for one in average.named.values() if one.op in _DECAYS), None)
        if average.op != _AVERAGED or mixed is None or not average.args:
            continue
        given = mixed.argument("decay", 0)
        decay = _USUAL if given is None else number(given)
        own = _casts(computation, average, value) or _casts(computation, plain(average.args[0]), average)
        if own and decay is not None:
            yield value, 1 - decay, own[-1]
