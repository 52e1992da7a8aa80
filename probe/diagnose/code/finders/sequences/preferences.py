"""Answers that are compared: which one is preferred, which group one belongs to, and the padding behind it. Pure; standard
library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.finders.losses.padded_time import filled
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import says, short
from probe.diagnose.code.traits.arithmetic import addends
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import LOSSES, losses, terms
from probe.diagnose.code.traits.likelihoods import is_likelihood

FINDERS = Finders()
_WORSE = re.compile(r"reject|dispreferred|worse|loser|(^|_)lose(_|$)|unpreferred", re.I)
_BETTER = re.compile(r"chosen|prefer|better|winner|(^|_)win(_|$)", re.I)
_OVER_GROUPS = ("mean", "std", "var", "max", "sum", "topk", "min")
_COMPARED = ("lt", "gt", "le", "ge", "eq", "ne")


# Which one is preferred -------------------------------------------------------------


def pushed(loss: Value) -> Iterator[tuple[Value, int, Value]]:
    """What stands in the logistic losses of a loss: the value, 1 where it is raised and -1 where it is lowered, and the
    loss."""
    for term, factor in terms(loss):
        sign = 1 if factor is None or factor > 0 else -1
        at = term
        while at.args and (at.op in ("mean", "sum", "neg") or (at.op in ("div", "mul") and len(at.args) == 2 and (number(at.args[1]) or 0) > 0)):
            sign, at = (-sign if at.op == "neg" else sign), at.args[0]
        for one, turned in addends(at, sign):
            if (found := _logistic(one)) is not None:
                yield found[0], -turned * found[1], one


def _logistic(at: Value) -> tuple[Value, int] | None:
    """What stands in a logistic loss, and 1 where it rises with that, -1 where it falls."""
    if at.op == "log" and at.args and bare(at.args[0]).op == "sigmoid":
        return bare(at.args[0]).args[0], 1
    if at.op in ("logsigmoid", "softplus", "sigmoid") and at.args:
        return at.args[0], 1
    if (power := _of_one_and_power(at)) is not None:
        return power.args[0], 1
    if at.op == "binary_cross_entropy_with_logits" and len(at.args) == 2 and bare(at.args[1]).op in ("ones_like", "ones", "zeros_like", "zeros"):
        return at.args[0], -1 if "ones" in bare(at.args[1]).op else 1
    return None


def _of_one_and_power(value: Value) -> Value | None:
    """The power of e of `log1p(exp(x))` and of `log(1 + exp(x))`."""
    inner = bare(value.args[0]) if value.op in ("log1p", "log") and value.args else value
    if value.op == "log" and inner.op == "add" and len(inner.args) == 2 and 1 in [number(one) for one in inner.args]:
        inner = bare(next(one for one in inner.args if number(one) != 1)) if number(inner.args[0]) != number(inner.args[1]) else inner
    elif value.op != "log1p":
        return None
    return inner if inner.op == "exp" and inner.args else None


def leaves_of(value: Value, sign: int = 1, depth: int = 12) -> Iterator[tuple[Value, int]]:
    """What a value is a sum of, each with its sign; positive factors are passed."""
    if depth and value.op in ("add", "sub") and len(value.args) == 2:
        yield from leaves_of(value.args[0], sign, depth - 1)
        yield from leaves_of(value.args[1], sign if value.op == "add" else -sign, depth - 1)
    elif depth and value.op == "neg":
        yield from leaves_of(value.args[0], -sign, depth - 1)
    elif depth and value.op in ("mul", "div") and len(value.args) == 2 and any((number(one) or 0) > 0 or one.op in ("@input", "exp") for one in value.args[::-1][: 2 if value.op == "mul" else 1]):
        inner = value.args[1] if value.op == "mul" and ((number(value.args[0]) or 0) > 0 or value.args[0].op in ("@input", "exp")) else value.args[0]
        yield from leaves_of(inner, sign, depth - 1)
    else:
        yield value, sign


_RIGHT = ("acc", "correct", "right", "hit", "win", "won", "agree", "prefer")
"""Words for how many pairs are as they should be."""


def preference_reversed(program: Program) -> Iterator[Remark]:
    """The loss of a pair raises the answer that was rejected, or lowers the one that was chosen."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        directions: dict[int, set[int]] = {}
        found: list[tuple[Value, int, Value]] = []
        for inside, push, term in pushed(loss):
            for leaf, sign in leaves_of(inside):
                directions.setdefault(id(leaf), set()).add(sign * push)
                found.append((leaf, sign * push, term))
        moved = [one for one in found if has_gradient(one[0])]
        found = [one for one in moved if len(directions[id(one[0])]) == 1]
        if len({id(leaf) for leaf, _, _ in moved}) != 2:
            continue
        named = [(leaf, push, term, _called(program, computation, leaf)) for leaf, push, term in moved]
        if {kind for *_, kind in named} == {"better", "worse"}:
            wrong = next((one for one in named if len(directions[id(one[0])]) == 1 and one[1] != (1 if one[3] == "better" else -1)), None)
            if wrong is not None:
                leaf, push, term, kind = wrong
                names = _names(computation, leaf)
                does, what = ("raises" if push > 0 else "lowers"), ("rejected" if kind == "worse" else "chosen")
                yield Remark(term.node, f"{short(term.node)} {does} {names[0] if names else short(leaf.node)} (line {leaf.line}), which is that of the answer that was {what}")
                return
        counted = _counted(program, computation, found)
        if counted is not None:
            leaf, push, term = next(one for one in found if one[1] > 0)
            yield Remark(term.node, f"{short(term.node)} raises what {short(counted.node)} (line {counted.line}) counts as the smaller one where the pair is right")
            return


def _names(computation: Computation, value: Value) -> list[str]:
    return [name.id for name, values in computation.stored.items() if any(one is value for one in values)]


def _called(program: Program, computation: Computation, value: Value) -> str | None:
    """Whether the names of a value, and what it is computed of where it gets its name, tell the better or the worse one."""
    kinds: set[str] = set()
    for name, values in computation.stored.items():
        if not any(one is value for one in values):
            continue
        words = [name.id]
        statement = program.statement(name)
        made = statement.value if isinstance(statement, ast.Assign) else None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(made, ast.Tuple) and isinstance(target, ast.Tuple) and len(made.elts) == len(target.elts) and name in target.elts:
            made = made.elts[target.elts.index(name)]
        elif isinstance(target, ast.Tuple):
            made = None
        for one in ast.walk(made) if made is not None else ():
            words += [one.value] if isinstance(one, ast.Constant) and isinstance(one.value, str) else [one.id] if isinstance(one, ast.Name) else [one.attr] if isinstance(one, ast.Attribute) else []
        kinds |= {"worse" if _WORSE.search(word) else "better" for word in words if _WORSE.search(word) or _BETTER.search(word)}
    if not kinds:  # no name of its own: what it is read by may tell, as `batch["chosen_ids"]`
        keys = [constant(one.args[1]) for one in origins(value) if one.op == "part" and len(one.args) == 2]
        kinds = {"worse" if _WORSE.search(key) else "better" for key in keys if isinstance(key, str) and (_WORSE.search(key) or _BETTER.search(key))}
    return kinds.pop() if len(kinds) == 1 else None


def _counted(program: Program, computation: Computation, found: list[tuple[Value, int, Value]]) -> Value | None:
    """Where pairs are counted as right whose first one is larger, and the loss makes it smaller. What is counted may as well be
    the pairs that are wrong: its name tells."""
    for one in computation.of("gt"):
        left, right = (bare(part) for part in one.args[:2])
        pushes = [next((push for leaf, push, _ in found if bare(leaf) is side), None) for side in (left, right)]
        if pushes == [-1, 1] and any(user.op in ("sum", "mean", "float") for user in computation.users(one)) and says(program.statement(one.node), *_RIGHT):
            return one
    return None


# Which group an answer is of -----------------------------------------------------------


def groups_of_other_rows(program: Program) -> Iterator[Remark]:
    """Rows were repeated one behind the other as a whole, and what is computed of them is put into groups of neighbours."""
    computation = computation_of(program)
    for value in computation.of("view", "reshape"):
        sizes = value.args[1].parts if len(value.args) == 2 and isinstance(value.args[1], Many) else list(value.args[1:])
        if len(sizes) != 2 or value.args[0].op in ("transpose", "T"):
            continue
        used = next((one for one in computation.users(value) if one.op in _OVER_GROUPS and _axis(one) is not None), None)
        axis = _axis(used) if used is not None else None
        if used is None or axis is None or any(one.op == "transpose" or one.op == "T" for one in computation.users(value)):
            continue
        within = list(origins(value.args[0], ("size", "shape", "len")))
        copied = [(one, *found) for one in within if (found := _copies(computation, one)) is not None]
        if len({one.node for one, *_ in copied}) != 1 or any(one.op in ("argsort", "sort", "randperm") for one in within):
            continue
        repeated, many, tiled = copied[0]
        inside, across = (sizes[1], sizes[0]) if axis == 1 else (sizes[0], sizes[1])
        if not _equal(inside, many) or _equal(across, many) or (axis == 1) != tiled:
            continue
        order = "lays all rows down once, and then again: the copies of one row are not neighbours" if tiled else "puts the copies of each row beside each other"
        yield Remark(value.node, f"{short(value.node)} and {short(used.node)} (line {used.line}) make groups of other rows than {short(repeated.node)} (line {repeated.line}) has copied: it {order}")
        return


def _axis(value: Value) -> int | None:
    """The axis of two that a statistic is taken along."""
    known = number(value.argument("dim", 2 if value.op == "topk" else 1))
    return None if known not in (0, 1, -1, -2) or known is None else int(known) % 2


def _copies(computation: Computation, value: Value) -> tuple[Value | int, bool] | None:
    """How often an operation copies rows, and whether it lays all rows down once, and then again; None where it does not."""
    if value.op == "cat" and len(value.args) == 1 and number(value.argument("dim", 1)) in (None, 0) and isinstance(value.args[0], Many):
        parts = value.args[0].parts
        return (len(parts), True) if len(parts) > 1 and not value.args[0].grown and all(one is parts[0] for one in parts) else None
    if value.op in ("repeat_interleave", "repeat") and len(value.args) > 1 and number(value.argument("dim", 2)) == 0:
        return value.args[1], False
    if value.op not in ("repeat", "tile", "expand") or value.named or not value.args:
        return None
    sizes = value.args[1].parts if len(value.args) == 2 and isinstance(value.args[1], Many) else list(value.args[1:])
    more = [place for place, one in enumerate(sizes) if number(one) not in (1, -1)]
    if len(sizes) < 2 or len(more) != 1 or more[0] > 1:
        return None
    new = _new_axis(value.args[0]) == more[0]
    merged = any(one.op in ("view", "reshape", "flatten") for one in computation.users(value))
    if value.op != "expand" and more[0] == 0 and (not new or merged):
        return sizes[0], True
    return (sizes[more[0]], more[0] == 0) if new and merged else None


def _new_axis(value: Value) -> float | None:
    """Which axis `x.unsqueeze(n)` and `x[:, None]` put in."""
    if value.op == "unsqueeze":
        return number(value.argument("dim", 1))
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    parts = index.parts if isinstance(index, Many) else [index]
    return next((float(place) for place, one in enumerate(parts) if one is not None and one.op == "@constant" and one.data is None), None)


def _equal(one: Value, other: Value | int) -> bool:
    if isinstance(other, int):
        return number(one) == other
    return same(one, other) if number(one) is None else number(one) == number(other)


# Terms that no answer moves -------------------------------------------------------------


@FINDERS.add("term-of-the-wrong-sign")
def _divergence_raised(program: Program) -> Iterator[Remark]:
    """An estimate of a divergence, exp(d) - d - 1, which is never below 0, is subtracted from what is minimized."""
    for _, loss in losses(computation_of(program)):
        for term, sign in _penalties(loss):
            if sign < 0:
                yield Remark(term.node, f"{short(term.node)} is an estimate of a divergence, which is never below 0, and what is minimized falls as it grows: the two policies are pushed apart")
                return


def _penalties(value: Value, sign: int = 1, depth: int = 40) -> Iterator[tuple[Value, int]]:
    if depth == 0:
        return
    if is_estimate(value):
        yield value, sign
    elif value.op in ("add", "sub") and len(value.args) == 2:
        yield from _penalties(value.args[0], sign, depth - 1)
        yield from _penalties(value.args[1], sign if value.op == "add" else -sign, depth - 1)
    elif value.op == "neg":
        yield from _penalties(value.args[0], -sign, depth - 1)
    elif value.op == "mul" and len(value.args) == 2 and any((known := number(one)) is not None for one in value.args):
        known = next(found for one in value.args if (found := number(one)) is not None)
        inner = value.args[1] if number(value.args[0]) is not None else value.args[0]
        yield from _penalties(inner, sign if known > 0 else -sign, depth - 1) if known else ()
    elif value.op == "mul" and len(value.args) == 2:
        for one, other in (value.args, value.args[::-1]):
            if bare(other).op in _COMPARED or "mask" in short(other.node).lower():
                yield from _penalties(one, sign, depth - 1)
                return
    elif value.op in ("mean", "sum", "div") and value.args:
        yield from _penalties(value.args[0], sign, depth - 1)


def is_estimate(value: Value) -> bool:
    """Whether a value is exp(d) - d - 1, where d is a difference of log probabilities."""
    left: list[tuple[Value, int]] = []
    waiting = [(value, 1)]
    while waiting and len(left) < 6:
        at, sign = waiting.pop()
        if at.op in ("add", "sub") and len(at.args) == 2 and not (is_likelihood(at.args[0]) and is_likelihood(at.args[1])):
            waiting += [(at.args[0], sign), (at.args[1], sign if at.op == "add" else -sign)]
        else:
            left.append((at, sign))
    if len(left) != 3:
        return False
    raised = next((one for one, sign in left if one.op == "exp" and sign > 0), None)
    ones = [one for one, sign in left if number(one) is not None and (number(one) or 0) * sign == -1]
    rest = [one for one, sign in left if sign < 0 and one.op == "sub"]
    return raised is not None and len(ones) == 1 and len(rest) == 1 and same(raised.args[0], rest[0])


@FINDERS.add("term-without-gradient")
def _between_frozen(program: Program) -> Iterator[Remark]:
    """A loss in a sum is computed between two outputs of networks, none of which has a gradient."""
    said: set[ast.AST] = set()
    for _, loss in losses(computation_of(program)):
        parts = [one for one, _ in terms(loss)]
        for part in parts:
            at = part
            while at.args and at.op in ("mul", "mean", "sum"):
                at = next((one for one in at.args if any(each.op in LOSSES for each in (one, *one.args))), at.args[0]) if at.op == "mul" else at.args[0]
            if at.op not in LOSSES or len(at.args) < 2 or at.where.no_grad or has_gradient(part) or at.node in said or not any(has_gradient(one) for one in parts):
                continue
            runs = [next((one for one in origins(side) if one.op == "run"), None) for side in at.args[:2]]
            if None not in runs and all(one is not None and one.where.no_grad for one in runs):
                said.add(at.node)
                run = runs[0]
                assert run is not None
                yield Remark(at.node, f"{short(at.node)} has no gradient: both of its sides are computed without one ({short(run.node)}, line {run.line})")


# Padding behind an answer -------------------------------------------------------------


@FINDERS.add("padding-not-ignored")
def _likelihood_of_padding(program: Program) -> Iterator[Remark]:
    """Log probabilities of all places of rows that were filled up are added up, and no mask leaves the filling out."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        found: list[Value] = []
        if not _collect(loss, found, 60):
            continue
        for likely in found:
            fill = _filling(likely.argument("index", len(likely.args) - 1))
            if fill is not None and has_gradient(likely):
                yield Remark(likely.node, f"{short(likely.node)} also takes the log probabilities of what fills the rows up ({short(fill.node)}, line {fill.line}), and nothing leaves these places out")
                return


def _collect(value: Value, found: list[Value], depth: int) -> bool:
    """The log probabilities of each word that a loss is a sum of; False where something else may leave places out."""
    if depth == 0:
        return False
    at = bare(value, shapes=False) if value.op != "either" else value
    if at.op == "squeeze" and at.args:
        at = bare(at.args[0], shapes=False)
    if at.op == "gather":
        found.append(at)
        return bare(at.args[0]).op == "log_softmax"
    if at.op in ("part",) and len(at.args) == 2 and at.args[0].op == "gather" and isinstance(at.args[1], Many) and number(at.args[1].parts[-1]) == 0:
        found.append(at.args[0])
        return bare(at.args[0].args[0]).op == "log_softmax"
    if at.op in ("add", "sub", "mul", "min", "max", "minimum", "maximum") and len(at.args) == 2:
        return all(_is_of_rows(one) or _collect(one, found, depth - 1) for one in at.args)
    if at.op == "div" and len(at.args) == 2:
        return _is_of_rows(at.args[1]) and _collect(at.args[0], found, depth - 1)
    if at.op in ("neg", "exp", "clamp", "mean", "sum", "logsigmoid", "softplus") and at.args:
        return _collect(at.args[0], found, depth - 1)
    return False


def _is_of_rows(value: Value) -> bool:
    """Whether a factor is a number, one for each row, or a mask of what stands before an answer."""
    if number(value) is not None or bare(value).op in ("@input", "len", "count"):
        return bare(value).op != "@input" or value.op == "@input"
    if value.op == "unsqueeze":
        return number(value.argument("dim", 1)) in (1, -1) and not any(one.op in ("gather", *_COMPARED) for one in _line(value))
    if value.op == "part" and isinstance(value.args[1], Many):
        return is_none(value.args[1].parts[-1]) and value.args[1].parts[-1].op == "@constant" and not any(one.op == "gather" for one in _line(value))
    mask = bare(value)
    return mask.op in ("ge", "gt") and len(mask.args) == 2 and bare(mask.args[0], "part").op == "arange" and bare(mask.args[1], "part").op not in ("arange",)


def _line(value: Value) -> Iterator[Value]:
    for _ in range(30):
        yield value
        if not value.args:
            return
        value = value.args[0]


def _filling(words: Value | None) -> Value | None:
    """Where the words whose log probabilities are taken were filled up."""
    for _ in range(30):
        if words is None:
            return None
        if (found := filled(words)) is not None:
            fill = found[0]
            given = fill.argument("padding_value", 2)
            return fill if given is None or (number(given) or 0) >= 0 else None
        if words.op == "stack" and words.args:
            inner = words.args[0]
            parts = inner.parts if isinstance(inner, Many) else []
            return parts[0] if len(parts) == 1 and _ends(parts[0]) else None
        if (words.op == "part" and len(words.args) == 2 and all(one.op in ("slice", "@constant") for one in (words.args[1].parts if isinstance(words.args[1], Many) else [words.args[1]]))) or bare(words) is not words:
            words = words.args[0]
        else:
            return None
    return None


def _ends(word: Value) -> bool:
    """Whether a drawn word is replaced by a fixed one where its row has ended."""
    if word.op != "where" or len(word.args) != 3:
        return False
    fixed = word.args[1]
    known = number(fixed) if fixed.op != "full_like" else number(fixed.argument("fill_value", 1))
    return known is not None and constant(word.args[2]) is None and any(one.op in ("multinomial", "argmax", "sample", "@input") for one in origins(word.args[2]))


@FINDERS.add("values-of-another-range")
def _difference_of_shares(program: Program) -> Iterator[Remark]:
    """A preference is the sigmoid of the difference of two scores that a sigmoid has squashed already."""
    for _, loss in losses(computation_of(program)):
        for value in origins(loss):
            if value.op not in ("logsigmoid", "sigmoid", "softplus", "binary_cross_entropy_with_logits") or not value.args:
                continue
            inner = bare(value.args[0])
            inner = bare(inner.args[0]) if inner.op == "neg" and inner.args else inner
            if inner.op != "sub" or len(inner.args) != 2:
                continue
            scores = [bare(one, "part") for one in inner.args]
            if all(one.op == "sigmoid" and any(each.op == "run" for each in origins(one)) for one in scores) and scores[0].node is scores[1].node:
                yield Remark(value.node, f"{short(value.node)} takes a difference of {short(scores[0].node)} (line {scores[0].line}), which lies between -1 and 1: a pair can never be surer than 0.73, and the loss has a floor of 0.31")
                return
