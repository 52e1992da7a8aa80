"""Log probabilities of actions of several dimensions that were never added up. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.extents import last, rank, view_sizes

_OF_EACH = (".Normal", ".Laplace", ".Beta", ".Gamma", ".Cauchy", ".StudentT", ".LogNormal")
"""Distributions of torch that give a log probability for each number of an action."""
_PLACED = ("sub", "add", "mul", "div", "min", "max", "minimum", "maximum", "where")
_ALIKE = frozenset({
    "exp", "neg", "clamp", "detach", "clone", "abs", "tanh", "square", "pow", "sqrt", "log", "softplus", "relu", "float", "to", "double", "cpu", "cuda", "sigmoid",
    "set_item", "zeros_like", "ones_like", "empty_like", "full_like", "contiguous", "numpy", "from_numpy", "rows", "tensor", "as_tensor", "data", "nan_to_num",
})
_REDUCED = ("sum", "mean", "prod", "sum_of", "logsumexp", "max", "min", "norm", "any", "all")
_CHOSEN = ("index", "slice", "element", "randperm", "randint", "permutation", "rows", "range")
"""What takes rows by their numbers."""
_DEEPEST = 40


def dimensions_not_summed(program: Program) -> Iterator[Remark]:
    """The log probabilities of the dimensions of an action, one by one, stand beside the one value of its state; or the ratio
    of each dimension is multiplied by the one advantage of its action."""
    computation = computation_of(program)
    if not any(True for _ in computation.of("log_prob")) or _has_several_agents(program):
        return
    for value in computation.of("add", "sub", "mul"):
        for wide, one in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            likely = _likely_in(wide, through_exp=value.op == "mul")
            size = None if likely is None else _dimensions(likely)
            if likely is None or size is None or width(wide) != size or not _is_of_each_row(one) or _is_added_up(computation, value):
                continue
            shaped = {id(each) for each in origins(likely.args[0], stop=("run",))}
            if any(id(layer) in shaped for layer in _layers(one)):
                continue  # one spread for all dimensions
            yield Remark(value.node, f"{short(value.node)} has {size} numbers for each action beside one of {short(one.node)} (line {one.line}): {short(likely.node)} (line {likely.line}) is of each of its dimensions, and is not summed")
            return


def _has_several_agents(program: Program) -> bool:
    """Whether the numbers of an action may be those of several agents, by a name."""
    return any("agents" in last_word(one).lower() for one in program.everywhere(ast.Name, ast.Attribute)) or any("agents" in one.arg.lower() for one in program.everywhere(ast.arg))


def _dimensions(likely: Value) -> int | None:
    """How many dimensions the action has whose log probability a value is; None for one, and where one number is compared
    with several distributions, or several numbers with one."""
    size, given = _widest([*likely.args[0].args, *likely.args[0].named.values()], _DEEPEST), width(likely.args[1])
    return size if size is not None and size > 1 and given in (None, size) else None


def _likely_in(value: Value, *, through_exp: bool) -> Value | None:
    """The log probability that a value has for each dimension; for a product, only one in a ratio of probabilities."""
    waiting, seen = [(value, False)], set[int]()
    while waiting and len(seen) < 200:
        at, raised = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if at.op == "log_prob" and len(at.args) == 2 and _is_each(at.args[0]) and raised is through_exp:
            return at
        if at.op == "either" or (at.op in _PLACED and not _is_reduction(at)):
            waiting += [(one, raised) for one in at.args]
        elif at.op == "exp" and at.args and bare(at.args[0], "clamp").op == "sub":
            waiting.append((at.args[0], True))
        elif at.args and ((at.op in _ALIKE and at.op != "exp") or at.op in ("stack", "flatten", "part", "view", "reshape", "cat")):
            waiting.append((at.args[2] if at.op == "set_item" and len(at.args) > 2 else at.args[0], raised))
        elif isinstance(at, Many):
            waiting += [(one, raised) for one in at.parts[:4]]
    return None


def _is_each(distribution: Value) -> bool:
    return distribution.op.startswith("torch.distributions.") and distribution.op.endswith(_OF_EACH) and bool(distribution.args or distribution.named)


def _is_of_each_row(value: Value, depth: int = _DEEPEST) -> bool:
    """Whether a value is a column, one number for each row of a batch: a layer's of one output, or computed of one with
    nothing wider beside it. Settings and parameters are none."""
    op, args = value.op, value.args
    if depth == 0 or (width(value) or 1) > 1:
        return False
    if op == "run":
        return args[0].op == "torch.nn.Linear" and last(value) == 1
    if op in _REDUCED and (op not in _PLACED or _is_reduction(value)):
        return False
    if width(value) == 1 and (rank(value) == 2 or op == "unsqueeze"):
        return not any(one.op in _REDUCED and "keepdim" in one.named for one in origins(value, stop=("run", "log_prob")))
    if op == "either":
        return all(_is_of_each_row(one, depth - 1) for one in args)
    if isinstance(value, Many):
        return value.op == "list" and bool(value.parts) and _is_of_each_row(value.parts[0], depth - 1)
    if op in _PLACED and not _is_reduction(value):
        return any(_is_of_each_row(one, depth - 1) for one in args) and all((width(one) or 1) == 1 for one in args)
    if op == "set_item":
        return len(args) > 2 and args[1].op in _CHOSEN and _is_of_each_row(args[2], depth - 1)
    if op in ("part", "flatten", "stack", "cat"):
        return _keeps_width(value) and _is_of_each_row(args[0], depth - 1)
    return op in _ALIKE and bool(args) and _is_of_each_row(args[0], depth - 1)


def _layers(value: Value) -> list[Value]:
    """The layers of one output that a value is computed of, without what they are run on."""
    return [one for one in origins(value, stop=("run", *_REDUCED[:4])) if one.op == "run" and one.args[0].op == "torch.nn.Linear" and last(one) == 1]


def _is_added_up(computation: Computation, value: Value) -> bool:
    """Whether the numbers of each action are added up later: by a sum over the last axis."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 200:
        for user in computation.users(waiting.pop()):
            if user.op in ("sum", "prod") and user.args and not is_none(user.argument("dim", 1)) and number(user.argument("dim", 1)) != 0:
                return True
            if id(user) not in seen and (user.op in _PLACED or user.op in _ALIKE or user.op == "either"):
                seen.add(id(user))
                waiting.append(user)
    return False


# How many numbers there are in a row ----------------------------------------------------------------


def _is_reduction(value: Value) -> bool:
    """Whether min or max is one of a single tensor, over an axis."""
    return value.op in ("min", "max") and (len(value.args) < 2 or constant(value.args[1]) is not None)


def width(value: Value, depth: int = _DEEPEST) -> int | None:
    """The length of the last axis of a value with at least one; None where it does not follow, and for plain numbers."""
    if depth == 0:
        return None
    op, args = value.op, value.args
    if op == "either":
        found = {width(one, depth - 1) for one in alternatives(value)}
        return found.pop() if len(found) == 1 else None
    if isinstance(value, Many):
        return width(value.parts[0], depth - 1) if value.parts and value.op == "list" else None
    if op in ("log_prob", "sample", "rsample", "mean", "entropy", "cdf") and args and _is_each(args[0]):
        given = args[0]
        return _widest([*given.args, *given.named.values(), *(args[1:] if op == "log_prob" else ())], depth)
    if op in _PLACED and not _is_reduction(value) and len(args) > 1:
        return _widest(list(args), depth)
    if op in _REDUCED:
        keeps = constant(value.named.get("keepdim")) is True and number(value.argument("dim", 1)) == -1
        return 1 if keeps else None
    if op == "part":
        return _width_of_part(value, depth)
    if op == "unsqueeze":
        at = number(value.argument("dim", 1))
        return 1 if at == -1 or (at is not None and rank(args[0]) == at) else width(args[0], depth - 1) if at == 0 else None
    if op in ("view", "reshape"):
        sizes = view_sizes(value)
        size = number(sizes[-1]) if len(sizes) > 1 else None
        return int(size) if size is not None and size > 0 else None
    if op in ("flatten", "stack", "cat"):
        return width(args[0], depth - 1) if _keeps_width(value) else None
    if op in ("exp", "softplus") and args and args[0].op == "torch.nn.Parameter":
        return width(args[0].args[0], depth - 1) if args[0].args else None
    if op in _ALIKE and args:
        return width(args[0], depth - 1)
    if op in ("zeros", "ones", "full", "empty", "randn", "rand") or op == "run":
        return last(value)
    return None


def _widest(values: list[Value], depth: int) -> int | None:
    """The width of what is computed of several, each number with each."""
    plain = [one for one in values if not _is_number(one)]
    known = [width(one, depth - 1) for one in plain]
    longer = {one for one in known if one is not None and one > 1}
    if longer:
        return longer.pop() if len(longer) == 1 else None
    return 1 if known and all(one == 1 for one in known) else None


def _is_number(value: Value) -> bool:
    return number(value) is not None or value.op in ("item", "@input") or rank(value) == 0


def _width_of_part(value: Value, depth: int) -> int | None:
    on, index = value.args if len(value.args) == 2 else (value, value)
    if on.op in ("chunk", "split") and on.args and isinstance(constant(index), int):
        at = number(on.argument("dim", 2))
        whole, by = width(on.args[0], depth - 1), number(on.argument("chunks" if on.op == "chunk" else "split_size", 1))
        if at is None or by is None or whole is None or at not in (-1, (rank(on.args[0]) or 2) - 1):
            return None
        return int(whole // by) if on.op == "chunk" else int(by)
    if isinstance(index, Many):
        end = index.parts[-1] if index.parts else index
        added = index.op == "tuple" and end.op == "@constant" and end.data is None and all(one.op == "slice" for one in index.parts[:-1])
        return 1 if added else None
    return width(on, depth - 1) if _keeps_width(value) else None


def _keeps_width(value: Value) -> bool:
    """Whether what joins rows, or takes some of them, keeps the last axis."""
    op, args = value.op, value.args
    if op == "part":
        on, index = args if len(args) == 2 else (value, value)
        if isinstance(constant(index), int):
            return on.op in ("set_item", "zeros_like", "stack") and rank(on) != 1
        by_rows = index.op in _CHOSEN or (index.op == "part" and index.args[0].op in _CHOSEN)
        return by_rows and on.op not in ("chunk", "split", "max", "min") and rank(on) != 1
    if op == "flatten":
        return len(args) == 3 and number(args[1]) == 0 and number(args[2]) == 1
    return bool(args) and (is_none(value.argument("dim", 1)) or number(value.argument("dim", 1)) == 0)
