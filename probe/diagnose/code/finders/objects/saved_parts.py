"""Weights that are trained beside an adapter, and not saved with it. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import Function, is_name, last_word, short
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.updates import is_optimizer, modules, parameters, plain
from probe.diagnose.code.traits.weights import dict_of, has_parameters

_TAKES = ("state_dict", "named_parameters", "parameters")
_SAVES = ("save", "save_file", "save_model", "dump")
_LISTS = (ast.ListComp, ast.GeneratorExp, ast.SetComp)


def trained_and_not_saved(program: Program) -> Iterator[Remark]:
    """Only the layers that adapters stand around are frozen, an optimizer trains all that is not, and of the weights those
    are saved that have the adapters' names."""
    if any("peft" in source.text or "mark_only_lora" in source.text for source in program.sources):
        return
    computation = computation_of(program)
    saves = [one for one in computation.values if one.op.rpartition(".")[2] in _SAVES and one.args]
    for save in saves:
        for picked in _picked(save):
            network, words = _network_of(picked), _words(picked)
            optimizer = _optimizer(computation, network, save) if network is not None and words else None
            if network is None or optimizer is None or not _is_adapter(computation, words):
                continue
            frozen = _frozen(computation, network)
            later = [one for one in saves if one.number > optimizer.number]
            others = [one for each in later for one in _picked(each)]
            whole = [part for each in later if not any(each.args[0] is one for one in others) for part in origins(each.args[0], without=others)]
            kept = {id(plain(one.args[0])) for one in whole if one.op in _TAKES and one.args}
            if frozen is None or id(network) in kept or any(plain(one.args[0]) is network for one in later) or any(one.op == "save_pretrained" for one in computation.users(network)):
                continue
            words = [word for one in others for word in _words(one)]
            found = next(_left(network, "", frozen[0] | kept, frozen[1], words), None)
            if found is not None and all(map(_words, others)):
                path, layer = found
                named = " or ".join(map(repr, dict.fromkeys(words)))
                yield Remark(picked.node, f"{short(picked.node)} keeps the weights with {named} in their names, and {short(optimizer.node)} (line {optimizer.line}) trains others too: {path} ({short(layer.node)}, line {layer.line}) is frozen nowhere")
                return


# What is saved ------------------------------------------------------------------------


def _picked(save: Value) -> Iterator[Table]:
    """The weights in what is saved that were picked by their names, out of all of a network."""
    for one in origins(save.args[0]):
        if isinstance(one, Table) and len(one.others) == 1 and not one.entries and isinstance(one.node, ast.DictComp) and _network_of(one) is not None and any(each.ifs for each in one.node.generators):
            yield one


def _network_of(picked: Table) -> Value | None:
    """The network of the program whose weights a loop goes over."""
    key = picked.others[0][0]
    whole = dict_of(key)
    if whole is None and key.op == "part" and key.args[0].op == "element":
        whole = key.args[0].args[0]
    if whole is None or whole.op not in _TAKES or not whole.args:
        return None
    network = plain(whole.args[0])
    return network if isinstance(network, Instance) else None


def _words(picked: Table) -> list[str]:
    """The texts one of which a name has to have; none where it is asked for something else too."""
    tests = [one for each in picked.node.generators for one in each.ifs] if isinstance(picked.node, ast.DictComp) else []
    nodes = [one for test in tests for one in ast.walk(test)]
    if any(isinstance(one, (ast.Not, ast.NotIn, ast.NotEq, ast.And)) or (isinstance(one, ast.Attribute) and one.attr == "requires_grad") for one in nodes):
        return []
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str) and re.search(r"\w\w", one.value)] if len(tests) == 1 else []


def _is_adapter(computation: Computation, words: list[str]) -> bool:
    """Whether names with these words are of what stands around a layer that was given, or is a linear layer with more."""
    parts = [part for word in words for part in re.findall(r"[A-Za-z]\w+", word)]
    for one in computation.values:
        if not isinstance(one, Instance) or one.of is None:
            continue
        own = [name for name, value in one.attributes.items() if (value.op.startswith("torch.nn.") or isinstance(value, Instance)) and any(part in name for part in parts)]
        given = any(isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and _is_layer(one.attributes.get(getattr(node.targets[0], "attr", ""))) for node in ast.walk(one.of))
        if own and (given or any(last_word(base) == "Linear" for base in one.of.bases)):
            return True
    return False


def _is_layer(value: Value | None) -> bool:
    return value is not None and (value.op.startswith("torch.nn.") or value.op in ("either", "part", "element", "getattr", "@input"))


# What is trained ------------------------------------------------------------------------


def _optimizer(computation: Computation, network: Value, save: Value) -> Value | None:
    """The last optimizer before a save that holds all of a network's parameters, but those that need no gradient."""
    found = [one for one in computation.values if is_optimizer(one) and one.number < save.number and any(each is network for each in modules(one))]
    given = parameters(found[-1]) if found else None
    for one in origins(given, _TAKES) if given is not None else ():
        tests = [test for each in one.node.generators for test in each.ifs] if isinstance(one.node, _LISTS) else []
        if any(isinstance(each, (ast.Compare, ast.Constant)) or is_name(each, "isinstance") for test in tests for each in ast.walk(test)):
            return None
    return found[-1] if found else None


def _frozen(computation: Computation, network: Value) -> tuple[set[int], set[str]] | None:
    """The layers that are frozen one by one, and the classes whose layers are; None where all of a network may be, or none
    of its linear layers is."""
    layers, classes = set[int](), set[str]()
    inside = {id(one) for one in layers_of(network)}
    for one in computation.values:
        asked = one.argument("requires_grad", 1) if one.op == "requires_grad_" else None
        turned = one.args[1] if one.op == "set_attribute" and one.data == "requires_grad" else asked
        if turned is None or constant(turned) is True:
            continue
        if constant(turned) is not False:
            return None
        of = plain(one.args[0])
        taken = next((each for each in origins(of) if each.op in (*_TAKES, "weight", "bias") and each.args), None)
        of = plain(taken.args[0]) if taken is not None else of
        function = one.where.functions[-1] if one.where.functions else None
        tests = [test for test, holds in one.where.under if holds and test.op.endswith("isinstance") and len(test.args) == 2]
        if of is network:
            return None
        if tests:
            classes |= {last_word(each) for test in tests if isinstance(test.node, ast.Call) for each in ast.walk(test.node.args[1]) if isinstance(each, (ast.Name, ast.Attribute))}
        elif isinstance(function, Function) and function.name == "__init__" and computation.program.class_of(function) is not None:
            classes.add("Linear")
        elif isinstance(of, Instance) or of.op.startswith("torch.nn."):
            layers.add(id(of))
            if id(of) not in inside and any(id(each) in inside for each in layers_of(of)):
                return None  # of a network around this one
        else:
            return None
    return (layers, classes) if "Linear" in classes else None


def _left(value: Value, path: str, apart: set[int], classes: set[str], words: list[str], depth: int = 8) -> Iterator[tuple[str, Value]]:
    """The layers of a network, by their names, that are no linear ones, are not frozen, and whose names have none of the
    words."""
    word = value.op.rpartition(".")[2]
    if depth == 0 or id(value) in apart or any(one in f".{path}." for one in words):
        return
    if isinstance(value, Instance):
        if value.of is None or value.of.name in classes:
            return
        for name, part in value.attributes.items():
            yield from _left(part, f"{path}.{name}" if path else name, apart, classes, words, depth - 1)
    elif isinstance(value, Many) or word in ("Sequential", "ModuleList", "ModuleDict"):
        for place, part in enumerate(value.made_of()):
            yield from _left(part, f"{path}.{place}", apart, classes, words, depth - 1)
    elif value.op == "torch.nn.Parameter":
        if constant(value.argument("requires_grad", 1)) is not False:
            yield path, value
    elif value.op == f"torch.nn.{word}" and word not in classes and word not in ("Linear", "Bilinear") and has_parameters(value):
        yield path, value
