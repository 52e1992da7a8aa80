"""What generates a sequence, and states and weights that should stay together. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.sequences.generated_words import (
    masked_in_another_order,
    penalty_of_all_signs,
)
from probe.diagnose.code.finders.sequences.read_out import beams_alike, begun_with_another_word
from probe.diagnose.code.finders.words.after_the_end import places_count_the_padding
from probe.diagnose.code.finders.words.gates import mean_of_all_shares
from probe.diagnose.code.finders.words.generation import (
    ended_by_the_first,
    generated_in_train_mode,
    probabilities_added_up,
    window_never_moves,
)
from probe.diagnose.code.finders.words.histories import past_hidden_by_its_mask
from probe.diagnose.code.finders.words.layouts import query_and_keys_exchanged
from probe.diagnose.code.finders.words.partitions import partition_over_padding
from probe.diagnose.code.finders.words.starts import begun_at_random, frequencies_upside_down
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import softmax_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    is_attribute,
    is_binary,
    is_method,
    is_name,
    is_own,
    is_read,
    last_word,
    names_read,
    names_set,
    number_in,
    own,
    own_nodes,
    returned,
    short,
    text_of,
)

RULES = Rules("model")
_TEMPERATURE = re.compile(r"temp|^t$|^tau$", re.I)
_DRAWS = ("multinomial", "Categorical", "choice", "choices")
_RECURRENT = ("GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell")


@RULES.add("masked-after-softmax", "what is hidden has taken its share: the rest adds up to less than 1, and depends on it", "fill the scores with -inf before the softmax")
def _after_softmax(program: Program) -> Iterator[Remark]:
    """Weights that are set to 0 after their softmax, and not divided by their sum."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "masked_fill", "masked_fill_") or len(call.args) != 2 or number_in(call.args[1]) != 0:
            continue
        found = softmax_of(flow, call.func.value)
        if found is None or program.without_gradient(call):
            continue
        statement = program.statement(call)
        names = names_set(statement) if isinstance(statement, ast.Assign) else set()
        frame = program.frame(call)
        divided = any(
            is_binary(one, ast.Div) and any(is_method(part, "sum") for part in ast.walk(one.right)) for one in own_nodes(frame)
        ) or any(is_method(one, "nan_to_num", "isinf", "isnan", "div_", "normalize") for one in own_nodes(frame))
        before = any(is_method(one, "masked_fill", "masked_fill_") and one.lineno < found[0].lineno for one in own_nodes(frame))
        filled = before or any(is_method(one, "masked_fill", "masked_fill_") for one in flow.origins(found[1])) or any(is_binary(one, ast.Add, ast.Sub) for one in ast.walk(found[1]))
        summed = any(
            (is_binary(one, ast.MatMult) and names & names_read(one)) or (is_method(one, "matmul", "bmm", "einsum") and names & names_read(one))
            for one in own_nodes(frame)
        )
        if not divided and not filled and summed:
            yield Remark(call, f"{short(call)} hides positions after {short(found[0], 40)} has counted them")


@RULES.add("temperature-after-softmax", "dividing all probabilities by one number changes nothing: what is drawn is the same at each temperature", "divide the logits: softmax(logits / temperature)")
def _after_temperature(program: Program) -> Iterator[Remark]:
    """Probabilities that are divided by a temperature, and drawn from."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Div, ast.Mult) or not _TEMPERATURE.search(last_word(node.right)):
            continue
        drawn = any(last_word(getattr(one, "func", None)) in _DRAWS for one in own_nodes(program.frame(node)))
        if drawn and softmax_of(flow, node.left) is not None:
            yield Remark(node, f"{short(node)} scales probabilities by {text_of(node.right)}")


@RULES.add("rank-for-index", "the first candidates' places are taken for words: only the k lowest numbers are ever generated", "look it up: indices.gather(-1, choice)")
def _rank(program: Program) -> Iterator[Remark]:
    """A choice among the largest values, whose place among them is used as if it were the index."""
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            target = node.targets[0]
            if not is_method(node.value, "topk") or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                continue
            values, indices = target.elts
            if not is_name(values) or not is_name(indices) or any(is_read(one, indices.id) for one in own_nodes(scope)):
                continue
            for later in program.after(node):
                drawn = [one for one in ast.walk(later) if is_method(one, "multinomial", "argmax") and values.id in names_read(one)]
                if drawn and isinstance(later, ast.Assign) and any(
                    names_set(later) & names_read(one) and is_method(one, "cat", "append", "extend") for one in own_nodes(scope)
                ):
                    yield Remark(drawn[0], f"{short(drawn[0])} is a place among the {short(node.value)}, and {indices.id}, which says what stands there, is never read")
                    break


@RULES.add("tie-broken", "the two are no longer one: the output keeps the old weight, and each is trained by itself", "copy the values into it: weight.copy_(vectors) under no_grad")
def _tie_broken(program: Program) -> Iterator[Remark]:
    """A weight that two layers share, and that one of them is later given anew."""
    for of in program.everywhere(ast.ClassDef):
        ties = [
            (node, node.targets[0], node.value) for node in ast.walk(of)
            if isinstance(node, ast.Assign) and is_attribute(node.targets[0], "weight") and is_attribute(node.value, "weight")
            and is_own(node.targets[0].value) and is_own(node.value.value)
        ]
        for tie, one, other in ties:
            tied, layers = {text_of(one), text_of(other)}, {text_of(one.value), text_of(other.value)}
            for node in ast.walk(of):
                if not isinstance(node, ast.Assign) or node is tie or text_of(node.value) in tied:
                    continue
                given = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets[:1]
                if not {text_of(target) for target in given} & (tied | layers):
                    continue
                place, tying = program.function_of(node), program.function_of(tie)
                if place is not tying and (getattr(place, "name", "") == "__init__" or _ties_again(place, tying)):
                    continue
                if place is not tying and any(program.function_of(another) is place for another, _, _ in ties):
                    continue
                later = any(node in ast.walk(one) for one in program.after(tie))
                if place is not tying or later:
                    yield Remark(node, f"{short(node)} gives one of the two a new weight: line {tie.lineno} has tied {text_of(one)} to {text_of(other)}")


def _ties_again(function: Function | None, tying: Function | None) -> bool:
    """Whether a method calls the one that ties the weights."""
    return function is not None and tying is not None and any(is_method(one, tying.name) for one in ast.walk(function))


@RULES.add("state-not-carried", "each step of the generation begins from the first state, and knows the last word alone", "take the state: logits, hidden = decoder(token, hidden)")
def _not_carried(program: Program) -> Iterator[Remark]:
    """A loop that feeds a recurrent network its own output, and throws away the state that it returns."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For, ast.While):
        inside = {name for part in ast.walk(loop) for name in names_set(part)} if isinstance(loop, (ast.For, ast.While)) else set()
        for node in own_nodes(loop):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or len(target.elts) != 2 or not is_name(target.elts[1], "_"):
                continue
            call = node.value
            if not isinstance(call, ast.Call) or len(call.args) < 2 or not _returns_state(program, flow, call):
                continue
            fed, state = call.args[0], call.args[1]
            if isinstance(fed, ast.Name) and fed.id in inside and isinstance(state, ast.Name) and state.id not in inside:
                yield Remark(node, f"{short(node)} throws away the new state: each pass gives {state.id} as it was before the loop")


def _returns_state(program: Program, flow: Flow, call: ast.Call) -> bool:
    """Whether a call gives the new state of a recurrent network as the second of two values."""
    local = program.local_function(call)
    if not isinstance(local, Function):
        return False
    values = [one for one in returned(local) if isinstance(one, ast.Tuple) and len(one.elts) == 2]
    for value in values:
        made = flow.given(value.elts[1])
        kind = program.kind_name(made.value.func) if made is not None and isinstance(made.value, ast.Call) else ""
        if made is not None and made.place == 1 and kind.rpartition(".")[2] in _RECURRENT:
            return True
    return False


RULES.add(
    "masked-in-another-order",
    "other words are hidden than those that were meant: likely ones are never generated, and unlikely ones are",
    "bring the mask back: mask = torch.zeros_like(mask).scatter(-1, order, mask)",
)(masked_in_another_order)
RULES.add(
    "penalty-of-all-signs",
    "a score below 0 grows as it is divided: words that were to be left out come again the more often",
    "multiply those below 0: torch.where(score > 0, score / penalty, score * penalty)",
)(penalty_of_all_signs)
RULES.add(
    "beams-alike",
    "all beams hold one and the same text: the search is greedy, however wide it is",
    "let one beam begin: scores[:, 1:] = float('-inf')",
)(beams_alike)
RULES.add(
    "begun-with-another-word",
    "the model has never seen a text that begins so: what it generates goes astray from the first word on",
    "begin with the word that the training begins with",
)(begun_with_another_word)
RULES.add(
    "probabilities-added-up",
    "a text is as likely as the product of its words: in a sum, one sure word outweighs any number of impossible ones",
    "add up the log probabilities: score + log_softmax(logits, -1)",
)(probabilities_added_up)
RULES.add(
    "generated-in-train-mode",
    "a random part of the units is missing at each word: what is generated is worse than what the model has learned",
    "call model.eval() before generating, and model.train() after it",
)(generated_in_train_mode)
RULES.add(
    "window-never-moves",
    "beyond that length the model does not see what it has just written: it draws the next word of the same beginning again and again",
    "read the last words: ids[:, -length:]",
)(window_never_moves)
RULES.add(
    "ended-by-the-first",
    "all other texts of the batch are cut off where the shortest one ends",
    "go on until all have ended: done |= token == end, and break if done.all()",
)(ended_by_the_first)
RULES.add(
    "query-and-keys-exchanged",
    "each word gets what the other side finds in the words, and never sees the other side itself: what is generated hardly depends on it",
    "ask by the words about the other side: attention(words, memory, memory)",
)(query_and_keys_exchanged)
RULES.add(
    "mean-of-all-shares",
    "shares add up to 1: their mean over that axis has no gradient, and the term trains nothing",
    "take the mean over the samples: probabilities.mean(0)",
)(mean_of_all_shares)
RULES.add(
    "partition-over-padding",
    "the more padding a text has, the larger its loss: part of it asks for tags where there are no words",
    "keep the score where the mask ends: alpha = torch.where(mask[:, t, None], new, alpha)",
)(partition_over_padding)
RULES.add(
    "begun-at-random",
    "what is predicted depends on a draw: the evaluation gives another score each time, and a lower one than the model could have",
    "begin with zeros, or with a state that is learned: h0 = torch.zeros(layers, batch, width)",
)(begun_at_random)
RULES.add(
    "frequencies-upside-down",
    "neighbouring places have codes that have nothing to do with each other, and distant ones the same: positions cannot be told",
    "let the waves become slower: torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))",
)(frequencies_upside_down)
RULES.add(
    "past-hidden-by-its-mask",
    "with a cache, each new word sees the first one and nothing of what stands between: what is generated follows no text",
    "let the mask begin behind the cache: torch.tril(mask, diagonal=keys - queries)",
)(past_hidden_by_its_mask)
RULES.add(
    "places-count-the-padding",
    "the same text has other places the longer its neighbours are, and none of them were trained so",
    "count the words alone: positions = (mask.cumsum(1) - 1).clamp(min=0)",
)(places_count_the_padding)
