"""Terms of a loss whose sign can only be one: divergence, entropy, policy gradient, the clip of PPO. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import is_parameter
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import exponent_of, terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_negative,
    is_read,
    last_word,
    names_set,
    number_in,
    operands,
    own,
    own_nodes,
    returned,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("rollout")
_WITH_RSAMPLE = (
    "Normal", "MultivariateNormal", "LogNormal", "Laplace", "Uniform", "Beta", "Gamma", "Gumbel", "StudentT",
)
"""Distributions of torch whose rsample() has a gradient."""

_COSTS = ("cost", "length", "dist", "loss", "regret", "penalt", "makespan", "energy", "error")
"""Words for what an action should make small: its product with a log probability is minimized as it is."""


def minimized(program: Program, flow: Flow) -> Iterator[tuple[list[tuple[int, ast.AST]], ast.AST]]:
    """The terms of what is minimized, with their signs: of what `backward` is called on, what a training_step
    returns, and what a function returns that adds a loss of torch to something."""
    for call in program.calls():
        if is_method(call, "backward") and not call.args:
            at = call.func.value
            if is_method(at, "scale") and at.args:
                at = at.args[0]
            yield list(_expanded(program, flow, at)), call
    for node in program.everywhere(ast.Return):
        if node.value is None:
            continue
        for value in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            made = isinstance(value, (ast.BinOp, ast.Name, ast.Call))
            added = list(_expanded(program, flow, value)) if made else []
            losses = {sign for sign, term in added if is_loss(program, term)}
            if losses == {1} and len(added) > 1:
                yield added, node


def _expanded(
    program: Program, flow: Flow, node: ast.AST, sign: int = 1, depth: int = 6
) -> Iterator[tuple[int, ast.AST]]:
    """Terms, through functions of the program and through lists that are filled by one append."""
    for one, term in terms(flow, node, sign):
        inner: ast.AST | None = None
        if depth and isinstance(term, ast.Call):
            name = program.called(term)
            if (name in ("torch.cat", "torch.stack") or is_call(term, "sum")) and len(term.args) >= 1:
                listed = term.args[0]
                inner = _appended(program, listed)
                if isinstance(listed, (ast.ListComp, ast.GeneratorExp)):
                    inner = listed.elt
            elif (local := program.local_function(term)) is not None:
                inner = _result(local, None)
        elif depth and isinstance(term, ast.Name):
            given = flow.given(term)
            if given is not None and isinstance(given.value, ast.Call) and given.place is not None:
                local = program.local_function(given.value)
                inner = _result(local, given.place) if local is not None else None
        if inner is None:
            yield one, term
        else:
            yield from _expanded(program, flow, inner, one, depth - 1)


def _result(function: Function, index: int | None) -> ast.AST | None:
    """What a function with one return gives."""
    found = [value for value in returned(function) if value is not None]
    if len(found) != 1:
        return None
    if isinstance(found[0], ast.Tuple):
        return found[0].elts[index] if index is not None and index < len(found[0].elts) else None
    return found[0] if index is None else None


def _appended(program: Program, node: ast.AST) -> ast.AST | None:
    """The one thing that is appended to a list."""
    if not isinstance(node, ast.Name):
        return None
    found = [
        one.args[0]
        for one in own_nodes(program.scope(node))
        if is_method(one, "append") and len(one.args) == 1 and is_name(one.func.value, node.id)
    ]
    return found[0] if len(found) == 1 else None


@RULES.add(
    "term-of-the-wrong-sign", "training makes worse what the term should make better", "turn its sign round"
)
def _signs(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    reported: set[ast.AST] = set()
    for added, whole in minimized(program, flow):
        for remark in (
            *_of_kl(program, added),
            *_of_policy(program, flow, added),
            *_of_clip(program, flow, added),
            *_of_penalty(program, flow, added),
        ):
            if remark.node not in reported:
                reported.add(remark.node)
                yield remark if hasattr(remark.node, "lineno") else Remark(whole, remark.said)


def _exponent(program: Program, node: ast.AST) -> str | None:
    """The text of x in torch.exp(x) and x.exp()."""
    inner = exponent_of(program, node)
    return None if inner is None else text_of(inner)


def _square(node: ast.AST) -> bool:
    if is_binary(node, ast.Pow):
        return number_in(node.right) == 2
    if is_method(node, "pow") and node.args:
        return number_in(node.args[-1]) == 2
    same = is_binary(node, ast.Mult) and text_of(node.left) == text_of(node.right)
    return same or is_method(node, "square")


def _of_kl(program: Program, added: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    """The divergence of a Gaussian from the standard one: half of exp(v) + m**2 - v - 1, is added."""
    for sign, term in added:
        variance = _exponent(program, term)
        if variance is None or not sign:
            continue
        plain = [one for one, other in added if text_of(other) == variance]
        squares = [one for one, other in added if _square(other)]
        ones = [one for one, other in added if isinstance(other, ast.Constant) and other.value == 1]
        if len(plain) != 1 or len(squares) != 1 or len(ones) != 1:
            continue
        if (sign, squares[0], plain[0], ones[0]) == (-1, -1, 1, 1):
            yield Remark(
                term,
                f"the KL divergence with {short(term)} is subtracted from what is minimized: "
                "training makes it larger without end",
            )
        elif plain[0] == sign or squares[0] != sign:
            yield Remark(
                term,
                f"the KL divergence has {short(term)}, {variance} and the square of the mean with "
                "signs that do not belong together",
            )


def is_kl(program: Program, added: list[tuple[int, ast.AST]]) -> bool:
    """Whether terms are those of a Gaussian's divergence: a logarithm, its exponential, and a square."""
    exponents = [_exponent(program, term) for _, term in added]
    logarithms = [text for text in exponents if any(text_of(other) == text for _, other in added)]
    return bool(logarithms) and any(_square(other) for _, other in added)


@RULES.add(
    "variance-as-deviation", "the noise and the divergence belong to two different distributions",
    "write std = torch.exp(0.5 * logvar)",
)
def _variance_as_deviation(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    names = set()
    for added, _ in minimized(program, flow):
        for _, term in added:
            variance = _exponent(program, term)
            plain = any(text_of(other) == variance for _, other in added)
            if variance and plain and any(_square(other) for _, other in added):
                names.add(variance.rpartition(".")[2])
    for node in program.everywhere(ast.BinOp):
        if not isinstance(node.op, ast.Mult):
            continue
        for noise, scale in operands(node):
            drawn = flow.value(noise)
            exponent = _exponent(program, flow.value(scale)) or ""
            if exponent.rpartition(".")[2] not in names:
                continue
            if program.called(drawn) in ("torch.randn_like", "torch.randn") or is_method(drawn, "normal_"):
                yield Remark(
                    node,
                    f"the noise is scaled by exp({exponent}), and the KL divergence takes {exponent} for "
                    f"the logarithm of the variance: the deviation is exp(0.5 * {exponent})",
                )


def _policy_product(program: Program, flow: Flow, term: ast.AST) -> tuple[int, ast.AST] | None:
    """Of a product of a log probability and what an action was worth: its sign, and the worth."""
    sign, factors, waiting = 1, [], [term]
    while waiting:
        at = waiting.pop()
        if is_binary(at, ast.Mult):
            waiting += [at.left, at.right]
        elif is_negative(at):
            sign = -sign
            waiting.append(at.operand)
        else:
            value = flow.value(at)
            if is_negative(value):
                sign, value = -sign, flow.value(value.operand)
            factors.append((at, value))
    elements = {at: _element(program, at) for at, _ in factors}
    logs = [
        at for at, value in factors
        if _is_log_prob(at, _stacked(program, value)) or _is_list_of_logs(program, elements[at])
    ]
    words = ("adv", "return", "reward", "delta", "td_err", "gae")
    worth = [at for at, _ in factors if says(at, *words) or says(elements[at] or at, *words)]
    if len(logs) != 1 or len(worth) != 1 or len(factors) > 3:
        return None
    cost = any(is_name(one) and says(one, *_COSTS) for one in flow.origins(worth[0]))
    return None if cost else (sign, worth[0])


def _stacked(program: Program, value: ast.AST) -> ast.AST:
    """What is put into the list that torch.stack or torch.cat makes a tensor of."""
    if isinstance(value, ast.Call) and program.called(value) in ("torch.stack", "torch.cat") and value.args:
        return _appended(program, value.args[0]) or value
    return value


def _element(program: Program, node: ast.AST) -> ast.AST | None:
    """The list that a loop or comprehension over zip() takes a variable from."""
    for around in program.parents(node) if isinstance(node, ast.Name) else ():
        loops = around.generators if isinstance(around, (ast.ListComp, ast.GeneratorExp)) else [around]
        for one in loops:
            over = one.iter if isinstance(one, (ast.For, ast.comprehension)) else None
            target = one.target if isinstance(one, (ast.For, ast.comprehension)) else None
            if is_call(over, "zip") and isinstance(target, ast.Tuple) and len(target.elts) == len(over.args):
                for name, given in zip(target.elts, over.args, strict=True):
                    if text_of(name) == text_of(node):
                        return given
        if isinstance(around, Function):
            return None
    return None


def _is_list_of_logs(program: Program, node: ast.AST | None) -> bool:
    """Whether a list is filled with what log_prob() gives."""
    filled = [
        one.args[0] for one in program.calls()
        if node is not None and is_method(one, "append") and len(one.args) == 1
        and last_word(one.func.value) == last_word(node) != ""
    ]
    return bool(filled) and all(is_method(one, "log_prob") for one in filled)


def _is_log_prob(at: ast.AST, value: ast.AST) -> bool:
    while is_method(value, "sum", "squeeze", "mean", "view"):
        value = value.func.value
    if is_method(value, "log_prob"):
        return True
    plain = isinstance(at, ast.Name) and at.id.lower() in (
        "log_prob", "log_probs", "logp", "logprob", "logprobs", "action_log_probs",
    )
    return plain and isinstance(value, ast.Name)


def _of_policy(program: Program, flow: Flow, added: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    for sign, term in added:
        if not sign:
            continue
        if is_method(term, "entropy") and not term.args:
            if sign > 0 and any(is_method(one, "log_prob") for one in program.calls()):
                yield Remark(
                    term,
                    f"{short(term)} is added to what is minimized: training makes the policy "
                    "surer of itself instead of letting it explore",
                )
            continue
        product = _policy_product(program, flow, term)
        if product is not None and sign * product[0] > 0:
            said = (
                f"{short(term)} is minimized without a minus: actions with a high "
                f"{short(product[1], 30)} become less probable"
            )
            yield Remark(term, said)


def _of_penalty(program: Program, flow: Flow, added: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    """A penalty that is subtracted: of weights, of a gradient's length, the error of a policy's critic."""
    policy = any(_policy_product(program, flow, term) is not None for _, term in added)
    for sign, term in added:
        if sign >= 0:
            continue
        base = term.left if is_binary(term, ast.Pow) else term.func.value if is_method(term, "pow") else None
        length = base.left if is_binary(base, ast.Sub) and number_in(base.right) == 1 else None
        parts = list(flow.origins(length)) if length is not None else []
        if any(program.called(one) == "torch.autograd.grad" for one in parts):
            said = "training drives the gradient away from length 1"
            yield Remark(term, f"{short(term)} is subtracted: {said}")
        elif _square(term) and base is not None and is_parameter(program, base):
            yield Remark(term, f"{short(term)} is subtracted: training makes the weights larger without end")
        elif policy and is_loss(program, term):
            said = f"{short(term)} is subtracted from what is minimized: the critic's error grows"
            yield Remark(term, said)


def _of_clip(program: Program, flow: Flow, added: list[tuple[int, ast.AST]]) -> Iterator[Remark]:
    """The clipped objective of PPO: the smaller one of two gains, or the larger one of two losses."""
    for sign, term in added:
        if not isinstance(term, ast.Call) or len(term.args) != 2 or not sign:
            continue
        last = program.called(term).removeprefix("torch.")
        if last not in ("min", "max", "minimum", "maximum"):
            continue
        signs, clipped = [], 0
        for operand in term.args:
            value, one = flow.value(operand), 1
            nodes = list(flow.origins(value, 2))
            clipped += any(is_method(part, "clamp", "clip") for part in nodes)
            for part in ast.walk(value):
                if is_negative(part) and not isinstance(part.operand, ast.Constant):
                    one = -one
            signs.append(one)
            if not is_binary(value, ast.Mult):
                clipped = 9
        if clipped != 1 or signs[0] != signs[1]:
            continue
        parts = [part for operand in term.args for part in flow.origins(operand, 4)]
        if not any(exponent_of(program, part) is not None for part in parts):
            continue
        smaller = last.startswith("min")
        if signs[0] * sign > 0:
            yield Remark(
                term,
                f"{short(term)} is minimized and not maximized: actions that were good become less probable",
            )
        elif smaller != (signs[0] > 0):
            yield Remark(
                term,
                f"{short(term)} takes the {'smaller' if smaller else 'larger'} one of the two, "
                "which undoes the clip",
            )


@RULES.add(
    "ratio-upside-down", "the policy is pushed away from what was good",
    "write torch.exp(new_log_prob - old_log_prob)",
)
def _ratio(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        inner = exponent_of(program, call)
        if is_binary(inner, ast.Sub):
            left, right = text_of(inner.left).lower(), text_of(inner.right).lower()
            if "old" in left and "old" not in right and all("log" in one for one in (left, right)):
                function = program.function_of(call)
                if function is not None and any(word in text_of(function) for word in ("clamp", "clip")):
                    yield Remark(
                        call,
                        f"{short(call)} divides the old probability by the new one: the ratio of "
                        "PPO is the other way round",
                    )


@RULES.add(
    "sampled-without-gradient", "what computes the distribution gets no gradient through the sample",
    "draw it with rsample(), which keeps the gradient",
)
def _sampled(program: Program) -> Iterator[Remark]:
    """A sample of a distribution of the model's outputs that goes on into the model. With log_prob, the
    gradient may go through the probability instead."""
    flow = flow_of(program)
    if any(is_attribute(one, "log_prob") for one in program.everywhere(ast.Attribute)):
        yield from _sampled_for_a_critic(program, flow)
        return
    for call in program.calls():
        kind = program.kind(call.func.value) if is_method(call, "sample") else None
        if kind is None or kind.name.rpartition(".")[2] not in _WITH_RSAMPLE:
            continue
        statement = program.statement(call)
        whole = isinstance(statement, ast.Assign) and statement.value is call
        names = names_set(statement) if whole else set()
        goes_on = [
            one for one in own(program.frame(call), ast.Call)
            if program.family(one.func) == "module" and any(
                inner is call or (is_read(inner) and inner.id in names and flow.held(inner) is call)
                for value in one.args for inner in ast.walk(value)
            )
        ]
        if goes_on and _learned(program, flow, call.func) and not program.without_gradient(call):
            yield Remark(
                call,
                f"{short(call)} has no gradient, and {short(goes_on[0])} uses it: what computes "
                f"{short(_receiver(call))} learns nothing from that",
            )


def _is_fixed(flow: Flow, draw: ast.Call) -> bool:
    """Whether the distribution that a call draws from is one of numbers, such as the noise that a policy
    scales and shifts by hand."""
    of = flow.value(_receiver(draw))
    return isinstance(of, ast.Call) and bool(of.args) and all(flow.number(one) is not None for one in of.args)


def _sampled_for_a_critic(program: Program, flow: Flow) -> Iterator[Remark]:
    """An action drawn without its gradient, and a policy that is trained by what a critic says of it."""
    draws: dict[ast.AST, ast.Call] = {}
    for call in program.calls():
        kind = program.kind(call.func.value) if is_method(call, "sample") and not call.args else None
        function = program.function_of(call)
        if kind is not None and function is not None and kind.name.rpartition(".")[2] in _WITH_RSAMPLE:
            given = [one for value in returned(function) if value is not None for one in flow.origins(value)]
            if call in given and not program.without_gradient(call) and not _is_fixed(flow, call):
                draws[function] = call
    for loss in program.calls() if draws else ():
        if not is_method(loss, "backward"):
            continue
        for sign, term in terms(flow, loss.func.value):
            made = [one for one in flow.origins(term) if isinstance(one, ast.Call)]
            draws_in = [one for one in made if program.local_function(one) in draws]
            critics = [
                one for one in made if program.family(one.func) == "module" and one not in draws_in
            ]
            drawn = [one for one in draws_in if not program.without_gradient(one)]
            detached = any(is_method(one, "detach") for one in made)
            if sign < 0 and critics and drawn and not detached:
                function = program.local_function(drawn[0])
                assert function is not None
                yield Remark(
                    draws[function],
                    f"{short(draws[function])} has no gradient, and {short(critics[0])} "
                    f"(line {critics[0].lineno}) is to train the policy through it",
                )
                return


def _receiver(call: ast.Call) -> ast.AST:
    """`d` of `d.sample()`."""
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _learned(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is made of what a module gives."""
    calls = (one for one in flow.origins(node) if isinstance(one, ast.Call))
    return any(program.family(one.func) == "module" for one in calls)
