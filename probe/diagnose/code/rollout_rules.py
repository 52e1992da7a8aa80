"""Environments and episodes: states, returns, targets and policies; and the signs of terms that make sense one way
only. Ranks are in `rank_rules`. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Function, Program, own_nodes
from probe.diagnose.code.rank_rules import RULES as RANKS
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.tracing import Trace, keyword, own, trace

_ENDS = ("done", "dones", "terminated", "terminal", "terminals", "is_done", "done_batch", "batch_done", "dones_batch", "done_b", "b_done")
_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss", "cross_entropy", "smooth_l1_loss", "nll_loss")


def _short(program: Program, node: ast.AST, longest: int = 60) -> str:
    text = program.text(node)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _functions(program: Program) -> Iterator[Function | ast.Module]:
    for source in program.sources:
        yield source.tree
    for functions in program.functions.values():
        yield from functions


def _method(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def _names(node: ast.AST | None) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node is not None else set()


# Signs of terms ---------------------------------------------------------------------


def _minimized(program: Program, known: Trace) -> Iterator[tuple[list[tuple[int, ast.AST]], ast.AST]]:
    """The terms of what is minimized, with their signs: of what `backward` is called on, what a training_step
    returns, and what a function returns that adds a loss of torch to something."""
    for call in program.calls():
        if _method(call, "backward") and isinstance(call.func, ast.Attribute) and not call.args:
            at = call.func.value
            if _method(at, "scale") and isinstance(at, ast.Call) and at.args:
                at = at.args[0]
            yield list(_expanded(program, known, at)), call
    for node in program.everywhere(ast.Return):
        assert isinstance(node, ast.Return)
        if node.value is None:
            continue
        for value in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            terms = list(_expanded(program, known, value)) if isinstance(value, (ast.BinOp, ast.Name, ast.Call)) else []
            losses = {sign for sign, term in terms if _is_loss(program, term)}
            if losses == {1} and len(terms) > 1:
                yield terms, node


def _is_loss(program: Program, term: ast.AST) -> bool:
    if not isinstance(term, ast.Call):
        return False
    kind = program.kind(term.func)
    name = program.dotted(term.func) or ""
    return name.startswith("torch.nn.functional.") and name.rpartition(".")[2] in _LOSSES or (kind is not None and kind.family == "loss")


def _expanded(program: Program, known: Trace, node: ast.AST, sign: int = 1, depth: int = 6) -> Iterator[tuple[int, ast.AST]]:
    """Terms, through functions of the program and through lists that are filled by one append."""
    for one, term in known.terms(node, sign):
        inner: ast.AST | None = None
        if depth and isinstance(term, ast.Call):
            name = program.dotted(term.func) or ""
            if (name in ("torch.cat", "torch.stack") or (isinstance(term.func, ast.Name) and term.func.id == "sum")) and len(term.args) >= 1:
                inner = _appended(program, known, term.args[0])
            elif (local := program.local_function(term)) is not None:
                inner = _result(local, None)
        elif depth and isinstance(term, ast.Name):
            given = known.given(term)
            if given is not None and isinstance(given.value, ast.Call) and given.index is not None:
                local = program.local_function(given.value)
                inner = _result(local, given.index) if local is not None else None
        if inner is None:
            yield one, term
        else:
            yield from _expanded(program, known, inner, one, depth - 1)


def _result(function: Function, index: int | None) -> ast.AST | None:
    """What a function with one return gives."""
    returns = [node.value for node in own_nodes(function) if isinstance(node, ast.Return) and node.value is not None]
    if len(returns) != 1:
        return None
    if isinstance(returns[0], ast.Tuple):
        return returns[0].elts[index] if index is not None and index < len(returns[0].elts) else None
    return returns[0] if index is None else None


def _appended(program: Program, known: Trace, node: ast.AST) -> ast.AST | None:
    """The one thing that is appended to a list."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return None
    if not isinstance(node, ast.Name):
        return None
    found = [
        one.args[0] for one in own_nodes(program.scope(node))
        if isinstance(one, ast.Call) and _method(one, "append") and isinstance(one.func, ast.Attribute) and len(one.args) == 1
        and isinstance(one.func.value, ast.Name) and one.func.value.id == node.id
    ]
    return found[0] if len(found) == 1 else None


def _signs(program: Program) -> Iterator[Remark]:
    known = trace(program)
    reported: set[ast.AST] = set()
    for terms, whole in _minimized(program, known):
        for remark in (*_of_kl(program, terms), *_of_policy(program, known, terms), *_of_clip(program, known, terms)):
            if remark.node not in reported:
                reported.add(remark.node)
                yield remark if hasattr(remark.node, "lineno") else Remark(whole, remark.said)


def _exponent(program: Program, node: ast.AST) -> str | None:
    """The text of x in torch.exp(x) and x.exp()."""
    if not isinstance(node, ast.Call):
        return None
    if program.dotted(node.func) == "torch.exp" and node.args:
        return program.text(node.args[0])
    return program.text(node.func.value) if _method(node, "exp") and isinstance(node.func, ast.Attribute) else None


def _square(program: Program, node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return isinstance(node.right, ast.Constant) and node.right.value == 2
    if isinstance(node, ast.Call):
        given = node.args[-1] if node.args else None
        two = isinstance(given, ast.Constant) and given.value == 2
        return (two and (_method(node, "pow") or program.dotted(node.func) == "torch.pow")) or _method(node, "square")
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and program.text(node.left) == program.text(node.right)


def _of_kl(program: Program, terms: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    """The divergence of a Gaussian from the standard one: exp(v) + m**2 - v - 1, halved, is added to a loss."""
    for sign, term in terms:
        variance = _exponent(program, term)
        if variance is None or not sign:
            continue
        plain = [one for one, other in terms if program.text(other) == variance]
        squares = [one for one, other in terms if _square(program, other)]
        ones = [one for one, other in terms if isinstance(other, ast.Constant) and other.value == 1]
        if len(plain) != 1 or len(squares) != 1 or len(ones) != 1:
            continue
        if (sign, squares[0], plain[0], ones[0]) == (-1, -1, 1, 1):
            yield Remark(term, f"the KL divergence with {_short(program, term)} is subtracted from what is minimized: training makes it larger without end")
        elif plain[0] == sign or squares[0] != sign:
            yield Remark(term, f"the KL divergence has {_short(program, term)}, {variance} and the square of the mean with signs that do not belong together")


def _variance_as_deviation(program: Program) -> Iterator[Remark]:
    known = trace(program)
    names = set()
    for terms, _ in _minimized(program, known):
        for _, term in terms:
            variance = _exponent(program, term)
            if variance and any(program.text(other) == variance for _, other in terms) and any(_square(program, other) for _, other in terms):
                names.add(variance.rpartition(".")[2])
    for node in program.everywhere(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if not isinstance(node.op, ast.Mult):
            continue
        for noise, scale in ((node.left, node.right), (node.right, node.left)):
            drawn = known.value(noise)
            exponent = _exponent(program, known.value(scale))
            if exponent is not None and exponent.rpartition(".")[2] in names and isinstance(drawn, ast.Call):
                if (program.dotted(drawn.func) or "") in ("torch.randn_like", "torch.randn") or _method(drawn, "normal_"):
                    yield Remark(node, f"the noise is scaled by exp({exponent}), and the KL divergence takes {exponent} for the logarithm of the variance: the deviation is exp(0.5 * {exponent})")


def _policy_product(program: Program, known: Trace, term: ast.AST) -> tuple[int, ast.AST] | None:
    """Of a product of a log probability and what an action was worth: its sign, and the worth."""
    sign, factors, waiting = 1, [], [term]
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.BinOp) and isinstance(at.op, ast.Mult):
            waiting += [at.left, at.right]
        elif isinstance(at, ast.UnaryOp) and isinstance(at.op, ast.USub):
            sign = -sign
            waiting.append(at.operand)
        else:
            value = known.value(at)
            if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
                sign, value = -sign, known.value(value.operand)
            factors.append((at, value))
    logs = [at for at, value in factors if _is_log_prob(program, at, _stacked(program, known, value))]
    worth = [at for at, _ in factors if any(word in program.text(at).lower() for word in ("adv", "return", "reward", "delta", "td_err", "gae"))]
    if len(logs) != 1 or len(worth) != 1 or len(factors) > 3:
        return None
    return sign, worth[0]


def _stacked(program: Program, known: Trace, value: ast.AST) -> ast.AST:
    """What is put into the list that torch.stack or torch.cat makes a tensor of."""
    if isinstance(value, ast.Call) and program.dotted(value.func) in ("torch.stack", "torch.cat") and value.args:
        return _appended(program, known, value.args[0]) or value
    return value


def _is_log_prob(program: Program, at: ast.AST, value: ast.AST) -> bool:
    while isinstance(value, ast.Call) and _method(value, "sum", "squeeze", "mean", "view") and isinstance(value.func, ast.Attribute):
        value = value.func.value
    if _method(value, "log_prob"):
        return True
    plain = isinstance(at, ast.Name) and at.id.lower() in ("log_prob", "log_probs", "logp", "logprob", "logprobs", "action_log_probs")
    return plain and isinstance(value, ast.Name)


def _of_policy(program: Program, known: Trace, terms: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    for sign, term in terms:
        if not sign:
            continue
        if _method(term, "entropy") and isinstance(term, ast.Call) and isinstance(term.func, ast.Attribute) and not term.args:
            if sign > 0 and any(_method(one, "log_prob") for one in program.calls()):
                yield Remark(term, f"{_short(program, term)} is added to what is minimized: training makes the policy surer of itself instead of letting it explore")
            continue
        product = _policy_product(program, known, term)
        if product is not None and sign * product[0] > 0:
            said = f"{_short(program, term)} is minimized without a minus: actions with a high {_short(program, product[1], 30)} become less probable"
            yield Remark(term, said)


def _of_clip(program: Program, known: Trace, terms: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    """The clipped objective of PPO: the smaller one of two gains, or the larger one of two losses."""
    for sign, term in terms:
        if not isinstance(term, ast.Call) or len(term.args) != 2 or not sign:
            continue
        last = (program.dotted(term.func) or "").removeprefix("torch.")
        if last not in ("min", "max", "minimum", "maximum"):
            continue
        signs, clipped = [], 0
        for operand in term.args:
            value, one = known.value(operand), 1
            nodes = list(known.origins(value, 2))
            clipped += any(_method(part, "clamp", "clip") or (isinstance(part, ast.Call) and program.dotted(part.func) in ("torch.clamp", "torch.clip")) for part in nodes)
            for part in ast.walk(value):
                if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub) and not isinstance(part.operand, ast.Constant):
                    one = -one
            signs.append(one)
            if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
                clipped = 9
        if clipped != 1 or signs[0] != signs[1]:
            continue
        if not any(isinstance(part, ast.Call) and _exponent(program, part) for operand in term.args for part in known.origins(operand, 4)):
            continue
        smaller = last.startswith("min")
        if signs[0] * sign > 0:
            yield Remark(term, f"{_short(program, term)} is minimized and not maximized: actions that were good become less probable")
        elif smaller != (signs[0] > 0):
            yield Remark(term, f"{_short(program, term)} takes the {'smaller' if smaller else 'larger'} one of the two, which undoes the clip")


def _ratio(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        inner: ast.AST | None = None
        if program.dotted(call.func) == "torch.exp" and call.args:
            inner = call.args[0]
        elif _method(call, "exp") and isinstance(call.func, ast.Attribute):
            inner = call.func.value
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            left, right = program.text(inner.left).lower(), program.text(inner.right).lower()
            if "old" in left and "old" not in right and all("log" in one for one in (left, right)):
                function = program.function_of(call)
                if function is not None and any(word in program.text(function) for word in ("clamp", "clip")):
                    yield Remark(call, f"{_short(program, call)} divides the old probability by the new one: the ratio of PPO is the other way round")


# Returns and targets -----------------------------------------------------------------


def _reversed(node: ast.AST) -> bool:
    """Whether a loop runs from the end to the start."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id == "reversed":
            return True
        if isinstance(one, ast.Slice) and isinstance(one.step, ast.UnaryOp):
            return True
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "range" and len(one.args) == 3:
            return True
        if isinstance(one, ast.Attribute) and one.attr in ("flip", "flipud"):
            return True
    return False


def _discounted(node: ast.stmt) -> tuple[str, ast.AST] | None:
    """The name and the reward of `R = reward + gamma * R`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return None
    name, value = node.targets[0].id, node.value
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for reward, rest in ((value.left, value.right), (value.right, value.left)):
        if isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mult) and name in _names(rest) and name not in _names(reward):
            if any("rew" in one.lower() or one == "r" for one in _names(reward)):
                return name, reward
    return None


def _returns(program: Program) -> Iterator[Remark]:
    for loop in program.everywhere(ast.For):
        assert isinstance(loop, ast.For)
        for number, node in enumerate(loop.body):
            found = _discounted(node)
            if found is None:
                continue
            name, reward = found
            if not (_names(reward) & _names(loop.target)) or _method(loop.iter, "step"):
                continue
            if isinstance(loop.iter, ast.Name) and "revers" in loop.iter.id.lower():
                continue
            if any(isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "step" for one in ast.walk(loop)):
                continue
            direct = isinstance(loop.iter, (ast.Name, ast.Attribute)) or (isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id in ("zip", "range", "enumerate"))
            if direct and not _reversed(loop.iter) and isinstance(node, ast.Assign) and not _turned(program, loop):
                yield Remark(node, f"{_short(program, node)} runs over {_short(program, loop.iter, 40)} from the start: each return adds up the rewards before it and not those after it")
            elif _reversed(loop.iter):
                yield from _not_turned(program, loop, loop.body[number + 1 :], name)
                yield from _end_unused(program, loop, node)


def _turned(program: Program, loop: ast.For) -> bool:
    """Whether what a loop runs over was turned round before."""
    block = program.function_of(loop) or program.scope(loop)
    names = _names(loop.iter)
    for one in own_nodes(block):
        if _method(one, "reverse") and isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and _names(one.func.value) & names:
            return True
        if isinstance(one, ast.Assign) and _names(one.targets[0]) & names and _reversed(one.value):
            return True
        if isinstance(one, ast.Call) and _method(one, "insert") and isinstance(one.func, ast.Attribute) and _names(one.func.value) & names:
            return True
    return False


def _not_turned(program: Program, loop: ast.For, rest: list[ast.stmt], name: str) -> Iterator[Remark]:
    for statement in rest:
        if not isinstance(statement, ast.Expr) or not _method(statement.value, "append") or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        assert isinstance(call.func, ast.Attribute)
        if len(call.args) != 1 or name not in _names(call.args[0]) or not isinstance(call.func.value, ast.Name):
            continue
        kept = call.func.value.id
        around = program.function_of(loop) or program.scope(loop)
        later = [one for one in ast.walk(around) if getattr(one, "lineno", 0) > call.lineno]
        text = [one for one in later if isinstance(one, (ast.Call, ast.Subscript)) and kept in _names(one)]
        if any(_reversed(one) or _method(one, "reverse", "sort", "index") or _method(one, "popleft", "pop") for one in text):
            continue
        if any(isinstance(one, ast.Return) and kept in _names(one) for one in later) and not any(_is_tensor(program, one) for one in text):
            continue  # whoever called may turn it round
        if any(_is_tensor(program, one) for one in text):
            yield Remark(call, f"{kept} is filled from the last step to the first and never turned round: each return belongs to another step")


def _is_tensor(program: Program, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (program.dotted(node.func) or "").startswith(("torch.", "numpy."))


def _end_unused(program: Program, loop: ast.For, node: ast.stmt) -> Iterator[Remark]:
    ends = [one for one in _names(loop.target) if one in _ENDS]
    read = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    if len(ends) == 1 and ends[0] not in read:
        yield Remark(node, f"{_short(program, node)} does not use {ends[0]}, which the loop reads: returns go on from one episode into the one before it")


def _end_ignored(program: Program) -> Iterator[Remark]:
    """A batch is unpacked with the ends of episodes, and the target of its values does not use them."""
    for function in _functions(program):
        for node in own(function, ast.Assign):
            assert isinstance(node, ast.Assign)
            target = node.targets[0]
            if not isinstance(target, ast.Tuple) or len(target.elts) < 4:
                continue
            names = [one.id for one in target.elts if isinstance(one, ast.Name)]
            ends = [one for one in names if one in _ENDS]
            rewards = [one for one in names if "rew" in one.lower()]
            if len(ends) != 1 or not rewards or _method(node.value, "step"):
                continue
            later = [one for one in own_nodes(function) if getattr(one, "lineno", 0) > node.lineno]
            read = [one for one in later if isinstance(one, ast.Name) and one.id == ends[0] and isinstance(one.ctx, ast.Load)]
            used = [one for one in read if not _converts(program, one, ends[0])]
            bootstrap = next((one for one in later if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add) and _bootstraps(program, one, rewards[0])), None)
            if bootstrap is not None and not used:
                yield Remark(bootstrap, f"{_short(program, bootstrap)} takes the value of what follows an end too: {ends[0]} is unpacked and not used")


def _converts(program: Program, use: ast.Name, name: str) -> bool:
    """Whether a use only makes the variable anew: `done = torch.tensor(done)`."""
    for one in program.parents(use):
        if isinstance(one, ast.stmt):
            return isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == name
    return False


def _bootstraps(program: Program, node: ast.BinOp, reward: str) -> bool:
    for one, rest in ((node.left, node.right), (node.right, node.left)):
        if reward in _names(one) and isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mult):
            return any(word in program.text(rest).lower() for word in ("gamma", "discount"))
    return False


def _column(program: Program, known: Trace, node: ast.AST) -> bool:
    """Whether a value is a column (N, 1): gather along axis 1 with a column of indices."""
    value = known.value(node)
    if not _method(value, "gather") or not isinstance(value, ast.Call) or len(value.args) != 2 or known.number(value.args[0]) not in (1, -1):
        return False
    index = known.value(value.args[1])
    while _method(index, "long", "to", "type", "int") and isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute):
        index = known.value(index.func.value)
    if isinstance(index, ast.Subscript) and program.text(index.slice).strip("()") == ":, None":
        return True
    if not isinstance(index, ast.Call) or not isinstance(index.func, ast.Attribute):
        return False
    numbers = [known.number(one) for one in index.args]
    return (index.func.attr in ("view", "reshape") and numbers == [-1, 1]) or (index.func.attr == "unsqueeze" and numbers in ([1], [-1]))


def _row(program: Program, known: Trace, node: ast.AST) -> bool:
    """Whether a value of the next states is a row (N): the largest along axis 1, without keeping it."""
    value = known.value(node)
    while _method(value, "detach") and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = known.value(value.func.value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Mult)):
        return _row(program, known, value.left) or _row(program, known, value.right)
    inner: ast.AST | None = None
    if isinstance(value, ast.Subscript) and known.number(value.slice) == 0:
        inner = known.value(value.value)
    elif isinstance(value, ast.Attribute) and value.attr == "values":
        inner = known.value(value.value)
    if not _method(inner or node, "max") or not isinstance(inner, ast.Call) or keyword(inner, "keepdim", 1) is not None:
        return False
    return known.number(keyword(inner, "dim", 0)) in (1, -1)


def _columns_and_rows(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for node in program.everywhere(ast.BinOp):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if _column(program, known, one) and _row(program, known, other):
                    yield Remark(node, f"{_short(program, node)} subtracts a row (N) from a column (N, 1): each prediction is compared with every target")
    for call in program.calls():
        name = (program.dotted(call.func) or "").rpartition(".")[2]
        kind = program.kind(call.func)
        if (name in ("mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss") or (kind is not None and kind.family == "loss")) and len(call.args) >= 2:
            one, other = call.args[:2]
            if (_column(program, known, one) and _row(program, known, other)) or (_column(program, known, other) and _row(program, known, one)):
                said = f"{_short(program, call)} compares a column (N, 1) with a row (N): each prediction is compared with every target"
                yield Remark(call, said)


# Copies of a network --------------------------------------------------------------------


def _averages(program: Program) -> Iterator[Remark]:
    """A slow copy that is a*slow + (1-a)*fast with an `a` near 0 is the fast network itself."""
    known = trace(program)
    for call in program.calls():
        if not _method(call, "copy_") or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
            continue
        yield from _of_average(program, known, call, call.func.value, call.args[0])
    for node in program.everywhere(ast.Assign):
        assert isinstance(node, ast.Assign)
        if isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "data":
            yield from _of_average(program, known, node, node.targets[0], node.value)
    for call in program.calls():
        if _method(call, "lerp_") and isinstance(call.func, ast.Attribute) and len(call.args) == 2:
            share = known.number(call.args[1])
            if share is not None and 0.9 <= share < 1:
                yield Remark(call, f"{_short(program, call)} keeps only {1 - share:g} of the old average: decay and share of the new weights are the wrong way round")


def _of_average(program: Program, known: Trace, node: ast.AST, written: ast.AST, value: ast.AST) -> Iterator[Remark]:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return
    slow = _bare(program, written)
    shares = []
    for part in (value.left, value.right):
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Mult):
            return
        for factor, tensor in ((part.left, part.right), (part.right, part.left)):
            if known.number(factor) is not None:
                shares.append((known.number(factor), _bare(program, tensor)))
                break
        else:
            return
    kept = [share for share, name in shares if name == slow]
    if len(kept) != 1 or len(shares) != 2 or shares[0][1] == shares[1][1]:
        return
    other = next(share for share, name in shares if name != slow)
    if kept[0] is not None and other is not None and abs(kept[0] + other - 1) < 1e-6 and kept[0] <= 0.1 and other < 1:
        yield Remark(node, f"{_short(program, node)} keeps only {kept[0]:g} of the old average: decay and share of the new weights are the wrong way round")


def _bare(program: Program, node: ast.AST) -> str:
    while isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return program.text(node)


def _from_itself(program: Program) -> Iterator[Remark]:
    """A copy that is updated from itself, and a copy that is no copy."""
    for call in program.calls():
        if _method(call, "load_state_dict") and isinstance(call.func, ast.Attribute) and call.args and _method(call.args[0], "state_dict"):
            source = call.args[0]
            assert isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute)
            one, other = program.text(call.func.value), program.text(source.func.value)
            if one == other:
                yield Remark(call, f"{_short(program, call)} loads a network's weights into itself")
            else:
                yield from _one_object(program, call, one, other)
    for loop in program.everywhere(ast.For):
        assert isinstance(loop, ast.For)
        if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id == "zip" and len(loop.iter.args) == 2:
            one, other = loop.iter.args
            if _method(one, "parameters") and program.text(one) == program.text(other) and any(_method(part, "copy_", "lerp_", "mul_") for part in ast.walk(loop)):
                yield Remark(loop, f"the loop runs over {program.text(one)} twice: the average is updated from itself")


def _one_object(program: Program, call: ast.Call, one: str, other: str) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign):
        assert isinstance(node, ast.Assign)
        texts = [program.text(target) for target in node.targets]
        if len(texts) == 2 and {one, other} == set(texts) and isinstance(node.value, ast.Call):
            yield Remark(node, f"{_short(program, node)} makes one network with two names: {_short(program, call)} changes nothing")
        if isinstance(node.value, (ast.Name, ast.Attribute)) and (program.text(node.value), texts[0]) in ((one, other), (other, one)):
            if program.class_of(node) is program.class_of(call) and (program.class_of(node) is not None or program.function_of(node) is program.function_of(call)):
                if sum(1 for again in program.everywhere(ast.Assign) if isinstance(again, ast.Assign) and program.text(again.targets[0]) == texts[0]) == 1:
                    yield Remark(node, f"{program.text(node)} makes no copy: both are the same network, and {_short(program, call)} changes nothing")


# Steps of an environment --------------------------------------------------------------------


def _transitions(program: Program) -> Iterator[Remark]:
    """States that never advance, or that are overwritten before they are stored."""
    for loop in program.everywhere(ast.For, ast.While):
        assert isinstance(loop, (ast.For, ast.While))
        for number, node in enumerate(loop.body):
            if not isinstance(node, ast.Assign) or not _method(node.value, "step") or not isinstance(node.targets[0], ast.Tuple):
                continue
            target, call = node.targets[0], node.value
            if len(target.elts) not in (3, 4, 5) or not isinstance(target.elts[0], ast.Name) or not isinstance(call, ast.Call) or len(call.args) != 1:
                continue
            following = target.elts[0].id
            yield from _stale(program, loop, node, following, number)
            yield from _too_late(program, loop, following, number)


def _stale(program: Program, loop: ast.For | ast.While, node: ast.Assign, following: str, number: int) -> Iterator[Remark]:
    state = following.removeprefix("next_").removeprefix("new_").removesuffix("_next").removesuffix("_")
    if state == following or not state or not isinstance(node.value, ast.Call):
        return
    acted = _names(node.value.args[0])
    chosen = [node.value.args[0]]
    for part in loop.body[:number]:
        chosen += [one.value for one in ast.walk(part) if isinstance(one, ast.Assign) and acted & {name for target in one.targets for name in _names(target)}]
    reads = any(
        isinstance(one, ast.Name) and one.id == state and isinstance(program.parent.get(one), (ast.Call, ast.keyword))
        for value in chosen for one in ast.walk(value)
    )
    written = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    scope = program.function_of(loop) or program.scope(loop)
    made = any(isinstance(one, ast.Name) and one.id == state and isinstance(one.ctx, ast.Store) for one in ast.walk(scope))
    if reads and made and state not in written:
        yield Remark(node, f"{state} is never set to {following} in the loop: every action is chosen for the first state")


def _too_late(program: Program, loop: ast.For | ast.While, following: str, number: int) -> Iterator[Remark]:
    moved: tuple[str, ast.stmt] | None = None
    for statement in loop.body[number + 1 :]:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) and isinstance(statement.value, ast.Name) and statement.value.id == following:
            moved = statement.targets[0].id, statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple):
            for name, value in zip(statement.targets[0].elts, statement.value.elts):
                if isinstance(name, ast.Name) and isinstance(value, ast.Name) and value.id == following:
                    moved = name.id, statement
        elif isinstance(statement, (ast.If, ast.For, ast.While)) and moved is None:
            continue
        elif moved is not None and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            given = call.args[0].elts if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple) else call.args
            names = [one.id for one in given if isinstance(one, ast.Name)]
            if len(given) >= 4 and moved[0] in names and following in names and _method(call, "append", "push", "add", "store", "remember", "store_transition", "put", "cache", "memorize"):
                yield Remark(call, f"{moved[0]} is {following} since line {moved[1].lineno}, so {_short(program, call)} stores the state after the action twice")
                return


def _drawn_twice(program: Program) -> Iterator[Remark]:
    """An action is drawn for the environment, and another one for what is learned from."""
    for function in _functions(program):
        draws = [one for one in own(function, ast.Call) if _method(one, "sample", "rsample") and isinstance(one, ast.Call) and not one.args]
        for call in draws:
            around = program.parent.get(call)
            while _method(around or call, "detach", "item") and around is not None:
                around = program.parent.get(around)
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            if not isinstance(around, ast.Call) or not _method(around, "log_prob") or not isinstance(around.func, ast.Attribute):
                continue
            of = program.text(call.func.value)
            if program.text(around.func.value) != of:
                continue
            other = [one for one in draws if one is not call and isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and program.text(one.func.value) == of]
            if other:
                yield Remark(around, f"{_short(program, around)} draws another action than line {getattr(other[0], 'lineno', 0)}: the log probability is not that of the action taken")


def _explores(program: Program, nodes: list[ast.AST]) -> bool:
    for part in nodes:
        for one in ast.walk(part):
            if _method(one, "randrange", "randint", "choice") or (_method(one, "sample") and "action_space" in program.text(one)):
                return True
    return False


def _exploration(program: Program) -> Iterator[Remark]:
    """The branch for random numbers below epsilon is the one that explores."""
    known = trace(program)
    for node in program.everywhere(ast.If):
        assert isinstance(node, ast.If)
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        left, right = test.left, test.comparators[0]
        below = isinstance(test.ops[0], (ast.Lt, ast.LtE))
        if not below and not isinstance(test.ops[0], (ast.Gt, ast.GtE)):
            continue
        if "eps" in program.text(left).lower():
            left, right, below = right, left, not below
        if "eps" not in program.text(right).lower() or not any(word in program.text(left) for word in ("rand", "sample", "uniform")):
            continue
        number = known.number(right)
        if isinstance(right, ast.BinOp) or (number is not None and number >= 0.5):
            continue  # a threshold of 0.9 that never falls is a probability to be greedy
        rest = list(node.orelse)
        around = getattr(program.parent.get(node), "body", [])
        if not rest and isinstance(around, list) and node in around and isinstance(node.body[-1], ast.Return):
            rest = around[around.index(node) + 1 :]
        greedy = ("argmax", ".max(")
        inside, outside = (" ".join(map(program.text, part)) for part in (node.body, rest))
        first, second = _explores(program, list(node.body)), _explores(program, list(rest))
        if first != second and first != below and any(word in (outside if first else inside) for word in greedy):
            yield Remark(node, f"if {_short(program, test)}: explores with the probability 1 - {program.text(right)} and not {program.text(right)}")


def _decays_at_once(program: Program) -> Iterator[Remark]:
    """min() with a floor, or max() with a ceiling: the clamp of a value that decays is on the wrong side."""
    known = trace(program)
    for node in program.everywhere(ast.Assign):
        assert isinstance(node, ast.Assign)
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "min" or len(call.args) != 2:
            continue
        name = program.text(node.targets[0])
        for floor, decayed in (call.args, reversed(call.args)):
            if isinstance(decayed, ast.BinOp) and isinstance(decayed.op, ast.Mult) and name in (program.text(decayed.left), program.text(decayed.right)):
                factor = known.number(decayed.right if program.text(decayed.left) == name else decayed.left)
                floored = "min" in program.text(floor).lower() or "end" in program.text(floor).lower() or (known.number(floor) or 9) < 0.5
                if factor is not None and 0 < factor < 1 and floored:
                    yield Remark(node, f"{_short(program, node)} takes the smaller one: {name} falls to {program.text(floor)} at once; max was meant")


RULES: tuple[Rule, ...] = (
    Rule("term-of-the-wrong-sign", "rollout", "training makes worse what the term should make better", "turn its sign round", _signs),
    Rule("variance-as-deviation", "rollout", "the noise and the divergence belong to two different distributions", "write std = torch.exp(0.5 * logvar)", _variance_as_deviation),
    Rule("ratio-upside-down", "rollout", "the policy is pushed away from what was good", "write torch.exp(new_log_prob - old_log_prob)", _ratio),
    Rule("returns-in-the-wrong-order", "rollout", "actions are rewarded for what came before them, or for those of another step", "go over reversed(rewards), and insert each return at the front", _returns),
    Rule("end-of-episode-ignored", "rollout", "the values of last states are estimated as if the episode went on", "multiply by (1 - done)", _end_ignored),
    Rule("column-against-row", "rollout", "the mean over all pairs pulls every value towards the mean of the targets", "squeeze the prediction, or unsqueeze the target", _columns_and_rows),
    Rule("average-forgets", "rollout", "the target is the trained network itself, and no longer steady", "write slow * (1 - tau) + fast * tau with a small tau", _averages),
    Rule("copy-of-itself", "rollout", "the second network never follows the first, or always is the first", "make it by copy.deepcopy and update it from the network that is trained", _from_itself),
    Rule("state-out-of-step", "rollout", "states, actions and what followed do not belong together", "store first, then write state = next_state", _transitions),
    Rule("action-drawn-twice", "rollout", "the policy is rewarded for an action that was not taken", "draw once, and use that action for both", _drawn_twice),
    Rule("exploration-inverted", "rollout", "the agent acts at random when it should use what it has learned, and the other way round", "explore where random() < epsilon", _exploration),
    Rule("clamped-on-the-wrong-side", "rollout", "what should fall slowly is at its last value from the first step on", "write max(lowest, value * decay)", _decays_at_once),
    *RANKS,
)
