"""Layers that are frozen before they have learned anything. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, constant, is_none, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.held import contents, optimizers
from probe.diagnose.code.traits.updates import backwards, modules
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()
_LEARNS = ("torch.nn.Linear", "torch.nn.Embedding", "torch.nn.Conv1d", "torch.nn.Conv2d")
_DRAWN = ("randn", "rand", "normal", "zeros", "empty", "torch.Tensor", "torch.FloatTensor")
_WRITES = ("load_state_dict", "copy_", "copy", "from_pretrained", "mul", "div", "add", "sub")


class Freeze(NamedTuple):
    """Where the parameters of `network` are frozen, but for those whose names hold one of `kept`, and of the rest those whose
    names hold each of `only`."""

    value: Value
    network: Value
    kept: tuple[str, ...]
    only: tuple[str, ...] = ()

    def freezes(self, name: str) -> bool:
        """Whether the parameters of a layer of this name are frozen."""
        return not any(word in f"{name}.weight" for word in self.kept) and all(word in name for word in self.only)


def new_layer_frozen(program: Program) -> Iterator[Remark]:
    """All of a network is frozen whose other layers were trained before, and a layer that was made anew with it."""
    computation = computation_of(program)
    first: dict[int, int] = {}
    last: dict[int, Value] = {}
    for backward, loss in backwards(computation):
        for one in origins(loss):
            if one.op == "torch.nn.Parameter" or (one.op == "run" and one.args):
                key = id(one) if one.op == "torch.nn.Parameter" else id(module(one.args[0]))
                first[key] = min(first.get(key, backward.number), backward.number)
                last[key] = backward
    loaded = [(one.number, {id(part) for part in contents(module(one.args[0]), computation)}) for one in computation.of("load_state_dict") if one.args]
    for freeze in _freezes(computation):
        at = freeze.value.number
        inside = {id(one) for one in contents(freeze.network, computation)}
        learned = any(number < at for key, number in first.items() if key in inside) or any(number < at and parts & inside for number, parts in loaded)
        for name, layer in _layers(computation, freeze.network) if learned or _is_pretrained(freeze.network) else ():
            key = id(layer) if id(layer) in first else id(freeze.network)
            later = first.get(key, 0) > at and layer.number < at
            given = any(id(layer) in parts and layer.number < number for number, parts in loaded) or _is_given(computation, layer)
            if later and not given and freeze.freezes(name) and not _thaws(computation, freeze, name, layer):
                made = "has made with random numbers" if layer.op != "torch.nn.Parameter" else "has made anew"
                yield Remark(freeze.value.node, f"{short(freeze.value.node)} freezes {name} too, which {short(layer.node)} (line {layer.line}) {made}, and {short(last[key].node)} (line {last[key].line}) is computed with: it never learns anything")
                return


@FINDERS.add("cut-off-from-the-loss")
def _run_without_gradient(program: Program) -> Iterator[Remark]:
    """Some layers are frozen by name, and another one, which an optimizer holds, runs among them where no gradients are kept."""
    computation = computation_of(program)
    freezes = list(_freezes(computation))
    frozen = {id(one) for each in freezes for one in contents(each.network, computation)}
    held = {id(part) for one in optimizers(computation) for network in modules(one) for part in contents(network, computation)} if freezes else set()
    asked: dict[int, list[Value]] = {}
    for _, loss in backwards(computation) if held else ():
        for one in origins(loss):
            if one.op == "run" and one.args and id(module(one.args[0])) in held - frozen and has_parameters(module(one.args[0])):
                asked.setdefault(id(module(one.args[0])), []).append(one)
    for found in asked.values():
        if all(one.where.no_grad for one in found) and not any(one.where.apart for one in found):
            yield Remark(found[0].node, f"{short(found[0].node)} runs without gradients in the training, and its parameters are not among those that {short(freezes[0].value.node)} (line {freezes[0].value.line}) freezes: the optimizer holds them, and they keep their first values")
            return


def _freezes(computation: Computation) -> Iterator[Freeze]:
    for value in computation.of("set_attribute", "requires_grad_"):
        if value.op == "set_attribute" and value.data != "requires_grad":
            continue
        given = value.argument("requires_grad", 1)
        network = _network(value.args[0])
        words = _words(value, given)
        if network is not None and words is not None:
            yield Freeze(value, network, *words)


def _network(held: Value) -> Value | None:
    """The network of which a value is each parameter, or that it is."""
    for _ in range(5):
        found = module(held)
        if isinstance(found, Instance) or found.op == "torch.nn.Sequential" or found.op.startswith("torchvision.models."):
            return found
        if held.op not in ("part", "element", "parameters", "named_parameters", "modules") or not held.args:
            return None
        held = held.args[0]
    return None


def _words(value: Value, given: Value | None) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The words in the names of parameters that are not frozen, and those in the names of all that are; None where nothing is
    known to be."""
    kept: list[Any] = [constant(given.args[0 if given.op == "in" else -1])] if given is not None and given.op in ("in", "startswith") and given.args else []
    only: list[Any] = []
    if not kept and constant(given) is not False:
        return None
    for test, holds in value.where.under:
        inner, holds = (test.args[0], not holds) if test.op == "not" and test.args else (test, holds)
        if inner.op not in ("in", "not_in", "startswith") or not inner.args:
            return None
        (kept if holds is (inner.op == "not_in") else only).append(constant(inner.args[0 if inner.op != "startswith" else -1]))
    return (tuple(kept), tuple(only)) if all(isinstance(word, str) for word in (*kept, *only)) else None


def _thaws(computation: Computation, freeze: Freeze, name: str, layer: Value) -> bool:
    """Whether a layer is asked for a gradient again afterwards, or may be."""
    for value in computation.of("set_attribute", "requires_grad_"):
        if value.number <= freeze.value.number or (value.op == "set_attribute" and value.data != "requires_grad"):
            continue
        if constant(value.argument("requires_grad", 1)) is not False and _may_be_of(computation, value, freeze.network, name, layer):
            return True
    return False


def _may_be_of(computation: Computation, thaw: Value, network: Value, name: str, layer: Value) -> bool:
    """Whether what asks for a gradient may be a layer of a network."""
    for test, holds in thaw.where.under:
        word = constant(test.args[0]) if test.op == "in" and holds and len(test.args) == 2 else None
        if isinstance(word, str) and word not in f"{name}.weight" and word not in f"{name}.bias":
            return False
    held = thaw.args[0]
    for _ in range(6):
        found = module(held)
        part = found.args[0] if len(found.args) == 1 and found.op.isidentifier() and found.args[0] is network and found.op not in ("parameters", "named_parameters", "modules", "children") else None
        if part is not None:
            return found.op == name.partition(".")[0]
        if isinstance(found, Instance) or found.op.startswith("torch.nn."):
            return found is network or any(one is layer for one in contents(found, computation))
        if held.op not in ("part", "element", "parameters", "named_parameters", "list", "reversed") or not held.args:
            return True
        held = held.args[0]
    return True


def _is_pretrained(network: Value) -> bool:
    """Whether a network of a library comes with weights that it has learned."""
    given = network.named.get("weights") or network.named.get("pretrained") or (network.args[0] if network.args else None)
    return network.op.startswith("torchvision.models.") and given is not None and not is_none(given) and constant(given) is not False


def _replaced(computation: Computation, network: Value) -> Iterator[tuple[str, Value]]:
    """What a program has put in the place of layers of a network of a library, each with its name."""
    for one in computation.users(network):
        if one.op == "set_attribute" and len(one.args) == 2 and one.args[0] is network:
            yield str(one.data), one.args[1]
        elif len(one.args) == 1 and one.op.isidentifier():
            yield from ((f"{one.op}.{constant(each.args[1])}", each.args[2]) for each in computation.users(one) if each.op == "set_item" and len(each.args) == 3 and each.args[0] is one)


def _layers(computation: Computation, network: Value, before: str = "", depth: int = 4) -> Iterator[tuple[str, Value]]:
    """The layers of a network and of the networks in it, each with its name."""
    inner = list(network.attributes.items()) if isinstance(network, Instance) else [(str(place), one) for place, one in enumerate(network.args)]
    if network.op.startswith("torchvision.models."):
        inner = list(_replaced(computation, network))
    if network.op == "torch.nn.ModuleList":
        inner += [(f"{len(inner)}", one.args[1]) for one in computation.users(network) if one.op == "append" and len(one.args) == 2]
    for name, one in inner:
        if (isinstance(one, Instance) or one.op in ("torch.nn.Sequential", "torch.nn.ModuleList")) and depth:
            yield from _layers(computation, one, f"{before}{name}.", depth - 1)
        elif constant(one.argument("requires_grad", 1 if one.op == "torch.nn.Parameter" else None)) is False:
            continue
        elif one.op in _LEARNS or (one.op == "torch.nn.Parameter" and any(each.op in _DRAWN for each in origins(one))):
            yield f"{before}{name}", one


def _is_given(computation: Computation, layer: Value) -> bool:
    """Whether all weights of a layer were put there: from a file, another layer, or numbers that are computed."""
    waiting = [layer]
    for _ in range(40):
        if not waiting:
            return False
        at = waiting.pop()
        for user in computation.users(at):
            if user.op in ("weight", "bias", "data"):
                waiting.append(user)
            elif user.op in _WRITES or (user.op == "set_attribute" and user.args[0] is not layer and user.args[-1].op not in ("normal", "uniform") and user.data in ("weight", "data")) or (user.op == "set_item" and user.args[0] is at and not (user.args[1].op == "slice" and is_none(user.args[1].args[0]))):
                return True
    return False
