"""Attention over the wrong axis, and decoders that see what they have to predict. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import data_sets, is_model
from probe.diagnose.code.finders.sequences.readings import first_position_alone
from probe.diagnose.code.finders.sequences.rotations import (
    distance_rewarded,
    rotated_on_one_side,
    turned_by_anothers_angle,
)
from probe.diagnose.code.finders.words.packed_rows import texts_see_each_other
from probe.diagnose.code.finders.words.rounded_positions import positions_rounded
from probe.diagnose.code.flow import DEPTH, Flow, flow_of
from probe.diagnose.code.model.modules import softmax_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_binary,
    is_false,
    is_method,
    last_word,
    number_in,
    own_nodes,
    returned,
    short,
    text_of,
)

RULES = Rules("model")
_TURNS = ("permute", "movedim", "rearrange", "swapaxes", "t", "einsum", "stack", "view", "reshape")
_MAYBE_FIRST = ("torch.nn.MultiheadAttention", "torch.nn.TransformerEncoderLayer")
_DECODERS = {"torch.nn.Transformer": 3, "torch.nn.TransformerDecoder": 2, "torch.nn.TransformerDecoderLayer": 2}
"""Modules of torch that decode, and the place of tgt_mask among the arguments of their call."""


@RULES.add(
    "attention-over-the-batch",
    "samples read from one another, and no position reads from its own sequence",
    "make the attention with batch_first=True, or give it (positions, batch, width)",
)
def _over_the_batch(program: Program) -> Iterator[Remark]:
    """An attention without batch_first in a module, where the model around it keeps the batch in front."""
    flow = flow_of(program)
    for call in program.calls():
        made, of = flow.maker(call), program.class_of(call)
        encoder = program.called(made) == "torch.nn.TransformerEncoder"
        if encoder and made is not None and made.args:
            layer = flow.value(made.args[0])
            made = layer if isinstance(layer, ast.Call) else None
        if of is None or made is None or program.called(made) not in _MAYBE_FIRST:
            continue
        first = argument(made, "batch_first")
        open_ended = any(one.arg is None for one in made.keywords)
        if open_ended or not (first is None or is_false(first)) or _turned(program.function_of(call)):
            continue
        makers = (program.class_of(one) for one in program.calls() if program.called(one) == of.name)
        for user in dict.fromkeys([of, *makers]):
            forward = program.method(user, "forward") if user is not None else None
            shown = None if forward is None or _turned(forward) else next(_in_front(program, forward, encoder), None)
            if shown is not None and user is not None:
                yield Remark(
                    call,
                    f"{short(made)} is made without batch_first=True and takes (positions, batch, width), and "
                    f"{user.name} has the batch in front: {short(shown)} (line {shown.lineno})",
                )
                break


def _turned(function: Function | None) -> bool:
    """Whether a function may exchange the first two axes."""
    return function is not None and any(
        (is_method(one, *_TURNS) and not _keeps_first(one))
        or (is_method(one, "transpose") and "0" in [text_of(part) for part in one.args])
        for one in ast.walk(function)
    )


def _keeps_first(view: ast.Call) -> bool:
    """Whether a view leaves the first axis as it is: `x.reshape(x.size(0), -1, width)`."""
    sizes = view.args[0].elts if len(view.args) == 1 and isinstance(view.args[0], ast.Tuple) else view.args
    if not is_method(view, "view", "reshape") or not sizes:
        return False
    whole = text_of(view.func.value)
    return text_of(sizes[0]) in (f"{whole}.size(0)", f"{whole}.shape[0]", f"len({whole})")


def _in_front(program: Program, forward: Function, encoder: bool) -> Iterator[ast.expr]:
    """Expressions that are right only where the batch is in front of the positions. What is taken of an `encoder`'s
    output at its end, or on average, is another rule's."""
    for one in ast.walk(forward):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Tuple):
            parts = [text_of(part) for part in one.slice.elts]
            if (parts == [":", "0"] or (parts == [":", "-1"] and not encoder)) and isinstance(one.value, (ast.Name, ast.Call)):
                yield one
        elif is_method(one, "mean", "max", "sum") and program.called(one) == "" and not encoder:
            over = argument(one, "dim", 0)
            if over is not None and text_of(over) == "1":
                yield one
        elif isinstance(one, ast.Call) and program.called(one) == "torch.cat":
            along = argument(one, "dim", 1)
            expands = [part.args for part in ast.walk(one) if is_method(part, "expand", "repeat")]
            if along is not None and text_of(along) == "1" and any(_repeats_first(args) for args in expands):
                yield one
        elif is_method(one, "transpose") and text_of(one).endswith(".flatten(2).transpose(1, 2)"):
            yield one  # (batch, channels, height, width) to (batch, positions, channels)


def _repeats_first(sizes: list[ast.expr]) -> bool:
    """Whether `x.expand(n, -1, -1)` or `x.repeat(n, 1, 1)` repeats something for each sample."""
    return len(sizes) == 3 and all(text_of(one) in ("-1", "1") for one in sizes[1:])


@RULES.add(
    "decoder-without-mask",
    "each position reads the token that it has to predict: the loss falls, and what is generated is wrong",
    "give it tgt_mask=nn.Transformer.generate_square_subsequent_mask(length)",
)
def _without_mask(program: Program) -> Iterator[Remark]:
    """A decoder that gets the targets but for the last, is trained on those but for the first, and has no mask."""
    shifted = next(_shifted(program), None)
    flow = flow_of(program)
    for call in program.calls() if shifted is not None else ():
        name = program.called(flow.maker(call))
        if name not in _DECODERS or program.class_of(call) is None or len(call.args) < 2:
            continue
        named = {one.arg for one in call.keywords}
        if named & {"tgt_mask", "tgt_is_causal", None} or len(call.args) > _DECODERS[name]:
            continue
        if shifted is not None:
            yield Remark(call, f"{short(call)} has no tgt_mask, and {shifted} are read and predicted one apart")


@RULES.add(
    "language-model-without-mask",
    "each position reads the token that it has to predict: the loss falls to nearly 0, and what is generated is wrong",
    "give it a causal mask: mask=nn.Transformer.generate_square_subsequent_mask(n), or is_causal=True",
)
def _reads_ahead(program: Program) -> Iterator[Remark]:
    """A model of the next token whose only attention is that of an encoder, and that has no mask of any kind."""
    cut = next(_next_tokens(program), None)
    if cut is None or _may_be_masked(program) or not _predicts_tokens(program):
        return
    flow = flow_of(program)
    for call in program.calls():
        of, made = program.class_of(call), flow.maker(call)
        name = program.called(made)
        attends = name == "torch.nn.MultiheadAttention" and len(call.args) >= 3 and len({text_of(one) for one in call.args[:3]}) == 1
        fused = program.called(call) == "torch.nn.functional.scaled_dot_product_attention" and len(call.args) == 3 and not call.keywords
        attends = attends or fused or _weighs(program, flow, call)
        encodes = name in ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer") and len(call.args) == 1
        if of is not None and (attends or encodes) and not any(one.arg is None for one in call.keywords):
            yield Remark(call, f"{short(call)} has no mask, and {cut} one position apart: each position sees the token that it should predict")
            return


def _weighs(program: Program, flow: Flow, call: ast.Call) -> bool:
    """Whether a call is the softmax of the scores of an attention, written out in a module's forward."""
    of = program.class_of(call)
    if of is None or not program.is_module_class(of) or not is_method(call, "softmax"):
        return False
    found = softmax_of(flow, call)
    scores = flow.value(found[1]) if found is not None and found[0] is call else None
    for _ in range(DEPTH):
        if not is_binary(scores, ast.Mult, ast.Div):
            break
        scores = flow.value(scores.left)
    turned = is_binary(scores, ast.MatMult) and is_method(flow.value(scores.right), "transpose")
    return turned or (is_method(scores, "matmul", "bmm") and any(is_method(flow.value(one), "transpose") for one in scores.args))


def _next_tokens(program: Program) -> Iterator[str]:
    """What says that a model reads tokens and predicts those one further on."""
    flow = flow_of(program)
    cut = set(_shifted(program))
    for call in program.calls():
        whole = flow.value(call.args[0]) if call.args else None
        if isinstance(whole, ast.Subscript) and is_model(flow, call.func) and len(call.args) == 1 and text_of(whole.value) in cut and _way(whole) == ":-1":
            yield f"{text_of(whole.value)} is read and predicted"
        logits = _bare(flow, call.args[0]) if len(call.args) > 1 else None
        target = _bare(flow, call.args[1]) if len(call.args) > 1 else None
        if isinstance(logits, ast.Subscript) and isinstance(target, ast.Subscript) and (_way(logits), _way(target)) == (":-1", "1:"):
            made = flow.value(logits.value)
            if isinstance(made, ast.Call) and is_model(flow, made.func) and made.args and text_of(made.args[0]) == text_of(target.value):
                yield f"{text_of(target.value)} is read and predicted"
    for of in data_sets(program):
        getter = program.method(of, "__getitem__")
        for pair in returned(getter) if getter is not None else ():
            yield from _pair_apart(flow, pair)
    for function in program.everywhere(ast.FunctionDef):
        for pair in returned(function) if "batch" in function.name else ():
            yield from _pair_apart(flow, pair)


def _pair_apart(flow: Flow, pair: ast.expr | None) -> Iterator[str]:
    """Two slices of one text that are one position apart, also stacked to a batch."""
    parts = [flow.value(one) for one in pair.elts] if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 else []
    slices = [_sliced(flow, one) for one in parts]
    if pair is not None and len(slices) == 2 and None not in slices and _one_apart(slices[0], slices[1]):
        yield f"{short(pair, 50)} are read and predicted"


def _bare(flow: Flow, node: ast.AST) -> ast.AST:
    """A slice of positions, but for its shape."""
    value = flow.value(node)
    for _ in range(DEPTH):
        if not (is_method(value, "reshape", "view", "contiguous", "flatten", "transpose", "permute") and not flow.program.called(value)):
            break
        value = flow.value(value.func.value)
    return value


def _way(node: ast.Subscript) -> str:
    index = text_of(node.slice).replace(" ", "").strip("()").removesuffix(",:")
    return index.rpartition(",")[2]


def _sliced(flow: Flow, node: ast.AST) -> ast.Subscript | None:
    """The slice that a sample is made of, but for its type."""
    for _ in range(4):
        if isinstance(node, ast.Subscript):
            return node if isinstance(node.slice, ast.Slice) else None
        if is_method(node, "long", "to", "astype", "clone") and not flow.program.called(node):
            node = flow.value(node.func.value)
        elif is_method(node, "stack") and node.args and isinstance(node.args[0], ast.ListComp):
            node = flow.value(node.args[0].elt)
        elif isinstance(node, ast.Call) and flow.program.called(node) in ("torch.tensor", "torch.LongTensor", "torch.as_tensor", "torch.from_numpy") and node.args:
            node = flow.value(node.args[0])
        else:
            return None
    return None


def _one_apart(first: ast.Subscript | None, second: ast.Subscript | None) -> bool:
    """Whether two slices of one thing are one element apart: [i:i + n] and [i + 1:i + n + 1], or [:-1] and [1:]."""
    if first is None or second is None or text_of(first.value) != text_of(second.value):
        return False
    one, other = first.slice, second.slice
    if not isinstance(one, ast.Slice) or not isinstance(other, ast.Slice) or other.lower is None:
        return False
    if one.lower is None:
        return one.upper is not None and text_of(one.upper) == "-1" and text_of(other.lower) == "1" and other.upper is None
    return is_binary(other.lower, ast.Add) and text_of(other.lower.left) == text_of(one.lower) and text_of(other.lower.right) == "1"


def _may_be_masked(program: Program) -> bool:
    """Whether a program has a mask, a decoder, or an encoder of something else beside the model."""
    for node in program.everywhere(ast.Name, ast.Attribute, ast.keyword, ast.arg, ast.FunctionDef, ast.ClassDef):
        text = last_word(node) if isinstance(node, (ast.Name, ast.Attribute)) else getattr(node, "arg", None) or getattr(node, "name", None) or ""
        word = text.lower()
        if any(one in word for one in ("causal", "triu", "tril", "subsequent", "decoder", "mask")) and "padding_mask" not in word:
            return True
    return False


def _predicts_tokens(program: Program) -> bool:
    """Whether a program embeds tokens, and its loss is that of classes."""
    names = {program.called(one).rpartition(".")[2] for one in program.calls()}
    return "Embedding" in names and bool(names & {"cross_entropy", "CrossEntropyLoss"})


@RULES.add(
    "softmax-without-axis",
    "without dim, torch takes axis 0 of three, and axis 1 of four: the batch or the heads, and not the keys",
    "give it dim=-1",
)
def _without_axis(program: Program) -> Iterator[Remark]:
    """A softmax of attention scores with a batch that is not told its axis."""
    flow = flow_of(program)
    for call in program.calls():
        found = softmax_of(flow, call)
        made = flow.maker(call)
        told = call.keywords or (made is not None and (made.keywords or made.args))
        if found is None or found[0] is not call or found[2] is not None or told or not (program.called(call) or made is not None):
            continue
        scores = _unscaled(flow, found[1])
        for _ in range(DEPTH):
            if not is_method(scores, "masked_fill", "masked_fill_"):
                break
            scores = _unscaled(flow, scores.func.value)
        batched = is_method(scores, "bmm") or any(
            is_method(one, "transpose") and [text_of(part) for part in one.args] in (["1", "2"], ["2", "1"], ["2", "3"], ["-2", "-1"], ["-1", "-2"]) for one in ast.walk(scores)
        )
        if batched and (is_binary(scores, ast.MatMult) or is_method(scores, "matmul", "bmm")):
            yield Remark(call, f"{short(call)} is given no dim, and its scores have a batch")


@RULES.add(
    "rows-masked-whole",
    "a softmax is not changed by what all scores of a row have in common: the padding is attended to as before",
    "let the mask run along the keys, the last axis: mask[:, None, None, :]",
)
def _whole_rows(program: Program) -> Iterator[Remark]:
    """Scores of queries and keys that are masked along the queries, before a softmax along the keys."""
    flow = flow_of(program)
    for call in program.calls():
        found = softmax_of(flow, call)
        if found is None or found[0] is not call or flow.number(found[2]) != -1:
            continue
        masked = flow.value(found[1])
        if not is_method(masked, "masked_fill", "masked_fill_") or not masked.args or not _are_scores(flow, _unscaled(flow, masked.func.value)):
            continue
        hides = [one for one in own_nodes(program.frame(call)) if is_method(one, "masked_fill", "masked_fill_")]
        if len(hides) > 1 or any(one in hides for one in ast.walk(masked.func.value)):
            continue  # another mask may run along the keys
        mask = flow.value(masked.args[0])
        for _ in range(DEPTH):
            if not (isinstance(mask, (ast.Compare, ast.UnaryOp)) or is_method(mask, "bool", "to", "eq")):
                break
            inner = mask.left if isinstance(mask, ast.Compare) else mask.operand if isinstance(mask, ast.UnaryOp) else mask.func.value
            mask = flow.value(inner)
        if _ends_in_one(mask):
            yield Remark(masked, f"{short(mask, 50)} has length 1 along the last axis, which {short(call, 40)} runs over: whole rows of scores are filled")


def _unscaled(flow: Flow, node: ast.AST) -> ast.AST:
    """Scores without the number that they are divided by."""
    value = flow.value(node)
    for _ in range(DEPTH):
        if not is_binary(value, ast.Div, ast.Mult):
            break
        value = flow.value(value.left)
    return value


def _ends_in_one(mask: ast.AST) -> bool:
    """Whether a tensor certainly has length 1 along its last axis."""
    if is_method(mask, "unsqueeze") and mask.args:
        return text_of(mask.args[0]) == "-1"
    parts = mask.slice.elts if isinstance(mask, ast.Subscript) and isinstance(mask.slice, ast.Tuple) else []
    return len(parts) > 2 and text_of(parts[-1]) == "None"  # x[:, None] of a matrix ends in the axis of x


@RULES.add(
    "scaled-after-softmax",
    "the weights of a position add up to a fraction of 1, and the scores themselves stay as large as they were",
    "divide the scores before the softmax: softmax(q @ k.T / sqrt(d), dim=-1)",
)
def _scaled_after(program: Program) -> Iterator[Remark]:
    """Weights of an attention that are divided by the root of the width after their softmax."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Div, ast.Mult):
            continue
        found = softmax_of(flow, node.left)
        if found is None or found[0] is not flow.value(node.left):
            continue
        if _are_scores(flow, found[1]) and _is_width(program, flow, node.right):
            yield Remark(node, f"{short(node)} scales by {short(node.right, 30)} what {short(found[0], 40)} has already normalized")


def _are_scores(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is a product of queries and keys, masked in some branch or not."""
    scores = flow.value(node)
    for _ in range(DEPTH):
        if not is_method(scores, "masked_fill", "masked_fill_"):
            break
        scores = flow.value(scores.func.value)
    values = flow.values(flow.key(scores)) if isinstance(scores, ast.Name) else [scores]
    kept = [one for one in values if not is_method(one, "masked_fill", "masked_fill_")]
    return bool(kept) and all(is_binary(one, ast.MatMult) or is_method(one, "matmul", "bmm", "einsum", "mm") for one in kept)


def _is_width(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a factor is a root: sqrt(d), d ** 0.5, d ** -0.5, or 1 / sqrt(d)."""
    value = flow.value(node)
    if is_binary(value, ast.Div) and number_in(value.left) == 1:
        value = flow.value(value.right)
    if isinstance(value, ast.Call) and program.called(value) in ("math.sqrt", "numpy.sqrt", "torch.sqrt"):
        return True
    return is_binary(value, ast.Pow) and flow.number(value.right) in (0.5, -0.5)


def _shifted(program: Program) -> Iterator[str]:
    """What is cut both as x[:, :-1] and as x[:, 1:]."""
    cut: dict[str, set[str]] = {}
    for node in program.everywhere(ast.Subscript):
        index = text_of(node.slice).replace(" ", "").strip("()")
        for way in (":-1", "1:"):
            if index in (f":,{way}", way):
                cut.setdefault(text_of(node.value), set()).add(way)
    yield from (name for name, ways in cut.items() if len(ways) == 2)


RULES.add(
    "turned-by-anothers-angle",
    "the two numbers that are turned against each other have two angles: the product of two words does not tell their distance",
    "repeat each angle for neighbours (repeat_interleave(2)), or turn halves",
)(turned_by_anothers_angle)
RULES.add(
    "rotated-on-one-side",
    "the product depends on the place of the one word alone: no distance between two words is seen",
    "turn both the queries and the keys",
)(rotated_on_one_side)
RULES.add(
    "distance-rewarded",
    "each position attends to the words that are farthest from it, and hardly to its neighbours",
    "subtract it: scores - slopes * distance",
)(distance_rewarded)
RULES.add(
    "first-position-alone",
    "what is predicted depends on the first word of each sequence, and on no other",
    "take the last position, or attend both ways",
)(first_position_alone)
RULES.add(
    "packed-texts-see-each-other",
    "each text is read with those before it in its row, which it does not have when it is read alone",
    "mask by text: attn_mask = doc[:, None, :] == doc[:, :, None], with the causal mask",
)(texts_see_each_other)
RULES.add(
    "positions-rounded",
    "positions far from the start cannot be told apart: the order of what stands there is not seen",
    "compute the angles in float32, and convert the table afterwards",
)(positions_rounded)
