"""Objectives of policies: the ratio and clip of PPO, twin critics, and what a policy wants of its critic. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import filled_with, is_model
from probe.diagnose.code.finders.sequences.policies_of_words import (
    divergence_rewarded,
    divergence_turned,
    drawn_at_another_temperature,
    mean_beside_a_sum_of_words,
    standardized_with_padding,
)
from probe.diagnose.code.finders.sequences.preferences import groups_of_other_rows, preference_reversed
from probe.diagnose.code.finders.sizes.first_statistics import statistics_of_the_first
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import backwards
from probe.diagnose.code.loop.step_calls import events_of, optimized
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.bootstrap_rules import compared, following
from probe.diagnose.code.rollout.terms import exponent_of, factors, terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_method,
    is_name,
    is_negative,
    last_word,
    own,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("rollout")
_LOG = re.compile(r"log_?(p|prob|pi|pis|probs|probability)?(s|_|$|\d)|logp|neglogp", re.I)
_SHAPED = ("detach", "squeeze", "unsqueeze", "view", "reshape", "sum", "mean", "flatten", "float")


def _log_prob(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is a log probability: `dist.log_prob(x)`, or a variable that is called so."""
    value = flow.value(node)
    while is_method(value, *_SHAPED):
        value = flow.value(value.func.value)
    if is_method(value, "log_prob"):
        return True
    at = node.value if isinstance(node, ast.Subscript) else node
    while is_method(at, *_SHAPED):
        at = at.func.value
    return bool(re.search(r"log_?p", last_word(at), re.I)) and exponent_of(flow.program, value) is None


# PPO ------------------------------------------------------------------------------


@RULES.add("ratio-without-exponential", "what is clipped is no ratio of probabilities: the objective pushes the policy anywhere", "write ratio = torch.exp(new_log_prob - old_log_prob)")
def _no_exponential(program: Program) -> Iterator[Remark]:
    """The clip of PPO around a quotient or a difference of log probabilities."""
    flow = flow_of(program)
    for call in program.calls():
        ratio, low, high = _clamped(program, call)
        if ratio is None or not _around(flow, low, high, 1):
            continue
        value = flow.value(ratio)
        if is_binary(value, ast.Div, ast.Sub) and _log_prob(flow, value.left) and _log_prob(flow, value.right):
            what = "divides one log probability by the other" if isinstance(value.op, ast.Div) else "is a difference of log probabilities, without exp()"
            yield Remark(value, f"{short(call)} clips {short(value)} around 1, and that {what}")


@RULES.add("ratio-clipped-around-zero", "the ratio of two probabilities is about 1: it is cut to the upper bound nearly everywhere, where there is no gradient", "clip it to 1 - eps and 1 + eps")
def _around_zero(program: Program) -> Iterator[Remark]:
    """The clip of PPO with bounds on both sides of 0."""
    flow = flow_of(program)
    for call in program.calls():
        ratio, low, high = _clamped(program, call)
        inner = exponent_of(program, flow.value(ratio)) if ratio is not None else None
        difference = flow.value(inner)
        if is_binary(difference, ast.Sub) and _log_prob(flow, difference.left) and _around(flow, low, high, 0):
            yield Remark(call, f"{short(call)} clips a ratio of probabilities, which is about 1, to bounds around 0")


def _clamped(program: Program, call: ast.Call) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    """What a call clamps, and the bounds."""
    if not is_method(call, "clamp", "clip"):
        return None, None, None
    free = program.dotted(call.func) is not None
    value = argument(call, "input", 0) if free else call.func.value
    return value, argument(call, "min", int(free)), argument(call, "max", 1 + free)


def _around(flow: Flow, low: ast.expr | None, high: ast.expr | None, middle: int) -> bool:
    """Whether two bounds are the same distance below and above a number: `1 - eps` and `1 + eps`."""
    if low is None or high is None:
        return False
    numbers = flow.number(low), flow.number(high)
    if numbers[0] is not None and numbers[1] is not None:
        return abs(numbers[0] + numbers[1] - 2 * middle) < 0.3 * (numbers[1] - numbers[0]) and 0 < numbers[1] - numbers[0] < 1.5
    if middle == 0:
        return is_negative(low) and text_of(low.operand) == text_of(high)
    below = is_binary(low, ast.Sub) and flow.number(low.left) == 1
    return below and is_binary(high, ast.Add) and 1 in (flow.number(high.left), flow.number(high.right))


# Twin critics -----------------------------------------------------------------------


@RULES.add("larger-of-two-critics", "each target takes the estimate that errs upwards: values grow without end", "take the smaller one: torch.min(q1, q2)")
def _larger(program: Program) -> Iterator[Remark]:
    """A target that is made with the larger of what two target networks say of one action."""
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    for _, _, target in compared(flow):
        nodes = list(flow.origins(target))
        if any(is_method(one, "min", "minimum", "amin") for one in nodes):
            continue
        for one in nodes:
            if isinstance(one, ast.Call) and program.called(one) in ("torch.max", "torch.maximum") and one not in seen and len(one.args) == 2 and not one.keywords and _twins(flow, one.args[0], one.args[1]):
                seen.add(one)
                yield Remark(one, f"{short(one)} takes the larger one of two estimates of one value, and {short(target, 40)} is learned towards it")
                break


def _twins(flow: Flow, one: ast.AST, other: ast.AST) -> bool:
    """Whether two values are what two critics, or one with two outputs, give for the same arguments."""
    first, second = flow.given(one), flow.given(other)
    if first is not None and second is not None and first.value is second.value and first.place != second.place:
        return isinstance(first.value, ast.Call)
    values = [flow.value(one), flow.value(other)]
    calls = [value for value in values if isinstance(value, ast.Call) and len(value.args) >= 1]
    return len(calls) == 2 and [text_of(arg) for arg in calls[0].args] == [text_of(arg) for arg in calls[1].args] and text_of(calls[0].func) != text_of(calls[1].func)


@RULES.add("entropy-taken-away", "the value of a state falls with the entropy of the policy: the policy is paid for being sure", "subtract it: next_q - alpha * next_log_prob")
def _entropy(program: Program) -> Iterator[Remark]:
    """The target of a soft critic, or the loss of its policy, with the sign of the other for the log probability."""
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    for _, _, target in compared(flow):
        for side in _discounted(flow, target):
            for part in factors(side):
                value = flow.value(part)
                added = list(terms(flow, value)) if is_binary(value, ast.Add, ast.Sub) else []
                plus = [term for sign, term in added if sign > 0 and _weighted_log_prob(flow, term)]
                values = [term for sign, term in added if sign > 0 and term not in plus]
                if part not in seen and len(plus) == 1 and len(values) == 1 and len(added) == 2:
                    seen.add(part)
                    yield Remark(part, f"{short(value)} adds the log probability to the value of what follows: it is smaller the more the policy explores")


def _discounted(flow: Flow, target: ast.AST) -> list[ast.AST]:
    value = flow.value(target)
    return [side for side in (value.left, value.right) if is_binary(side, ast.Mult)] if is_binary(value, ast.Add) else []


def _weighted_log_prob(flow: Flow, term: ast.AST) -> bool:
    """Whether a term is a log probability, alone or times a temperature."""
    return any(_named_log_prob(one) for one in factors(term)) and not any(is_method(one, "exp") for one in ast.walk(term))


def _named_log_prob(node: ast.AST) -> bool:
    while is_method(node, *_SHAPED):
        node = node.func.value
    return bool(re.search(r"log_?(p|prob|pi)", last_word(node), re.I))


@RULES.add("temperature-the-wrong-way", "the temperature rises where the policy is random enough already, and falls where it is too sure", "minimize -(log_alpha * (log_prob + target_entropy).detach()).mean()")
def _temperature(program: Program) -> Iterator[Remark]:
    """The loss of a temperature without its minus."""
    flow = flow_of(program)
    for call, value in backwards(program):
        signs = {term: sign for sign, term in terms(flow, value)}
        for term in flow.origins(value):
            parts = list(factors(term)) if is_binary(term, ast.Mult) else []
            held = [one for one in parts if is_method(flow.value(one), "detach")]
            known = [sign for one, sign in signs.items() if one is term or any(one in (part, flow.value(part)) for part in parts)]
            if known != [1] or len(parts) != 2 or len(held) != 1:  # `alpha` is a positive factor: the other one is the term
                continue
            other = parts[1 - parts.index(held[0])]
            inner = flow.value(held[0])
            added = list(terms(flow, inner.func.value)) if is_method(inner) else []
            logs = [turn for turn, one in added if _named_log_prob(one)]
            wanted = [turn for turn, one in added if re.search(r"entropy|target", last_word(one), re.I)]
            if len(added) == 2 and logs == [1] and wanted == [1] and re.search(r"alpha|temp", text_of(other), re.I):
                yield Remark(term, f"{short(call)} minimizes {short(term)} without a minus: it moves the temperature away from where the entropy is the one that is wanted")


@RULES.add("squashed-without-correction", "the entropy is that of another action than the one that is taken: it is rewarded for values far out, where tanh is flat", "subtract the logarithm of the slope: log_prob - log(1 - action ** 2 + eps)")
def _squashed(program: Program) -> Iterator[Remark]:
    """A policy that gives tanh of a sample with a gradient, and the log probability of the sample itself."""
    flow = flow_of(program)
    for function in (*program.everywhere(ast.FunctionDef),):
        given = [one for value in returned(function) if isinstance(value, ast.Tuple) for one in value.elts]
        logs = [one for one in given if is_method(_under(flow, one), "log_prob")]
        squashed = [part for one in given for part in flow.origins(one, 3) if is_method(part, "tanh") and _sample_of(flow, part) is not None]
        if not logs or not squashed or re.search(r"\blog1?p?\(|\.log1?p?\(|softplus|logsigmoid|Transform", text_of(function)):
            continue
        call = _under(flow, logs[0])
        drawn = _sample_of(flow, squashed[0])
        if is_method(call, "log_prob") and call.args and drawn is not None and text_of(call.args[0]) == drawn:
            yield Remark(call, f"{short(call)} is the log probability of {drawn}, and the action is {short(squashed[0])}: what tanh does to the density is left out")


def _under(flow: Flow, node: ast.AST) -> ast.AST:
    """What a value is made of, but for sums over the parts of an action and its shape."""
    value = flow.value(node)
    while is_method(value, *_SHAPED) and flow.program.dotted(value.func) is None:
        value = flow.value(value.func.value)
    return value


def _sample_of(flow: Flow, call: ast.AST) -> str | None:
    """The variable in `torch.tanh(u)` that is a sample with a gradient."""
    inner = flow.program.operand(call) if isinstance(call, ast.Call) else None
    return text_of(inner) if is_name(inner) and is_method(flow.value(inner), "rsample") else None


# Adversaries ------------------------------------------------------------------------


@RULES.add("one-label-for-both", "the judge learns to answer the same to everything: it tells the generator nothing", "give real samples ones and generated samples zeros")
def _one_label(program: Program) -> Iterator[Remark]:
    """A discriminator that is trained with the same label for real and for generated samples."""
    flow = flow_of(program)
    for scope in program.scopes():
        answers: list[tuple[str, bool, float, ast.Call]] = []
        for call in own(scope, ast.Call):
            if not is_loss(program, call) or len(call.args) < 2:
                continue
            answer, label = flow.value(call.args[0]), filled_with(flow, call.args[1])
            if isinstance(answer, ast.Call) and len(answer.args) == 1 and label is not None and is_model(flow, answer.func):
                parts = list(flow.origins(answer.args[0]))
                made = any(isinstance(one, ast.Call) and is_model(flow, one.func) for one in parts)
                answers.append((text_of(answer.func), made, label, call))
        for judge, made, label, call in answers:
            cut = any(is_method(one, "detach") for one in flow.origins(call.args[0]))
            real = [one for one in answers if one[0] == judge and not one[1]]
            others = [one for one in answers if one[0] == judge and one[1] and one[3] is not call]
            if made and cut and len(real) == 1 and real[0][2] == label and not others:
                yield Remark(call, f"{short(call)} asks {judge} for the same answer to generated samples as line {real[0][3].lineno} does for real ones")


# What a policy wants of its critic ----------------------------------------------------


@RULES.add("policy-against-its-critic", "the policy learns the actions that the critic thinks worst", "minimize the negative: -critic(states, actor(states)).mean()")
def _against(program: Program) -> Iterator[Remark]:
    """A policy that is trained to make small what its critic, which learns from rewards, says of its actions."""
    flow = flow_of(program)
    critics = {text_of(one.func) for _, prediction, target in compared(flow) for one in _calls(flow, prediction) if following(flow, target)}
    for loss, value in backwards(program) if critics else ():
        block = program.block(program.statement(loss))
        after = [one for one in events_of(flow, block) if one.what in ("step", "backward")]
        place = next((number for number, one in enumerate(after) if one.node is loss), None)
        if place is None or place + 1 >= len(after) or after[place + 1].what != "step":
            continue
        stepped = after[place + 1].node
        actor = optimized(flow, after[place + 1].of)
        for sign, term in terms(flow, value):
            judged = [one for one in _calls(flow, term) if text_of(one.func) in critics]
            if sign <= 0 or not judged or not _of_action(term, judged[0], flow):
                continue
            acts = [one for given in judged[0].args for one in _calls(flow, given) if text_of(one.func) not in critics]
            mine = [one for one in acts if actor is not None and (flow.key(one.func) == actor or (isinstance(one.func, ast.Attribute) and flow.key(one.func.value) == actor))]
            named = actor is None and any(re.search(r"actor|policy|pi$", text_of(one.func), re.I) for one in acts) and re.search(r"actor|policy|pi_", text_of(stepped), re.I)
            if mine or named:
                yield Remark(loss, f"{short(loss)} makes {short(term)} smaller, what the critic says of the policy's own actions: {short(stepped)} learns the worst ones")
                break


def _calls(flow: Flow, node: ast.AST) -> list[ast.Call]:
    return [one for one in flow.origins(node) if isinstance(one, ast.Call) and isinstance(one.func, (ast.Name, ast.Attribute))]


def _of_action(term: ast.AST, judged: ast.Call, flow: Flow) -> bool:
    """Whether a term is what a critic says and no distance of it from something: only a mean or the smaller of two."""
    value = flow.value(term)
    while is_method(value, *_SHAPED, "min") and flow.program.dotted(value.func) is None:
        value = flow.value(value.func.value)
    if isinstance(value, ast.Call) and flow.program.called(value) in ("torch.min", "torch.minimum"):
        return True
    given = flow.given(term) if is_name(term) else None
    return value is judged or (given is not None and given.value is judged)


RULES.add(
    "preference-reversed",
    "the model learns to give the answers that were turned down",
    "raise the chosen one: -logsigmoid(chosen - rejected)",
)(preference_reversed)
RULES.add(
    "statistics-of-the-first",
    "an answer counts as good or bad by how another group did: most advantages are of one sign, or far too large",
    "take the mean and the deviation of each group, or of all together: rewards.view(-1, n).mean(dim=1, keepdim=True)",
)(statistics_of_the_first)
RULES.add(
    "groups-of-other-rows",
    "an answer is compared with those to other questions: what is learned is which question is easy",
    "copy with repeat_interleave(n, dim=0) for view(-1, n), or take the statistics over axis 0 of view(n, -1)",
)(groups_of_other_rows)


# Policies that write words ----------------------------------------------------------


RULES.add(
    "drawn-at-another-temperature",
    "the ratio compares two different distributions: it is far from 1 before the first step, and clipping cuts good words off",
    "divide the logits by the same temperature on both sides",
)(drawn_at_another_temperature)
RULES.add(
    "mean-beside-a-sum-of-words",
    "the two are as far apart as the text is long: the difference is that of lengths, and not of a policy and its reference",
    "reduce both sides in the same way",
)(mean_beside_a_sum_of_words)
RULES.add(
    "divergence-turned",
    "the policy is pushed hardest where it is surer than the reference, and by another measure than the divergence",
    "take reference - policy: d = ref_log_probs - log_probs; d.exp() - d - 1",
)(divergence_turned)
RULES.add(
    "divergence-rewarded",
    "the policy is paid for going away from the reference that should hold it back",
    "subtract it: rewards = score - beta * (log_probs - ref_log_probs)",
)(divergence_rewarded)
RULES.add(
    "standardized-with-padding",
    "the zeros of the padding are part of the mean and the deviation: advantages are shifted and scaled by how much padding a batch has",
    "take both over the places of the mask: mean = (x * mask).sum() / mask.sum()",
)(standardized_with_padding)
