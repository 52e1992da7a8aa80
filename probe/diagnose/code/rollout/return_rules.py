"""Returns over several steps: where episodes end, how they are discounted, what was never tried. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.followed.unfilled_sums import returns_before_advantages
from probe.diagnose.code.finders.losses.shifted_ends import end_of_another_step
from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import factors
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    last_word,
    names_of,
    names_read,
    names_set,
    number_in,
    operands,
    own,
    own_nodes,
    reads,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("rollout")
_END = re.compile(r"done|term|end|last", re.I)
_REWARD = re.compile(r"^(r|rs|rew|rews|rewards?|feedback|clicks?|payoffs?)$", re.I)
_TRUNCATED = re.compile(r"truncat|time_?out|bootstrap|infinite_horizon", re.I)
_ENDS = re.compile(r"\b(b?d|(b_|batch_)?dones?(_b|_batch)?|term\w*|ends?|ended|over|finished)\b")
_DONE = re.compile(r"(done|dones|terminal|terminated|finished|over|ended|end)$")
_VALUES = re.compile(r"next|nxt|value|target|critic|\bq\w*\b|\bv\b", re.I)
_STORES = ("add", "append", "push", "store", "put", "remember", "insert")


@RULES.add(
    "advantage-past-the-end",
    "actions are credited with what happened in the next episode",
    "multiply the sum so far by it too: gae = delta + gamma * lam * (1 - done) * gae",
)
def _past_the_end(program: Program) -> Iterator[Remark]:
    """A sum over the steps of several episodes whose last term stops at their ends, and whose rest does not."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        backwards = any(is_name(one, "reversed") for one in ast.walk(loop.iter)) or (
            is_call(loop.iter, "range") and len(loop.iter.args) == 3
        )
        for node in loop.body if backwards else ():
            if not isinstance(node, ast.Assign) or not is_name(node.targets[0]) or not is_binary(node.value, ast.Add):
                continue
            name = node.targets[0].id
            for delta, rest in operands(node.value):
                if not is_binary(rest, ast.Mult) or name not in names_read(rest) or name in names_read(delta):
                    continue
                ends = [one for one in flow.origins(delta) if _goes_on(one)]
                others = [part for part in ast.walk(rest) if not is_name(part, name)]
                free = not any(_goes_on(one) or _END.search(last_word(one)) for part in others for one in (flow.origins(part) if is_name(part) else [part]))
                held = any(
                    (isinstance(one, ast.If) and _END.search(text_of(one.test))) or (one is not node and name in names_set(one))
                    for one in loop.body
                )
                if ends and free and not held:
                    yield Remark(
                        node,
                        f"{short(delta, 40)} stops at the ends of episodes ({short(ends[0], 30)}), and "
                        f"{short(rest, 40)} goes on across them",
                    )


def _goes_on(node: ast.AST) -> bool:
    """Whether an expression is 1 - done, whatever the flag of a step is called."""
    if not is_binary(node, ast.Sub) or number_in(node.left) != 1:
        return False
    return isinstance(node.right, ast.Subscript) or bool(_END.search(text_of(node.right)))


@RULES.add(
    "one-discount-for-several-steps",
    "the value of the state n steps later counts as if it were one step away",
    "discount it as often as there are rewards before it: gamma ** n",
)
def _one_discount(program: Program) -> Iterator[Remark]:
    """A return of several rewards, and a value after them that is discounted once."""
    flow = flow_of(program)
    powers = [one for one in program.everywhere(ast.BinOp) if isinstance(one.op, ast.Pow) and last_word(one.left)]
    for power in powers:
        discount, statement = last_word(power.left), program.statement(power)
        summed = statement.targets[0] if isinstance(statement, ast.Assign) else (
            statement.target if isinstance(statement, ast.AugAssign) else None
        )
        adds = isinstance(statement, ast.AugAssign) or any(is_call(one, "sum") for one in program.calls_around(power))
        if not isinstance(summed, ast.Name) or not adds or not re.search("gamma|discount", discount, re.I):
            continue
        for node in program.everywhere(ast.BinOp):
            for reward, rest in operands(node) if is_binary(node, ast.Add) else ():
                whole = {text_of(one) for one in factors(rest)}
                once = any(one.rpartition(".")[2].lower() == discount.lower() for one in whole)
                values = any(isinstance(one, ast.Call) and program.family(one.func) == "module" for one in flow.origins(rest))
                if is_name(reward, summed.id) and once and values and not any(one in powers for one in ast.walk(rest)):
                    yield Remark(
                        node,
                        f"{short(node)} discounts by {discount} once, and {summed.id} holds the rewards of "
                        f"several steps (line {power.lineno})",
                    )


@RULES.add(
    "time-limit-taken-for-an-end",
    "states at the time limit are learned to be worth nothing, although the task goes on there",
    "store terminated alone, and use the time limit only to reset the environment",
)
def _time_limit(program: Program) -> Iterator[Remark]:
    """The end of an episode that is stored for the targets, with time limits in it."""
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            value, target = _as_it_was(node.value), node.targets[0]
            either = value.values if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or) else (
                [value.left, value.right] if is_binary(value, ast.BitOr)
                else value.args[:2] if is_method(value, "logical_or", "bitwise_or", "maximum") else []
            )
            words = [last_word(one).lower() for one in either]
            if len(words) != 2 or not isinstance(target, (ast.Name, ast.Subscript)):
                continue
            cut = next((one for one in words if re.search(r"trunc|time_?(out|limit)", one)), None)
            ended = next((one for one in words if re.search(r"term|^done", one)), None)
            if cut is None or ended is None:
                continue
            plain = next(last_word(one) for one in either if last_word(one).lower() == ended)
            if isinstance(target, ast.Subscript):
                limit = next(last_word(one) for one in either if last_word(one).lower() == cut)
                if not any(_reads_of(scope, one, value) for one in (limit, plain)) and _bootstraps(program):
                    yield Remark(node, f"{short(node.targets[0])} holds {short(value, 40)}: a time limit is no end")
                    break
                continue
            stored: list[ast.stmt | ast.Call] = [
                one for one in own(scope, ast.Call)
                if is_method(one, *_STORES) and one.lineno > node.lineno and reads(one, target.id) and len(names_read(one)) > 4
            ]
            kept = [
                one for one in own(scope, ast.Assign)
                if isinstance(one.targets[0], ast.Subscript) and one.lineno > node.lineno and reads(one.value, target.id)
            ]
            if not _reads_of(scope, cut, value):  # else the value of the state at the limit may be added there
                stored += [one for one in kept if len(names_read(one.value)) == 1 and not _reads_of(scope, plain, value)]
            if stored and not any(reads(one, plain) for one in stored) and _bootstraps(program):
                yield Remark(
                    stored[0],
                    f"{short(stored[0])} stores {target.id}, which is {short(value, 40)}: a time limit is no end",
                )
                break


def _as_it_was(node: ast.expr) -> ast.expr:
    """An expression without a change of its type: x of `x.float()`, `float(x)`, `torch.tensor(x)`."""
    while isinstance(node, ast.Call) and len(node.args) <= 1 and last_word(node.func) in ("float", "int", "bool", "to", "astype", "tensor", "as_tensor", "array", "float32"):
        if isinstance(node.func, ast.Attribute) and last_word(node.func) in ("float", "int", "bool", "to", "astype"):
            node = node.func.value
        elif node.args:
            node = node.args[0]
        else:
            break
    return node


def _reads_of(scope: ast.AST, name: str, but: ast.AST) -> bool:
    """Whether a scope reads a name in any other expression than one."""
    inside = set(ast.walk(but))
    return any(one.id.lower() == name.lower() and isinstance(one.ctx, ast.Load) and one not in inside for one in own(scope, ast.Name))


def _bootstraps(program: Program) -> bool:
    """Whether values of later states are multiplied by 1 - done somewhere."""
    return any(
        is_binary(one, ast.Sub) and number_in(one.left) == 1 and isinstance(program.parent.get(one), (ast.BinOp, ast.Assign))
        and isinstance(one.right, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) and not is_name(one.right, "lam", "gamma")
        and (bool(re.match(r"^\(?(?:\w+\.)*(d|done|dones|term\w*|ends?|D|DONE|b_d\w*|batch\.\w+|\w*done\w*)\b", text_of(one.right))) or _discounted(program, one))
        for one in program.everywhere(ast.BinOp)
    )


def _discounted(program: Program, node: ast.BinOp) -> bool:
    """Whether a factor such as `1 - x` is multiplied by a discount and by something else."""
    above: ast.AST = node
    while is_binary(program.parent.get(above), ast.Mult):
        above = program.parent[above]
    words = [last_word(one) for one in factors(above) if one is not node] if isinstance(above, ast.BinOp) else []
    return len(words) > 1 and any(re.fullmatch(r"gamma|discount\w*|GAMMA", word) for word in words)


@RULES.add(
    "untried-taken-for-failed",
    "every action that was not taken is learned to be worthless: what is tried often looks best",
    "take the loss of the chosen action alone: logits.gather(1, action)",
)
def _untried(program: Program) -> Iterator[Remark]:
    """A target that is the reward at the action taken, and 0 at all others, for a loss over all actions."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_loss(program, call) or len(call.args) < 2 or argument(call, "weight") is not None or argument(call, "reduction") is not None:
            continue
        target = flow.value(call.args[1])
        made = program.operand(target) if is_method(target, "scatter", "scatter_") and isinstance(target, ast.Call) else None
        source = target.args[-1] if made is not None and isinstance(target, ast.Call) and target.args else None
        zeros = program.called(flow.value(made)).rpartition(".")[2] in ("zeros_like", "zeros") if made is not None else False
        rewards = source is not None and any(_REWARD.match(name) for name in names_of(source))
        frame = program.frame(call)
        masked = any(is_method(one, "gather", "masked_fill") for one in own_nodes(frame))
        if zeros and rewards and not masked:
            yield Remark(
                call,
                f"{short(call)} asks for 0 of each action that was not taken: {short(target, 40)} has the "
                "reward at one alone",
            )


@RULES.add("returns-across-episodes", "actions are credited with what happened in the next episode", "start again where an episode ends: running = reward + gamma * running * (1 - done)")
def _across(program: Program) -> Iterator[Remark]:
    """Rewards of several episodes in a row that are added up from the end, in a function that never looks where one
    ends, although what it is given knows."""
    for name, classes in program.classes.items():
        kept = _kept_together(classes[0]) if len(classes) == 1 else None
        if kept is None:
            continue
        rewards, ends, keeping = kept
        for loop in program.everywhere(ast.For):
            if not isinstance(loop, ast.For) or not _goes_backwards(loop):
                continue
            for node in loop.body:
                frame = program.frame(node)
                whole = isinstance(node, ast.Assign) and is_name(node.targets[0]) and is_binary(node.value, ast.Add)
                read = {one.attr for one in ast.walk(frame) if isinstance(one, ast.Attribute)}
                of = [one for one in ast.walk(node) if is_attribute(one, rewards)] if whole and ends not in read else []
                running = text_of(node.targets[0]) if isinstance(node, ast.Assign) else ""
                if of and running in names_read(node) and not any(isinstance(one, ast.If) for one in loop.body) and (_begins_anew(program) or _kept_without_end(program, keeping)):
                    yield Remark(node, f"{short(node)} goes on across the ends of episodes, which {name} keeps in {ends}")


def _kept_together(of: ast.ClassDef) -> tuple[str, str, str] | None:
    """The attributes in which a class collects rewards and the ends of episodes, step by step, and the method."""
    for function in of.body:
        added = [one.func.value.attr for one in ast.walk(function) if is_method(one, "append") and isinstance(one.func.value, ast.Attribute)]
        added += [
            one.value.attr for one in ast.walk(function)
            if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and isinstance(one.value, ast.Attribute)
        ]
        rewards, ends = [one for one in added if _REWARD.match(one)], [one for one in added if _END.search(one)]
        if rewards and ends:
            return rewards[0], ends[0], getattr(function, "name", "")
    return None


def _goes_backwards(loop: ast.For) -> bool:
    """Whether a loop goes from the last to the first."""
    counted = is_call(loop.iter, "range") and len(loop.iter.args) == 3 and text_of(loop.iter.args[2]) == "-1"
    return counted or any(is_name(one, "reversed") for one in ast.walk(loop.iter))


def _kept_without_end(program: Program, keeping: str) -> bool:
    """Whether steps are kept by a `for` over a range that nothing leaves: the environments begin anew themselves."""
    for call in program.calls():
        loop = next(iter(program.loops(call)), None) if is_method(call, keeping) else None
        if isinstance(loop, ast.For) and is_call(loop.iter, "range"):
            return not any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(loop))
    return False


def _begins_anew(program: Program) -> bool:
    """Whether an episode may begin in the middle of what is collected: reset() under a condition in a loop."""
    return any(is_method(one, "reset") and program.loops(one) and any(isinstance(around, (ast.If, ast.IfExp)) for around in program.parents(one)) for one in program.calls())


@RULES.add("time-limit-as-end", "what comes after the limit counts as nothing: the values of states near it are too low, and the state does not tell them apart", "keep both: the targets stop where the task has ended (terminated), and only the episode where its time is up (truncated)")
def _limit_as_end(program: Program) -> Iterator[Remark]:
    """An environment that ends its episodes at a number of steps, which it does not show, and targets that take no
    value from there on."""
    mask = next(_masks(program), None)
    if mask is None or any(_TRUNCATED.search(source.text) for source in program.sources):
        return
    for node, value in _ends_told(program):
        of = program.class_of(node)
        if of is None:
            continue
        given = [value, *(found for one in ast.walk(value) if isinstance(one, ast.Name) and (found := _set_before(program, one)) is not None)]
        compared = [(part, one) for part in given for one in ast.walk(part) if isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.GtE, ast.Gt, ast.Eq))]
        limits = [(part, one, one.left) for part, one in compared if isinstance(one.left, ast.Attribute) and _counts(of, one.left)]
        if len(limits) != 1 or not _alternatives(limits[0][0], limits[0][1]) or not (limits[0][0] is value or _alternatives(value, limits[0][1])):
            continue
        if any(is_method(one, "learn", "update", "train_step") for one in program.calls() if program.class_of(one) is of):
            continue
        _, limit, counter = limits[0]
        reads = [one for one in ast.walk(of) if is_attribute(one, counter.attr) and isinstance(one.ctx, ast.Load)]
        if all(_only_counts(program, one) for one in reads):
            told = f"{short(node)} ends an episode when its time is up" if node is limit else f"{short(node)} is true where the time is up ({short(limit)}) too"
            yield Remark(node, f"{told}, and {short(mask)} (line {mask.lineno}) takes no value from the state after it")
            return


def _ends_told(program: Program) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What an environment tells as the end of an episode: by its name, or behind the reward that `step` returns."""
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if is_name(target) and _DONE.match(target.id):
            yield node, node.value
    for given in program.everywhere(ast.Return):
        if getattr(program.frame(given), "name", "") == "step" and isinstance(given.value, ast.Tuple):
            others = [one for place, one in enumerate(given.value.elts) if place != 2 and _is_condition(program, one)]
            yield from ((one, one) for one in given.value.elts[2:3] if isinstance(one, ast.Compare | ast.BoolOp | ast.BinOp) and not others)


def _is_condition(program: Program, node: ast.AST) -> bool:
    """Whether what a step gives back is true or false, by itself or by what its name was set to."""
    told = _set_before(program, node) if isinstance(node, ast.Name) else node
    either = isinstance(told, ast.UnaryOp) and isinstance(told.op, (ast.Not, ast.Invert))
    return either or isinstance(told, (ast.Compare, ast.BoolOp)) or (isinstance(told, ast.Constant) and isinstance(told.value, bool)) or is_call(told, "bool")


def _set_before(program: Program, name: ast.Name) -> ast.expr | None:
    """What a name was set to in the function that reads it, where that is told once."""
    given = [one.value for one in ast.walk(program.frame(name)) if isinstance(one, ast.Assign) and is_name(one.targets[0], name.id)]
    return given[0] if len(given) == 1 else None


def _masks(program: Program) -> Iterator[ast.BinOp]:
    """`1 - done` where a product with it takes the value of the state that follows, also if it was stored so."""
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Sub) or number_in(node.left) != 1 or not _ENDS.search(text_of(node.right)):
            continue
        statement = next((one for one in program.parents(node) if isinstance(one, ast.stmt)), None)
        if not isinstance(statement, (ast.Assign, ast.Return, ast.AugAssign)) or statement.value is None:
            continue
        if statement.value is not node:
            used: list[ast.AST] = [statement.value]
        else:
            name = text_of(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
            frame = program.frame(node)
            used = [one for one in ast.walk(frame) if is_binary(one, ast.Mult) and name in names_read(one)]
            kept = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], (ast.Subscript, ast.Attribute))
            used += [one for one in program.everywhere(ast.BinOp) if kept and is_binary(one, ast.Mult) and _discounted(program, one)]
        if any(is_binary(part, ast.Mult) and _VALUES.search(text_of(part)) for one in used for part in ast.walk(one)):
            yield node


def _counts(of: ast.ClassDef, node: ast.Attribute) -> bool:
    """Whether an attribute counts steps: it grows by 1 in the class."""
    return any(
        isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and number_in(one.value) == 1 and text_of(one.target) == text_of(node)
        for one in ast.walk(of)
    )


def _alternatives(value: ast.expr, limit: ast.Compare) -> bool:
    """Whether a condition is a limit alone, or one of several of which any ends the episode."""
    if value is limit:
        return True
    ors = (isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or)) or is_binary(value, ast.BitOr)
    return ors or (isinstance(value, ast.Call) and last_word(value.func) in ("logical_or", "bool", "bitwise_or", "full"))


def _only_counts(program: Program, node: ast.AST) -> bool:
    """Whether an attribute is read to be compared, to be counted on, to be set in part, or to be noted elsewhere."""
    statement = next(one for one in program.parents(node) if isinstance(one, ast.stmt))
    noted = statement.target if isinstance(statement, ast.AugAssign) else statement.value.func if isinstance(statement, ast.Expr) and is_method(statement.value, "append", "extend") else None
    if isinstance(noted, ast.Attribute):
        return True
    if _is_reported(program, node):
        return True
    around = program.parent.get(node)
    if isinstance(around, ast.Subscript):
        if isinstance(around.ctx, ast.Store):
            return True
        around = program.parent.get(around)
    return isinstance(around, (ast.Compare, ast.AugAssign))


def _is_reported(program: Program, node: ast.AST) -> bool:
    """Whether what is read is only given back behind the end that `step` tells, as more about the episode."""
    frame = program.frame(node)
    statement = next(one for one in program.parents(node) if isinstance(one, ast.stmt))
    name = statement.targets[0] if isinstance(statement, ast.Assign) else None
    given = [one.value.elts[3:] for one in ast.walk(frame) if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple)] if getattr(frame, "name", "") == "step" else []
    behind = {id(part) for parts in given for one in parts for part in ast.walk(one)}
    read = [one for one in ast.walk(frame) if isinstance(name, ast.Name) and is_name(one, name.id) and isinstance(one.ctx, ast.Load)]
    return id(node) in behind or (bool(read) and all(id(one) in behind for one in read))


RULES.add(
    "end-of-another-step",
    "the last step of an episode takes the value of the state that the next one begins in, and what ended the episode never reaches the steps before",
    "read the end of the same step as the reward, 1 - dones[t]; or keep the end before the step, as what the state begins with",
)(end_of_another_step)
RULES.add(
    "returns-before-advantages",
    "the values are learned towards themselves: no reward ever reaches them",
    "add up the advantages first: returns = advantages + values, after the loop that fills them",
)(returns_before_advantages)
