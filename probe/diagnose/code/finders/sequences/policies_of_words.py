"""Policies that write words: the two sides of their ratios and divergences, and advantages with padding. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.finders.sequences.preferences import is_estimate, pushed
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.backwards import has_gradient, networks_in
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.likelihoods import DRAWS, difference_of, is_likelihood, steps_to
from probe.diagnose.code.traits.numberings import WORDS, marked
from probe.diagnose.code.traits.updates import plain

_DRAWN = (*DRAWS, "generate")


def drawn_at_another_temperature(program: Program) -> Iterator[Remark]:
    """The scores are divided by a temperature on one side of a ratio of probabilities alone."""
    for _, loss in losses(computation_of(program)):
        for ratio in origins(loss, stop=("run",)):
            sides = difference_of(ratio) if ratio.op == "exp" else None
            if sides is None or not has_gradient(sides[0]) or has_gradient(sides[1]):
                continue
            scores = [_scores(one) for one in sides]
            if scores[0] is None or scores[1] is None or not networks_in(scores[0]) & networks_in(scores[1]):
                continue
            divided = [_divided(one) for one in scores if one is not None]
            if [one is None for one in divided] in ([True, False], [False, True]):
                by = next(one for one in divided if one is not None)
                plain = scores[int(divided[0] is not None)]
                assert plain is not None
                yield Remark(ratio.node, f"{short(ratio.node)} compares probabilities of {short(by.node)} (line {by.line}) with those of {short(plain.node)} (line {plain.line}), which is divided by no temperature: the ratio is not 1 where nothing has changed")
                return


def _scores(likely: Value) -> Value | None:
    """What a log probability of words is the log_softmax of."""
    found = next((one for one in steps_to(likely) if one.op == "log_softmax" and one.args), None)
    return bare(found.args[0]) if found is not None else None


def _divided(scores: Value) -> Value | None:
    """Where the scores of a network are divided by a number that may not be 1, or multiplied by one."""
    for _ in range(20):
        scores = bare(scores)
        if scores.op in ("div", "mul") and len(scores.args) == 2:
            by = bare(scores.args[1])
            if by.op in ("@constant", "@input", "part") and number(by) != 1 and not networks_in(by):
                return scores
            return None
        if scores.op == "part" and scores.args:
            scores = scores.args[0]
        else:
            return None
    return None


def mean_beside_a_sum_of_words(program: Program) -> Iterator[Remark]:
    """Of the two log probabilities that are compared, one is a mean over the words, and the other one their sum."""
    for _, loss in losses(computation_of(program)):
        for inside, _, term in pushed(loss):
            kinds: dict[str, Value] = {}
            for leaf in _added(inside):
                kind = _over_words(leaf)
                if kind is not None:
                    kinds.setdefault(kind, leaf)
            if len(kinds) == 2:
                mean, whole = kinds["mean"], kinds["sum"]
                yield Remark(term.node, f"{short(term.node)} compares {short(mean.node)} (line {mean.line}), a mean over the words, with {short(whole.node)} (line {whole.line}), which is their sum")
                return


def _added(value: Value, depth: int = 12) -> Iterator[Value]:
    """What a value is a sum or a difference of, times numbers."""
    if depth and value.op in ("add", "sub", "neg"):
        for one in value.args:
            yield from _added(one, depth - 1)
    elif depth and value.op in ("mul", "div") and len(value.args) == 2 and any(number(one) is not None or one.op == "@input" for one in value.args):
        yield from _added(value.args[0] if number(value.args[0]) is None and value.args[0].op != "@input" else value.args[1], depth - 1)
    else:
        yield value


def _over_words(value: Value) -> str | None:
    """Whether the log probability of a text is the sum of those of its words, or their mean."""
    value, divided = bare(value), False
    while value.op in ("div", "part") and value.args:
        divided = divided or (value.op == "div" and len(value.args) == 2 and any(one.op in ("sum", "len", "size", "shape", "count_nonzero") for one in origins(value.args[1], stop=("run",))))
        value = bare(value.args[0])
    if value.op not in ("sum", "mean") or len(value.args) + len(value.named) < 2:
        return None
    inner = bare(value.args[0])
    factors = product(inner).above if inner.op == "mul" else [inner]
    if not any(is_likelihood(one) for one in factors):
        return None
    return "mean" if divided or value.op == "mean" else "sum"


def divergence_turned(program: Program) -> Iterator[Remark]:
    """The estimate exp(d) - d - 1 of a divergence from a reference, with words that the policy has drawn: d is policy minus
    reference."""
    computation = computation_of(program)
    drawing = _drawing(computation)
    for _, loss in losses(computation):
        for estimate in origins(loss, stop=("run",)):
            if estimate.op not in ("sub", "add") or not is_estimate(estimate):
                continue
            raised = next((one for one in origins(estimate, stop=("run",)) if one.op == "exp" and one.args), None)
            sides = bare(raised.args[0]) if raised is not None else None
            if sides is None or sides.op != "sub" or len(sides.args) != 2:
                continue
            policy, reference = sides.args
            own, other = _head(policy), _head(reference)
            if has_gradient(policy) and not has_gradient(reference) and own in drawing and other and other not in drawing:
                yield Remark(estimate.node, f"{short(estimate.node)} raises {short(sides.node)} (line {sides.line}), policy less reference, and the policy has drawn the words: its mean is no divergence, and it grows without bound where the policy is the surer one")
                return


def _drawing(computation: Computation) -> set[int]:
    """The layers whose scores words are drawn by."""
    return {_head(one.args[0]) for one in computation.of(*_DRAWN) if one.args} - {0}


def _head(value: Value) -> int:
    """The layer or the network that gives the scores that a value is made of; 0 where that is unknown."""
    for _ in range(40):
        value = bare(value)
        if value.op == "run":
            return id(plain(value.args[0]))
        if not value.args or value.op in ("either", "add"):
            return 0
        value = value.args[0]
    return 0


def divergence_rewarded(program: Program) -> Iterator[Remark]:
    """The reward of words is the larger, the farther the policy is from its reference."""
    computation = computation_of(program)
    drawing = _drawing(computation)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("mul"):
        factors = product(value)
        parts = [bare(one, "sum") for one in factors.above]
        difference = next((one for one in parts if one.op == "sub" and len(one.args) == 2), None)
        if difference is None or id(value) not in learned or len(factors.above) != 2 or factors.below or has_gradient(value):
            continue
        policy, reference = difference.args
        own, other = _head(policy), _head(reference)
        weight = next((one for one in parts if one is not difference), None)
        if weight is None:
            continue
        if not (is_likelihood(policy) and is_likelihood(reference)) or own not in drawing or not other or other in drawing:
            continue
        raised = factors.sign > 0 and (number(weight) or 0) > 0
        for user in computation.users(value):
            added = user.op in ("add", "set_item") and len(user.args) > 1 and (user.args[0] is value or (user.op == "add" and user.args[1] is value))
            if added and raised and id(user) in learned:
                yield Remark(value.node, f"{short(value.node)} is added to the reward in {short(user.node)} (line {user.line}), and it grows with the distance of the policy from the reference: the policy is paid for leaving it")
                return


def standardized_with_padding(program: Program) -> Iterator[Remark]:
    """Values that a mask has set to 0 are standardized by the mean of all places, and the loss divides by the places of the
    mask alone."""
    computation = computation_of(program)
    masks: dict[int, Value] = {}
    for _, loss in losses(computation):
        for one in origins(loss, stop=("run",)):
            if one.op == "div" and len(one.args) == 2 and bare(one.args[0], "neg").op == "sum":
                under = bare(one.args[1], "clamp", "maximum", "max")
                if under.op == "sum" and under.args:
                    masks[id(bare(under.args[0]))] = bare(under.args[0])
    kept = _words_alone(computation)
    for value in computation.of("sub") if masks or kept else ():
        mean = bare(value.args[1]) if len(value.args) == 2 else value
        if mean.op != "mean" or len(mean.args) != 1 or mean.named or bare(mean.args[0]) is not bare(value.args[0]):
            continue
        whole = bare(value.args[0])
        mask = next((masks[id(bare(one))] for one in product(whole).above if id(bare(one)) in masks), None) if whole.op == "mul" else None
        if mask is not None and not isinstance(mask, Many) and any(one.op == "div" for one in computation.users(value)):
            yield Remark(value.node, f"{short(value.node)} takes the mean of all places, also of those that {short(whole.node)} (line {whole.line}) sets to 0, and the loss is that of the others alone")
            return
        spread = [one for user in computation.users(value) for one in computation.users(user) if user.op in ("div", "mul")]
        chosen = next((kept[id(one)] for one in spread if id(one) in kept), None) if not _is_chosen(whole) else None
        if chosen is not None:
            yield Remark(value.node, f"{short(value.node)} takes the mean of all places, and {short(chosen.node)} (line {chosen.line}) leaves out those behind the end of each row: the loss is that of the others alone")
            return


_PASSED_ON = frozenset({"mul", "neg", "add", "sub", "min", "minimum", "clamp", "unsqueeze", "squeeze", "detach"})


def _words_alone(computation: Computation) -> dict[int, Value]:
    """What a loss is made of that is left where a mask leaves out what is behind the end of each row, each with where that is done."""
    found: dict[int, Value] = {}
    for _, loss in losses(computation):
        for one in origins(loss, stop=("run",)):
            if one.op not in ("part", "masked_select", "mul") or len(one.args) != 2:
                continue
            for whole, mask in (one.args, one.args[::-1]) if one.op == "mul" else (one.args,):
                if marked(computation, mask) == WORDS:
                    found.update({id(part): one for part in _row_by_row(whole)})
    return found


def _row_by_row(value: Value) -> Iterator[Value]:
    """A value, and what it is made of place by place."""
    waiting = [value]
    for _ in range(60):
        if not waiting:
            return
        at = waiting.pop()
        yield at
        if at.op in _PASSED_ON:
            waiting += at.args


def _is_chosen(value: Value) -> bool:
    """Whether a value is made of places that an index or a mask takes."""
    return value.op in ("part", "masked_select", "cat") or (value.op == "mul" and any(one.op == "part" for one in value.args))
