"""Weights of networks under other names: what is a copy of them, and what is not; what they are called in a state dict. Pure;
standard library only."""

from __future__ import annotations

import ast

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, constant, same
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.updates import plain

_VIEWS = frozenset({
    "detach", "data", "items", "values", "element", "list", "tuple", "dict", "either", "dict_of", "builtins.dict", "builtins.list", "OrderedDict",
    "collections.OrderedDict", "builtins.sorted",
})
"""Operations whose result holds the same weights."""
_TAKES = ("state_dict", "parameters", "named_parameters")
_WITH_STATISTICS = ("resnet", "resnext", "densenet", "mobilenet", "efficientnet", "regnet", "shufflenet", "mnasnet", "googlenet", "inception", "_bn")
_WITHOUT_PARAMETERS = ("Loss", "ReLU", "Dropout", "Sigmoid", "Tanh", "Softmax", "GELU", "SiLU", "Identity", "Flatten", "Pool1d", "Pool2d", "Pool3d", "Upsample", "Similarity", "LeakyReLU", "ELU")
_WRAPPERS = {"torch.optim.swa_utils.AveragedModel": {"module", "n_averaged"}, "torch.nn.DataParallel": {"module"}, "torch.nn.parallel.DistributedDataParallel": {"module"}}


def shared(value: Value, depth: int = 12) -> list[Value]:
    """The calls that gave the weights that a value holds, without a copy in between."""
    if depth == 0:
        return []
    if value.op in _TAKES and value.args:
        return [value]
    inner: list[Value] = []
    if isinstance(value, (Many, Table)):
        inner = list(value.made_of())[:8]
    elif value.op == "copy" and value.args and value.args[0].op == "state_dict":
        inner = [value.args[0]]  # another dict of the same tensors
    elif value.op in _VIEWS or (value.op == "part" and value.args[1].op != "slice"):
        inner = list(value.args) if value.op in ("either", "dict_of") else list(value.args[:1])
    return [one for part in inner for one in shared(part, depth - 1)]


def weights_of(value: Value) -> list[Value]:
    """The networks whose weights a value holds without a copy."""
    return [plain(one.args[0]) for one in shared(value)]


def in_place(value: Value) -> bool:
    """Whether an operation changes what it is done on."""
    return isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) and value.node.func.attr.endswith("_") and not value.node.func.attr.endswith("__")


def bits_of(value: Value) -> str | None:
    """The type of 16 bit that a value is given."""
    if value.op != "to":
        return {"half": "float16", "bfloat16": "bfloat16"}.get(value.op)
    told = [str(one.data).removeprefix("torch.") for one in (*value.args[1:], *value.named.values())]
    return next(("float16" if one == "half" else one for one in told if one in ("float16", "half", "bfloat16")), None)


def has_statistics(module: Value) -> bool:
    """Whether a network has batch normalization with running statistics."""
    for one in layers_of(plain(module)):
        word = one.op.rpartition(".")[2]
        if "BatchNorm" in word or (one.op.startswith("torchvision.models.") and any(name in word for name in _WITH_STATISTICS)):
            return True
    return False


def has_parameters(value: Value) -> bool:
    """Whether a value is a layer of torch with parameters of its own."""
    word = value.op.rpartition(".")[2]
    if value.op in ("torch.nn.Sequential", "torch.nn.ModuleList"):
        return any(has_parameters(one) for one in value.args)
    if any(constant(value.named[name]) is False for name in ("affine", "elementwise_affine") if name in value.named):
        return False
    return value.op.startswith("torch.nn.") and word[:1].isupper() and not word.endswith(_WITHOUT_PARAMETERS) and bool(value.args or value.named)


# Names in a state dict ------------------------------------------------------------------


def first_names(computation: Computation, value: Value, depth: int = 8) -> set[str] | None:
    """The first words of the names in a state dict, also after it was saved and loaded; None where they are not known."""
    if depth == 0:
        return None
    if value.op == "state_dict" and value.args:
        return names_of_module(value.args[0])
    if value.op == "part" and len(value.args) == 2:
        saved = _saved_as(computation, value.args[0])
        entry = saved.entries.get(constant(value.args[1])) if isinstance(saved, Table) else None
        return None if entry is None else first_names(computation, entry, depth - 1)
    if value.op == "load":
        saved = _saved_as(computation, value)
        return None if saved is None else first_names(computation, saved, depth - 1)
    if isinstance(value, Table) and not value.entries and len(value.others) == 1:
        whole = dict_of(value.others[0][0])
        return None if whole is None else first_names(computation, whole, depth - 1)
    return None


def dict_of(key: Value) -> Value | None:
    """The dict that a loop goes over, of one of its keys: `key` of `for key, value in d.items()`, or of `for key in d`."""
    if key.op == "part" and key.args[0].op == "element" and key.args[0].args and constant(key.args[1]) == 0:
        pairs = key.args[0].args[0]
        return pairs.args[0] if pairs.op == "items" and pairs.args else None
    of = key.args[0] if key.op == "element" and key.args else None
    return of.args[0] if of is not None and of.op == "keys" and of.args else of


def names_of_module(module: Value) -> set[str] | None:
    """The first words of the names of a module's weights; None where they are not known."""
    module = plain(module)
    if module.op in _WRAPPERS:
        return set(_WRAPPERS[module.op])
    if not isinstance(module, Instance) or module.of is None:
        return None
    return {name for name, value in module.attributes.items() if _has_weights(value)} or None


def _has_weights(value: Value) -> bool:
    if isinstance(value, Instance):
        return value.of is not None and any(_has_weights(one) for one in value.attributes.values())
    return value.op.startswith(("torch.nn.", "torchvision.models.")) or value.op in ("Parameter", "weight_norm", "spectral_norm")


def _saved_as(computation: Computation, load: Value) -> Value | None:
    """What was saved to where something is loaded from; None where there is more than one, or none."""
    if load.op != "load" or not load.args:
        return None
    found = [one.args[0] for one in computation.of("save") if len(one.args) > 1 and (one.args[1] is load.args[0] or same(one.args[1], load.args[0])) and one.number < load.number]
    return found[0] if len({one.node for one in found}) == 1 else None
