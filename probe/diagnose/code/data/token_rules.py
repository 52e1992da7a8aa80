"""Masked words, and what is reported of language models. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.axes.masks_of_padding import (
    mask_of_the_word_before,
    padding_shown_by_its_mask,
)
from probe.diagnose.code.finders.sequences.padded_words import padding_of_another_number
from probe.diagnose.code.finders.sequences.readings import unknown_word_is_padding
from probe.diagnose.code.finders.sequences.same_words import score_not_shifted
from probe.diagnose.code.finders.words.histories import answer_left_out
from probe.diagnose.code.finders.words.reports import (
    errors_per_guessed_word,
    looked_up_as_written,
    perplexity_of_more,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    argument,
    compares,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_negative,
    is_read,
    is_string,
    last_word,
    names_read,
    number_in,
    own,
    own_nodes,
    pairs_of,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss, loss_name

RULES = Rules("data")
_TOLD = ("torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss", "torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss")
_LABELS = re.compile(r"^(labels?|tags?|targets?|ys?|tgt|trg|gold)(_\w+)?$", re.I)
_DECODER_INPUT = re.compile(r"^(decoder|dec|tgt|target|trg)_?(input|inputs|in)(_ids)?$", re.I)
_OF_WORDS = ("cross_entropy", "CrossEntropyLoss")


@RULES.add("target-changed-with-input", "the target is what the input was changed to: the model copies it", "keep a copy first: labels = ids.clone()")
def _changed_with_input(program: Program) -> Iterator[Remark]:
    """A target that is a second name for an input, which is then changed in place."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            yield from _one_tensor(program, node)
            for target, value in pairs_of(node):
                if not isinstance(target, ast.Name) or not isinstance(value, ast.Name) or target.id == value.id:
                    continue
                changed = _changed_after(program, node, value.id)
                again = [one for one in flow.bindings(value) if changed is not None and node.lineno < getattr(one.node, "lineno", 0) <= changed.lineno]
                if changed is None or again or len(flow.bindings(target)) != 1:
                    continue
                losses = [one for one in own(scope, ast.Call) if is_loss(program, one) and len(one.args) > 1 and target.id in names_read(one.args[1]) and one.lineno > changed.lineno]
                fed = any(program.family(one.func) == "module" and any(is_read(word, value.id) for word in one.args) for one in own(scope, ast.Call))
                if losses and fed:
                    yield Remark(changed, f"{short(changed)} changes {target.id} too, which is the same tensor (line {node.lineno}) and the target of {short(losses[0], 40)}")


def _one_tensor(program: Program, node: ast.Assign) -> Iterator[Remark]:
    """Labels that share the one tensor of `inputs = labels = ids.clone()`, which is then changed."""
    names = [one.id for one in node.targets if isinstance(one, ast.Name)]
    labels = [name for name in names if re.search(r"label|target", name, re.I)]
    if len(names) < 2 or len(labels) != 1 or not isinstance(node.value, (ast.Call, ast.Subscript)):
        return
    for name in names:
        changed = _changed_after(program, node, name)
        if changed is not None and name != labels[0]:
            yield Remark(changed, f"{short(changed)} changes {labels[0]} too: {short(node)} gives one tensor two names")
            return


def _changed_after(program: Program, node: ast.stmt, name: str) -> ast.stmt | None:
    """The first statement after another one that changes a part of a tensor in place."""
    return next((one for later in program.after(node) for one in ast.walk(later) if isinstance(one, ast.stmt) and _sets_part(one, name)), None)


def _sets_part(node: ast.AST, name: str) -> bool:
    """Whether a statement changes a part of a tensor in place."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript) and is_name(node.targets[0].value, name)
    return isinstance(node, ast.Expr) and is_method(node.value, "masked_fill_", "scatter_", "index_fill_") and is_name(node.value.func.value, name)


@RULES.add("decoder-given-its-labels", "each token is to be predicted from itself: the loss falls to 0, and what is generated is wrong", "give the decoder the tokens before: tokens[:, :-1], with tokens[:, 1:] as labels")
def _given_its_labels(program: Program) -> Iterator[Remark]:
    """A batch whose labels are the decoder's input at the same positions, in a program that shifts neither."""
    flow = flow_of(program)
    if any(map(_shifts, program.everywhere(ast.Subscript, ast.Call))) or any("shift" in name.lower() for name in program.functions):
        return
    for node in program.everywhere(ast.Dict):
        entries = {key.value: value for key, value in zip(node.keys, node.values, strict=True) if is_string(key)}
        given = next((value for key, value in entries.items() if _DECODER_INPUT.match(key)), None)
        labels = next((value for key, value in entries.items() if _LABELS.match(key)), None)
        if is_name(given) and is_name(labels):
            held = flow.value(labels)
            same = labels.id == given.id or is_name(held, given.id) or (is_method(held, "clone", "detach") and is_name(held.func.value, given.id))
            if same:
                yield Remark(node, f"{short(labels)} is {short(given)} itself, at the same positions")
                return


def _shifts(node: ast.AST) -> bool:
    """Whether an expression takes all positions of a batch but the first or the last, or moves them."""
    if isinstance(node, ast.Call):
        return last_word(node.func) in ("roll", "shift_tokens_right", "generate_square_subsequent_mask", "from_pretrained", "pad")
    parts = node.slice.elts if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) else []
    return any(isinstance(one, ast.Slice) and (number_in(one.lower) == 1 or (is_negative(one.upper) and number_in(one.upper.operand) == 1)) for one in parts)


@RULES.add("loss-of-unmasked-words", "most of the loss asks for words that stand in the input: it falls as the model learns to copy", "set the labels to -100 where nothing is masked")
def _unmasked(program: Program) -> Iterator[Remark]:
    """Words that are masked at random, and a loss over all of them."""
    if not any("mask" in source.text.lower() and "cross" in source.text.lower() for source in program.sources):
        return
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own_nodes(scope):
            found = _masked(flow, node)
            if found is None:
                continue
            mask, ids = found
            uses = [one for one in own_nodes(scope) if is_read(one, mask)]
            losses = [one for one in own(scope, ast.Call) if loss_name(program, one) in _OF_WORDS and len(one.args) > 1 and _is_all_of(flow, one.args[1], ids)]
            if len(uses) == 1 and losses:
                yield Remark(losses[0], f"{short(losses[0])} asks for all of {ids}, and only what {mask} marks is hidden from the model")
                break


def _masked(flow: Flow, node: ast.AST) -> tuple[str, str] | None:
    """The mask and the words of `x.masked_fill(m, MASK)`, `torch.where(m, MASK, x)` and `x = ids.clone(); x[m] = MASK`."""
    mask = ids = word = None
    if is_method(node, "masked_fill") and len(node.args) == 2:
        mask, word, ids = node.args[0], node.args[1], node.func.value
    elif is_method(node, "where") and flow.program.called(node) == "torch.where" and len(node.args) == 3:
        mask, word, ids = node.args
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        mask, word = node.targets[0].slice, node.value
        made = flow.value(node.targets[0].value)
        ids = made.func.value if is_method(made, "clone") else None
    if not isinstance(mask, ast.Name) or not isinstance(ids, ast.Name) or word is None or "mask" not in text_of(word).lower():
        return None
    drawn = any(compares(one, *ORDERS) and any(is_method(side, "rand", "rand_like") for side in ast.walk(one)) for one in flow.origins(mask))
    return (mask.id, ids.id) if drawn else None


def _is_all_of(flow: Flow, node: ast.AST, name: str) -> bool:
    """Whether an expression is a variable, in whatever shape."""
    while is_method(node, "view", "reshape", "flatten", "long", "contiguous", "clone") and not flow.program.called(node):
        node = node.func.value
    if isinstance(node, ast.Name) and node.id != name:
        value = flow.value(node)
        return value is not node and isinstance(value, ast.expr) and _is_all_of(flow, value, name)
    return is_name(node, name)


@RULES.add("padding-not-ignored", "the loss and the score also count the padding, as if what it is filled with were labels", "pad the labels with the number that the loss ignores, or leave the padding out: (error * mask).sum() / mask.sum()")
def _not_ignored(program: Program) -> Iterator[Remark]:
    """Labels that are padded with another number than the one that the loss is told to ignore."""
    flow = flow_of(program)
    told = {flow.number(argument(made, "ignore_index", 2 if program.called(made).endswith("CrossEntropyLoss") else 3)) for made in program.calls() if program.called(made) in _TOLD and argument(made, "ignore_index") is not None}
    if not told and _takes_no_padding_out(program):
        told.add(-100)  # what the losses ignore by themselves
    if len(told) != 1 or None in told:
        return
    ignored = told.pop()
    for call in program.calls():
        if program.called(call) != "torch.nn.utils.rnn.pad_sequence":
            continue
        padding = argument(call, "padding_value", 2)
        number = 0.0 if padding is None else flow.number(padding)
        statement = program.statement(call)
        targets = [target for target, value in pairs_of(statement) if value is call] if isinstance(statement, ast.Assign) else []
        if number is not None and number != ignored and len(targets) == 1 and _LABELS.search(text_of(targets[0])):
            yield Remark(call, f"{short(call)} pads {text_of(targets[0])} with {number:g}, and the loss ignores {ignored:g}")


def _takes_no_padding_out(program: Program) -> bool:
    """Whether all losses over classes are means, and nothing in a program is a mask or counts lengths."""
    losses = [call for call in program.calls() if program.called(call) in _TOLD]
    names = {last_word(one).lower() for one in program.everywhere(ast.Name, ast.Attribute)} | {word.arg or "" for call in program.calls() for word in call.keywords}
    kept = ("mask", "length", "lens", "pack_padded", "nonzero", "valid", "ignore", "crf")
    taken = any(len(call.args) > 1 and loss_name(program, call) in _OF_WORDS for call in program.calls())
    return taken and bool(losses) and not any(word.arg in ("reduction", "weight", None) for call in losses for word in call.keywords) and not any(word in name for name in names for word in kept)


@RULES.add("perplexity-of-another-base", "the logarithms of torch are natural: the perplexity that is reported is too small", "torch.exp(loss), or math.exp(loss)")
def _other_base(program: Program) -> Iterator[Remark]:
    """2 to the power of a cross entropy in natural logarithms."""
    flow = flow_of(program)
    if any("log2" in source.text or "log(2" in source.text for source in program.sources):
        return
    for node in program.everywhere(ast.BinOp, ast.Call):
        power = node.right if is_binary(node, ast.Pow) and number_in(node.left) == 2 else None
        if is_method(node, "pow", "power") and len(node.args) == 2 and number_in(node.args[0]) == 2:
            power = node.args[1]
        found = next((one for one in _behind(flow, program.scope(node), power, 2) if loss_name(program, one) in _OF_WORDS), None) if power is not None else None
        if found is not None:
            yield Remark(node, f"{short(node)} takes 2 for the base of {short(found, 40)}, whose logarithms are natural")


@RULES.add("perplexity-with-smoothing", "what is reported is no perplexity: the smoothed loss is larger, and cannot reach that of a perfect model", "compute the loss of the evaluation without label_smoothing")
def _smoothed(program: Program) -> Iterator[Remark]:
    """exp() of a cross entropy that smooths its labels."""
    flow = flow_of(program)
    for call in program.calls():
        source = (call.args[0] if call.args else call.func.value) if is_method(call, "exp") else None
        if source is None:
            continue
        for one in _behind(flow, program.scope(call), source, 2):
            made = flow.value(one.func) if program.family(one.func) == "loss" else one
            smoothing = flow.number(argument(made, "label_smoothing")) if isinstance(made, ast.Call) and loss_name(program, one) in _OF_WORDS else None
            if smoothing:
                yield Remark(call, f"{short(call)} is taken of {short(one, 40)}, whose labels are smoothed by {smoothing:g}")
                break


def _behind(flow: Flow, scope: ast.AST, node: ast.AST, depth: int) -> Iterator[ast.Call]:
    """The calls whose results an expression is computed from, through sums of a loop and through functions."""
    found = list(flow.origins(node))
    for added in own(scope, ast.AugAssign):
        if is_name(added.target, *(part.id for part in found if isinstance(part, ast.Name)), ""):
            found += flow.origins(added.value)
    for kept in own(scope, ast.Call):
        if is_method(kept, "append") and kept.args and is_name(kept.func.value, *(part.id for part in found if isinstance(part, ast.Name)), ""):
            found += flow.origins(kept.args[0])
    for one in found:
        if isinstance(one, ast.Call):
            yield one
            local = flow.program.local_function(one) if depth else None
            for value in returned(local) if local is not None else ():
                if value is not None:
                    yield from _behind(flow, local, value, depth - 1)  # type: ignore[arg-type]


@RULES.add("perplexity-of-each-batch", "the mean of exponentials is larger than the exponential of the mean, and one bad batch decides it", "average the losses over all tokens, and take exp() once")
def _perplexity(program: Program) -> Iterator[Remark]:
    """A perplexity that is computed for each batch and averaged."""
    flow = flow_of(program)
    for call in program.calls():
        value = flow.value(call.args[0]) if is_method(call, "append") and len(call.args) == 1 and is_name(call.func.value) and program.loops(call) else None
        while is_method(value, "item", "cpu", "detach"):
            value = flow.value(value.func.value)
        source = (value.args[0] if value.args else value.func.value) if is_method(value, "exp") else None
        if source is None or not any(loss_name(program, one) in _OF_WORDS for one in flow.origins(source)) or not is_method(call):
            continue
        listed = text_of(call.func.value)
        if any((is_method(one, "mean", "fmean") or is_call(one, "sum", "mean")) and one.args and text_of(one.args[0]) == listed and one is not call for one in own(program.scope(call), ast.Call)):
            yield Remark(call, f"{short(call)} keeps a perplexity for each batch")
    for node in program.everywhere(ast.AugAssign):
        if not isinstance(node.op, ast.Add) or not isinstance(node.target, ast.Name) or not program.loops(node):
            continue
        powers = [one for one in flow.origins(node.value) if is_method(one, "exp")]
        inner = powers[0] if powers and powers[0] in (node.value, flow.value(node.value)) else None
        source = (inner.args[0] if inner.args else inner.func.value) if isinstance(inner, ast.Call) and is_method(inner, "exp") else None
        of_loss = source is not None and any(loss_name(program, one) in _OF_WORDS for one in flow.origins(source))
        divided = any(is_binary(one, ast.Div) and is_read(one.left, node.target.id) for one in own_nodes(program.scope(node)))
        if of_loss and divided:
            yield Remark(node, f"{short(node)} adds up a perplexity for each batch")


RULES.add(
    "unknown-word-is-padding",
    "words that are not known are left out like padding, as if they did not stand in the text",
    "give them the entry for unknown words: vocab.get(word, vocab['<unk>'])",
)(unknown_word_is_padding)


RULES.add(
    "score-not-shifted",
    "the score says how often the model repeats the word before it, and falls as it learns to predict",
    "compare with the word after it: pred[:, :-1] == ids[:, 1:]",
)(score_not_shifted)
RULES.add(
    "padding-of-another-number",
    "the row of a word stays at zero, and the padding has a vector that is trained like a word",
    "give the number of the padding: nn.Embedding(n, d, padding_idx=pad)",
)(padding_of_another_number)
RULES.add(
    "errors-per-guessed-word",
    "the rate falls as the network writes more than there is: it is no error rate, and cannot be compared with any",
    "divide by the length of the text itself: distance(text, guess) / len(text)",
)(errors_per_guessed_word)
RULES.add(
    "perplexity-of-more-than-words",
    "what is reported is larger than the perplexity, by a factor that depends on the weight of the penalty",
    "take the exponential of the cross entropy alone",
)(perplexity_of_more)
RULES.add(
    "looked-up-as-written",
    "each word with a large letter is unknown, though it stands in the table",
    "bring the words into the same form: vocab.get(word.lower(), unknown)",
)(looked_up_as_written)
RULES.add(
    "answer-left-out",
    "the model is trained to write prompts, and not to answer them",
    "leave out the prompt: labels[: len(prompt)] = -100",
)(answer_left_out)
RULES.add(
    "padding-shown-by-its-mask",
    "the mask leaves nothing out: the padding is read like words, and what a text gives depends on the longest one beside it",
    "fill the mask up with 0, whatever fills up the words: pad_sequence(masks, batch_first=True)",
)(padding_shown_by_its_mask)
RULES.add(
    "mask-of-the-word-before",
    "behind each text one padding more is asked for, or counted: what is learned, or reported, holds a word that nobody wrote",
    "shift the mask as the words that are asked for: mask[:, 1:]",
)(mask_of_the_word_before)
