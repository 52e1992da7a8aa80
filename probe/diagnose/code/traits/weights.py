"""Weights of networks under other names: what is a copy of them, and what is not. Pure; standard library only."""

from __future__ import annotations

import ast

from probe.diagnose.code.computed.value import Many, Table, Value
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
    return value.op.startswith("torch.nn.") and word[:1].isupper() and not word.endswith(_WITHOUT_PARAMETERS) and bool(value.args or value.named)
