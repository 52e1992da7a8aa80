"""The weights by which a sampler draws. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Instance,
    Many,
    Table,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, last_word, names_of, parameters, short

FINDERS = Finders()
_SAMPLER = "WeightedRandomSampler"
_SCALED = ("div", "mul", "pow", "sqrt", "reciprocal", "clamp", "clamp_min", "add", "log", "exp", "softmax", "neg", "maximum", "where")
_DRAWING = ("choice", "choices", "sample", "randint", "integers", "randrange")
_OF_NODES = re.compile(r"edge|adj|src|dst|neighbo|degree|token|word|item|node", re.I)
"""What is counted to draw nodes, words or items by how often they occur: there the numbers are those of what is drawn."""
_SPLIT = "torch.utils.data.random_split"


def weights_of_other_samples(program: Program) -> Iterator[Remark]:
    """A loader draws from a part of the data, chosen in random order, by weights of the whole in its own order."""
    for loader in computation_of(program).of("torch.utils.data.DataLoader"):
        sampler, part = loader.argument("sampler", 3), loader.argument("dataset", 0)
        weights = sampler.argument("weights", 0) if sampler is not None and sampler.op.endswith(_SAMPLER) else None
        chosen = None if part is None else _chosen(part)
        if weights is None or sampler is None or part is None or chosen is None:
            continue
        asked = list(origins(weights, stop=("len",)))
        looked_up = any(one.op == "part" and len(one.args) == 2 and one.args[1].op != "slice" for one in asked)
        if looked_up and not any(one is part or one is chosen for one in asked):
            yield Remark(sampler.node, f"{short(sampler.node)} takes the weights of the first samples of the whole ({short(weights.node)}, line {weights.line}), and {short(part.node)} (line {part.line}) holds others, in random order")
            return


def _chosen(part: Value) -> Value | None:
    """What a part of the data was chosen by at random: an order, or the split."""
    if part.op == "part" and part.args[0].op == _SPLIT:
        return part.args[0]
    if part.op == "torch.utils.data.Subset" and len(part.args) == 2:
        return next((one for one in origins(bare(part.args[1])) if one.op in ("randperm", "permutation")), None)
    return None


@FINDERS.add("weights-of-classes")
def _few_weights(program: Program) -> Iterator[Remark]:
    """A sampler draws as many samples as a data set has, by a list of weights that are written out, or made one for each number of a short range."""
    for sampler in computation_of(program).values:
        drawn = sampler.argument("num_samples", 1) if sampler.op.endswith(_SAMPLER) else None
        weights = sampler.argument("weights", 0) if drawn is not None and bare(drawn).op == "len" else None
        count = None if weights is None else _length(weights)
        if weights is not None and count is not None and 1 < count <= 200 and drawn is not None and not isinstance(bare(drawn).args[0], Many):
            yield Remark(sampler.node, f"{short(weights.node)} has {count:g} weights, as one for each class (line {weights.line}), and the sampler takes one for each sample: it draws the first few samples only")
            return


@FINDERS.add("weights-of-classes")
def _drawn_by_hand(program: Program) -> Iterator[Remark]:
    """A sampler of the program draws by the inverse of how often each class occurs, and gives the numbers of the classes as those
    of samples; or a batch is taken by such numbers from the labels that were counted."""
    computation = computation_of(program)
    for drawn in computation.of("multinomial", "choice", "choices", "random.choices"):
        weights = _weights_of_draw(drawn)
        found = None if weights is None else _counted_in(weights)
        if found is None or weights is None or any(_OF_NODES.search(name) for one in (weights, found[0]) for name in names_of(one.node)):
            continue
        counted, inverse = found
        said = f"{short(drawn.node)} draws by {short(weights.node)} (line {weights.line}), one weight for each class"
        whole = any(one.op == "len" and one.args and same(bare(one.args[0]), counted) for one in (*drawn.args, *drawn.named.values()))
        if (inverse or whole) and _is_given_by_a_sampler(program, computation, drawn):
            yield Remark(drawn.node, f"{said}, and gives what it draws as the numbers of samples: only the first few samples are ever trained on")
            return
        if any(bare(one.args[0]) is counted and _leads_to(one.args[1], drawn) for one in computation.of("part") if len(one.args) == 2):
            yield Remark(drawn.node, f"{said}, and rows of {short(counted.node)} are taken by the numbers that it draws: those of the first few samples only")
            return


def _weights_of_draw(drawn: Value) -> Value | None:
    """The weights by which numbers from 0 on are drawn."""
    if drawn.op == "multinomial":
        return drawn.args[0] if drawn.args else None
    weights = next((drawn.named[name] for name in ("p", "weights", "cum_weights") if name in drawn.named), None)
    numbers = [one for one in (*drawn.args[:2], *(drawn.named[name] for name in ("a", "population") if name in drawn.named)) if one.op in ("len", "range", "arange") or number(one) is not None]
    return weights if numbers else None


def _counted_in(value: Value, depth: int = 16, *, below: bool = False) -> tuple[Value, bool] | None:
    """What is counted, number by number, where each of a row of weights is made of one count; and whether the weights fall with it."""
    value = bare(value)
    if depth == 0:
        return None
    if value.op == "bincount" and value.args:
        return bare(value.args[0]), below
    if value.op == "part" and counts_each_class(value):
        return bare(value.args[0].args[0]), below
    if isinstance(value, Many):
        of = next((one for one in origins(value, stop=("collections.Counter", "bincount")) if one.op in ("collections.Counter", "bincount") and one.args), None)
        falls = below or any(one.op in ("div", "reciprocal") for one in value.parts)
        return (bare(of.args[0]), falls) if of is not None and is_by_class(value) else None
    for place, one in enumerate(value.args if value.op in _SCALED else ()):
        turned = (value.op == "div" and place == 1) or value.op in ("reciprocal", "neg") or (value.op == "pow" and (number(value.args[-1]) or 0) < 0)
        if (found := _counted_in(one, depth - 1, below=below != turned)) is not None:
            return found
    return None


def _is_given_by_a_sampler(program: Program, computation: Computation, drawn: Value) -> bool:
    """Whether what is drawn is what a sampler gives, as it is, to a loader."""
    function = next((one for one in reversed(drawn.where.functions) if getattr(one, "name", "") == "__iter__"), None)
    of = None if function is None else program.class_of(function)
    if of is None or function is None or any(map(_takes_one_of, program.functions.get("__getitem__", []))):
        return False
    given = [one for each in computation.values if each.op.startswith("torch.utils.data.") for one in (*each.args[2:], *each.named.values(), *(each.args[:1] if each.op.endswith("BatchSampler") else ()))]
    if not any(last_word(base).endswith("Sampler") for base in of.bases) and not any(isinstance(one, Instance) and one.of is of for one in given):
        return False
    results = [*computation.returned.get("__iter__", []), *(one for one in computation.of("list") if isinstance(one, Many) and one.grown and any(part.where.functions[-1:] == (function,) for part in one.parts))]
    return any(_leads_to(one, drawn) for one in results)


def _takes_one_of(function: Function) -> bool:
    """Whether a data set draws one of the samples that belong to the number that it is asked for, as for a class."""
    asked = {one.arg for one in parameters(function)[1:]}
    return any(isinstance(one, ast.Call) and last_word(one.func) in _DRAWING and asked & names_of(one) for one in ast.walk(function))


def _leads_to(value: Value, drawn: Value, depth: int = 20) -> bool:
    """Whether numbers are some of those that are drawn, as they are; not what stands at such places of something else."""
    if value is drawn or depth == 0:
        return value is drawn
    if isinstance(value, Many):
        return any(_leads_to(one, drawn, depth - 1) for one in value.parts)
    return value.op in (*KEPT, "iter", "element", "part", "rows", "view", "reshape", "split", "chunk", "squeeze", "int", "flatten") and bool(value.args) and _leads_to(value.args[0], drawn, depth - 1)


def _length(value: Value) -> float | None:
    """How many numbers a list or an array of one axis has, where that is written down."""
    for _ in range(40):
        if isinstance(value, Many):
            return None if value.grown or any(isinstance(one, Many) or one.op == "star" for one in value.parts) else len(value.parts)
        if value.op in ("zeros", "ones", "empty"):
            return number(value.args[0]) if len(value.args) == 1 else None
        if value.op == "set_item" and value.args[1].op not in ("index", "element", "@constant"):
            return None
        if not value.args or value.op not in (*KEPT, "div", "mul", "set_item", "torch.DoubleTensor", "torch.FloatTensor", "sqrt", "reciprocal", "pow") or (value.op in ("div", "mul") and number(value.args[0]) is None and number(value.args[-1]) is None):
            return None
        value = value.args[-1] if value.op in ("div", "mul") and number(value.args[0]) is not None else value.args[0]
    return None


def counts_each_class(value: Value) -> bool:
    """Whether a value says how often each number occurs: the counts that `unique` gives, the values of a Counter, or the sums over
    the samples of codes of one class each; or how often one number of several occurs."""
    if value.op == "part" and len(value.args) == 2 and value.args[0].op == "unique":
        asked = value.args[0].named
        place = sum(constant(asked.get(name)) is True for name in ("return_counts", "return_index", "return_inverse"))
        return constant(asked.get("return_counts")) is True and number(value.args[1]) in (place, -1)
    if value.op in ("values", "element") and value.args:
        return bare(value.args[0]).op == "collections.Counter" or (value.op == "element" and counts_each_class(bare(value.args[0])))
    if value.op == "sum" and value.args:
        inner, axis = bare(value.args[0]), value.argument("dim", 1)
        if inner.op == "one_hot":
            return number(axis) == 0
        tested = inner.args[1] if inner.op == "eq" and len(inner.args) == 2 and axis is None else None
        return tested is not None and (tested.op in ("index", "element") or isinstance(constant(tested), int))
    return False


def lists_in(value: Value | None) -> Iterator[Value]:
    """The list that a value holds the numbers of, each divided or multiplied by one number or not."""
    for _ in range(12 if value is not None else 0):
        if value is not None and isinstance(value, Many):
            yield value
        if value is None or not value.args or value.op not in (*KEPT, "div", "mul", "sqrt", "pow"):
            return
        value = value.args[-1] if value.op in ("div", "mul") and number(value.args[0]) is not None else value.args[0]


def is_by_class(weights: Value) -> bool:
    """Whether a list has a weight for each of a few numbers: it is made by counting them, and what is looked up is the
    count of that number itself."""
    if not isinstance(weights, Many) or len(weights.parts) != 1 or not weights.grown:
        return False
    if _is_for_each_key(weights.parts[0]):
        return True
    quotient = bare(weights.parts[0])
    below = bare(quotient.args[-1]) if quotient.op in ("div", "reciprocal") and quotient.args else quotient
    index = below.args[1] if below.op == "part" and len(below.args) == 2 else None
    if below.op == "element" and below.args and quotient is not below and bare(below.args[0]).op in ("bincount", "value_counts"):
        return True
    most = number(index.args[-1]) if index is not None and index.op == "index" and index.args else None
    return most is not None and most <= 1000 and bare(below.args[0]).op in ("collections.Counter", "bincount", "list")


def _is_for_each_key(weight: Value) -> bool:
    """Whether a weight is that of one key of a dict, or of one entry of what counts, and of nothing else that a loop goes over."""
    looked_up = bare(weight)
    if looked_up.op == "part" and len(looked_up.args) == 2 and (bare(looked_up.args[1]).op != "element" or looked_up.args[0].op == "element"):
        return False
    over = [bare(one.args[0], "sorted", "items", "values", "keys", "most_common") for one in origins(weight, stop=("collections.Counter", "dict", "bincount", "value_counts")) if one.op == "element" and one.args]
    return bool(over) and all(one.op in ("collections.Counter", "bincount", "value_counts") or isinstance(one, Table) for one in over)
