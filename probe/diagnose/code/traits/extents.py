"""How many axes a value has, and how long its last one is, where that follows from how it is computed; None where
it does not. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from probe.diagnose.code.computed.value import Many, Value, alternatives, constant, is_none, number, origins
from probe.diagnose.code.traits.basic import LOSSES

_ALIKE = frozenset({
    "relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "softplus", "dropout", "softmax", "log_softmax", "exp", "log", "sqrt", "abs",
    "neg", "pow", "square", "clamp", "normalize", "cumsum", "round", "floor", "log1p", "expm1", "sin", "cos", "logsigmoid", "sign", "detach", "clone",
    "to", "float", "double", "half", "long", "int", "cpu", "cuda", "numpy", "from_numpy", "tensor", "as_tensor", "array", "asarray", "astype", "type",
    "values", "to_numpy", "contiguous", "transpose", "permute", "flip", "roll", "fillna", "zeros_like", "ones_like", "rand_like", "randn_like", "bool",
    "full_like", "masked_fill", "nan_to_num", "requires_grad_", "deepcopy", "copy", "layer_norm", "batch_norm", "identity", "invert", "data", "sort",
    "mish", "hardtanh", "pin_memory", "FloatTensor", "LongTensor", "logical_not", "where_", "set_item", "mT", "dropna", "reset_index", "bfloat16", "squeeze_",
})
"""Operations whose result is shaped as what they are done on."""
_PAIRS = frozenset({"add", "sub", "mul", "div", "maximum", "minimum", "lt", "gt", "le", "ge", "eq", "ne", "and", "or", "mod", "floordiv", "lerp", "where"})
_REDUCED = frozenset({"mean", "sum", "max", "min", "std", "var", "argmax", "argmin", "prod", "norm", "logsumexp", "median", "all", "any", "amax", "amin", "quantile"})
_LAYERS = {"Conv1d": 3, "ConvTranspose1d": 3, "Conv2d": 4, "ConvTranspose2d": 4, "Conv3d": 5}
_KEPT_BY_LAYERS = ("Linear", "BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "Pool", "LazyLinear", "PReLU", "TransformerEncoder", "RMSNorm")
_DRAWS = {
    "normal": 2, "uniform": 2, "random": 0, "integers": 2, "standard_normal": 0, "choice": 1, "poisson": 1, "exponential": 1, "beta": 2, "gamma": 2,
    "binomial": 2, "lognormal": 2, "laplace": 2, "randint": 2,
}
"""Draws of numpy, and the place of the size among their arguments."""
_GENERATORS = ("default_rng", "RandomState", "numpy.random.RandomState", "numpy.random.Generator")
_FRAMES = ("pandas.read_csv", "pandas.read_parquet", "pandas.DataFrame", "pandas.read_excel", "pandas.concat", "pandas.read_json", "pandas.read_feather")


def rank(value: Value, depth: int = 40, assumed: Mapping[int, int] | None = None) -> int | None:
    """The number of axes of a tensor, an array or a number. `assumed`: those of values, by id, where they do not follow."""
    if depth == 0:
        return None
    op, args = value.op, value.args
    inner: Callable[[Value], int | None] = lambda one: rank(one, depth - 1, assumed)  # noqa: E731
    if assumed is not None and id(value) in assumed:
        return assumed[id(value)]
    if op == "@library":
        return 0 if str(value.data).endswith((".pi", ".e", ".inf", ".nan")) else None
    if op == "@constant":
        return 0 if isinstance(value.data, (int, float)) else None
    if op == "either":
        found = {inner(one) for one in alternatives(value)}
        return found.pop() if len(found) == 1 else None
    if isinstance(value, Many):
        below = inner(value.parts[0]) if value.parts else None
        return None if below is None else below + 1
    if op in LOSSES:
        return 0 if constant(value.named.get("reduction")) in (None, "mean", "sum") else inner(args[0])
    if op in ("item", "len", "index", "sum_of") or not args:
        return 0 if op in ("item", "len", "index", "random") else None
    if op in ("float", "int") and isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Name):
        return 0  # of Python, which takes one number
    if op in _ALIKE:
        return inner(args[0])
    if op == "matmul":
        known = [inner(one) for one in args[:2]]
        return None if None in known else _more(max(one for one in known if one is not None), -1 if 1 in known else 0)
    if op in _PAIRS:
        known = [inner(one) for one in (args if op == "where" else args[-2:])]
        return None if None in known else max(one for one in known if one is not None)
    if op in _REDUCED:
        return _reduced(value, inner)
    if op == "run":
        return _run(value, inner)
    if op == "rows":
        return _more(inner(args[0]), 1)
    if op == "part":
        return _part(value, inner)
    if op in ("unsqueeze", "one_hot", "stack"):
        return _more(inner(args[0]), 0 if op == "stack" and isinstance(args[0], Many) else 1)
    if op == "cat":
        return inner(args[0].parts[0]) if isinstance(args[0], Many) and args[0].parts else None
    if op == "gather":
        return inner(args[-1])
    if op in ("split", "chunk", "tensor_split", "array_split"):
        return _more(inner(args[0]), 1)
    if op == "log_prob" and len(args) == 2 and args[0].op.startswith("torch.distributions.") and args[0].op.endswith((".Normal", ".Laplace", ".Beta")):
        known = [inner(one) for one in (*args[0].args[:1], args[1])]
        return None if None in known else max(one for one in known if one is not None)
    if op == "squeeze":
        whole = inner(args[0])
        at = number(value.argument("dim", 1))
        return whole - 1 if whole is not None and at in (-1, whole - 1) and last(args[0], depth - 1) == 1 else None
    if op in ("view", "reshape", "randn", "rand", "zeros", "ones", "empty", "full"):
        sizes = _sizes(value, 1 if op in ("view", "reshape") else 0)
        return None if sizes is None else len(sizes)
    if op in ("flatten", "ravel"):
        at = number(value.argument("start_dim", 1))
        return 1 if at is None and len(args) == 1 and not value.named else 2 if at == 1 and len(args) == 2 else None
    if op in ("arange", "linspace", "randperm"):
        return 1
    if op == "permutation":
        return max(inner(args[-1]) or 0, 1) if inner(args[-1]) is not None else None
    if op in ("view_as", "expand_as"):
        return inner(args[1])
    if (size := _drawn_size(value)) is not None:
        return len(size)
    if op in _DRAWS and args[0].op in _GENERATORS and not value.named and len(args) <= _DRAWS[op] + 1:
        return 0 if op != "choice" else None
    if op == "randint" and len(args) > 1:
        return len(args[-1].parts) if isinstance(args[-1], Many) else 1 if len(args) > 2 else None  # numpy's size
    if is_frame(value) or (op in ("transform", "fit_transform") and any(one.op.endswith("Scaler") for one in (args[0], *args[0].args))):
        return 2
    if op == "pop" and is_frame(args[0]):
        return 1
    if op in ("element",):
        return _more(inner(args[0]), -1)
    return None


def last(value: Value, depth: int = 40) -> int | None:
    """The length of a value's last axis."""
    if depth == 0:
        return None
    op, args = value.op, value.args
    inner: Callable[[Value], int | None] = lambda one: last(one, depth - 1)  # noqa: E731
    if op == "either":
        found = {inner(one) for one in alternatives(value)}
        return found.pop() if len(found) == 1 else None
    if op == "run" and args[0].op == "torch.nn.Linear":
        size = number(args[0].argument("out_features", 1))
        return None if size is None else int(size)
    if op == "run" and args[0].op == "torch.nn.Embedding":
        size = number(args[0].argument("embedding_dim", 1))
        return None if size is None else int(size)
    if op == "run" and any(word in args[0].op for word in ("BatchNorm1d", "LayerNorm", "Identity")) and len(args) > 1:
        return inner(args[1])
    if isinstance(value, Many):
        return inner(value.parts[0]) if value.parts and at_least(value.parts[0], depth - 1) > 0 else None
    if (drawn := _drawn_size(value) or (_sizes(value, 0) if op in ("zeros", "ones", "empty", "rand", "randn") else None)) is not None:
        size = number(drawn[-1]) if drawn else None
        return None if size is None else int(size)
    if not args or op in ("transpose", "permute", "mT"):
        return None
    if op == "stack":
        return inner(args[0])
    if op in _ALIKE or op == "rows":
        return inner(args[0]) if op != "rows" or at_least(args[0], depth - 1) > 0 else None
    if op in _PAIRS:
        if op == "where":
            return inner(args[0]) if [rank(one, depth - 1) for one in args[1:]] == [0, 0] else None
        known = [inner(one) for one in args[-2:]]
        ranks = [rank(one, depth - 1) for one in args[-2:]]
        if 0 in ranks:
            return known[1 - ranks.index(0)]
        if None in known and (longer := next((one for one in known if one is not None and one > 1), None)) is not None:
            return longer  # the other one is as long, or 1
        return None if None in known else max(one for one in known if one is not None)
    if op == "unsqueeze":
        whole, at = rank(args[0], depth - 1), number(value.argument("dim", 1))
        return 1 if whole is not None and at in (-1, whole) else None
    if op in ("view", "reshape"):
        sizes = _sizes(value, 1)
        size = number(sizes[-1]) if sizes else None
        return int(size) if size is not None and size > 0 else None
    if op in _REDUCED and constant(value.named.get("keepdim")) is True:
        return 1 if number(value.argument("dim", 1)) in (-1, (rank(args[0], depth - 1) or 0) - 1) else None
    if op == "gather":
        return inner(args[-1])
    if op == "part" and args[0].op == "chunk" and len(args[0].args) > 1 and isinstance(constant(args[1]), int):
        size, by, at = inner(args[0].args[0]), number(args[0].args[1]), number(args[0].argument("dim", 2))
        whole = rank(args[0].args[0], depth - 1)
        if at not in (-1, None if whole is None else whole - 1):
            return size if at is not None and whole is not None else None
        return int(size // by) if size is not None and by and size % by == 0 else None
    if op == "part" and (isinstance(constant(args[1]), int) or args[1].op in ("index", "slice") or rank(args[1], depth - 1) == 1) and (at_least(args[0], depth - 1)) > 1:
        return inner(args[0])
    return None


def at_least(value: Value, depth: int = 40) -> int:
    """How many axes a value has at least."""
    if depth == 0:
        return 0
    known = rank(value, depth)
    if known is not None:
        return known
    if isinstance(value, Many):
        return 1 + (at_least(value.parts[0], depth - 1) if value.parts else 0)
    if value.op in _PAIRS and len(value.args) == 2:
        return max(at_least(one, depth - 1) for one in value.args)
    if value.op in _ALIKE and value.args:
        return at_least(value.args[0], depth - 1)
    if value.op in ("rows", "stack") and value.args:
        return at_least(value.args[0], depth - 1) + int(value.op == "rows" or not isinstance(value.args[0], Many))
    if value.op == "part" and value.args[1].op == "index":
        return max(0, at_least(value.args[0], depth - 1) - 1)
    return 0


def grows_with(value: Value, batch: Value) -> bool:
    """Whether a value is made with the number of samples in a batch, as what numbers the rows of all of them is."""
    for one in origins(value):
        at = one.args[0] if one.args else one
        shaped = one.op == "part" and at.op in ("shape", "size") and len(at.args) == 1
        first = constant(one.args[1]) == 0 if (shaped or one.op == "size") and len(one.args) == 2 else one.op == "len"
        of = at.args[0] if shaped else at
        if first and (of is batch or rank(of) == 3):
            return True
    return False


def view_sizes(value: Value) -> list[Value]:
    """The sizes that a view or reshape is given, one by one or as a tuple."""
    return [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else _spread(given) if given.op == "star" else [given])]


def _spread(given: Value) -> list[Value]:
    """The sizes of `*x.shape[:-1]`, where it is known how many there are."""
    shape = given.args[0]
    cut = shape.args[1] if shape.op == "part" and len(shape.args) == 2 and shape.args[1].op == "slice" else None
    if cut is None or shape.args[0].op not in ("shape", "size") or len(shape.args[0].args) != 1:
        return [given]
    whole = rank(shape.args[0].args[0])
    ends = [None if is_none(one) else number(one) for one in cut.args]
    if whole is None or any(number(one) is None and not is_none(one) for one in cut.args):
        return [given]
    places = range(whole)[slice(*(None if one is None else int(one) for one in ends))]
    return [Value("part", (shape.args[0], Value("@constant", node=given.node, where=given.where, data=place)), node=given.node, where=given.where) for place in places]


def _drawn_size(value: Value) -> list[Value] | None:
    """The sizes that a generator of numpy is told to draw: by name, or after the bounds."""
    given = value.named.get("size")
    if value.op not in _DRAWS or (given is None and value.named):
        return None
    if given is None:
        args = value.args[1:] if value.args and value.args[0].op in _GENERATORS else value.args if value.args and number(value.args[0]) is not None else ()
        given = args[_DRAWS[value.op]] if len(args) > _DRAWS[value.op] else None
    if isinstance(given, Many):
        return None if given.grown else given.parts
    return None if given is None or is_none(given) else [given]


def _more(known: int | None, by: int) -> int | None:
    return None if known is None or known + by < 0 else known + by


def _reduced(value: Value, inner: Callable[[Value], int | None]) -> int | None:
    """The axes that a sum, mean or maximum leaves."""
    over = value.argument("dim", 1)
    if constant(value.named.get("keepdim")) is True:
        return inner(value.args[0])
    if over is None:
        return 0
    if isinstance(over, Many):
        return _more(inner(value.args[0]), -len(over.parts))
    return _more(inner(value.args[0]), -1) if isinstance(constant(over), int) else None


def _run(value: Value, inner: Callable[[Value], int | None]) -> int | None:
    """The axes of what a layer gives."""
    name = value.args[0].op.rpartition(".")[2]
    if not value.args[0].op.startswith("torch.nn.") or len(value.args) < 2:
        return None
    if name in _LAYERS:
        return _LAYERS[name]
    if name in ("Embedding", "EmbeddingBag"):
        return _more(inner(value.args[1]), 1 if name == "Embedding" else 0)
    return inner(value.args[1]) if any(word in name for word in _KEPT_BY_LAYERS) else None


def _part(value: Value, inner: Callable[[Value], int | None]) -> int | None:
    """The axes that an index leaves."""
    on, index = value.args
    if on.op in ("max", "min", "sort", "topk", "median") and (len(on.args) > 1 or "dim" in on.named):
        return _more(inner(on.args[0]), 0 if on.op in ("sort", "topk") or constant(on.named.get("keepdim")) is True else -1)
    if on.op == "run" and on.args[0].op in ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"):
        return 3 if constant(index) == 0 else None
    if on.op.endswith("train_test_split") and isinstance(place := constant(index), int) and place < 2 * len(on.args):
        return inner(on.args[place // 2])
    if is_frame(on):
        return 1 if isinstance(constant(index), str) else 2 if isinstance(index, Many) else None
    whole = inner(on)
    parts = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
    for one in parts:
        if one.op == "slice" or constant(one) is Ellipsis:
            continue
        if one.op == "@constant" and one.data is None:
            whole = _more(whole, 1)
        elif isinstance(constant(one), int) or one.op == "index":
            whole = _more(whole, -1)
        elif len(parts) == 1 and (by := inner(one)) is not None and one.op not in _PAIRS:
            whole = _more(whole, by - 1)
        else:
            return None
    return whole


def is_frame(value: Value) -> bool:
    """Whether a value is a pandas frame."""
    while value.op in ("dropna", "fillna", "reset_index", "sample", "sort_values", "copy", "drop", "head", "query") and value.args:
        value = value.args[0]
    if value.op == "part" and value.args[0].op in ("iloc", "loc"):
        return is_frame(value.args[0].args[0])
    return value.op in _FRAMES


def _sizes(value: Value, start: int) -> list[Value] | None:
    """The sizes that view, reshape, zeros and the like are given."""
    given = [one for one in value.args[start:] if one.op != "@library" and one.op not in _GENERATORS]  # a type: `np.zeros(size, np.float32)`
    if len(given) == 1 and isinstance(given[0], Many):
        return given[0].parts
    if not given or any(one.op in ("star", "shape", "size", "either", "@input") for one in given):
        return list(given) if given and all(one.op != "star" for one in given) and len(given) > 1 else None
    return list(given)


# Which axis is the batch ----------------------------------------------------------------

RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
_BATCH_FIRST = {
    "torch.nn.LSTM": 4, "torch.nn.GRU": 4, "torch.nn.RNN": 5, "torch.nn.TransformerEncoderLayer": 6, "torch.nn.TransformerDecoderLayer": 6,
    "torch.nn.MultiheadAttention": 8, "torch.nn.Transformer": 10, "torch.nn.utils.rnn.pad_sequence": 1,
    "torch.nn.utils.rnn.pad_packed_sequence": 1, "torch.nn.utils.rnn.pack_padded_sequence": 2,
}
"""The place of batch_first among the arguments."""


def batch_first(layer: Value) -> bool | None:
    """Whether a layer that reads sequences, or a function that pads or packs them, has the batch in front; None where that is
    not known."""
    while layer.op in ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder", "element", "to") and layer.args:
        layer = layer.args[0]
    place = _BATCH_FIRST.get(layer.op)
    if place is None or "**" in layer.named or any(one.op == "star" for one in layer.args):
        return None
    given = layer.argument("batch_first", place)
    known = constant(given)
    return False if given is None else known if isinstance(known, bool) else None
