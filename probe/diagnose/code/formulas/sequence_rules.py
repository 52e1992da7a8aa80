"""Sequences: means over padding, norms over time, positions that are not the words' own. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import bare
from probe.diagnose.code.finders.agents.ends_of_texts import (
    cache_never_emptied,
    prompt_left_out_in_part,
    reward_behind_the_end,
)
from probe.diagnose.code.finders.agents.masks_of_answers import (
    left_out_in_the_divisor,
    mask_of_another_answer,
)
from probe.diagnose.code.finders.sequences.softmax_of_frames import over_the_frames
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_method,
    is_own,
    names_of,
    number_in,
    operands,
    own,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("loop")
_NEVER_NEGATIVE = ("cdist", "pairwise_distance", "norm", "vector_norm", "abs", "square", "relu", "sigmoid", "softmax", "exp", "softplus", "sqrt", "rsqrt")
_SAME_SIGN = ("sum", "mean", "clone", "detach", "float", "view", "reshape", "unsqueeze", "squeeze", "contiguous", "to", "clamp", "clamp_min")
_CACHES = re.compile(r"past|cache|kv_cache|past_kv|past_key_values?|layer_past|pasts|caches")


@RULES.add("mean-over-padding", "the result depends on the padding: the same text in another batch gives another one", "divide by the number of positions that the mask keeps: x.sum(1) / mask.sum(1); before a maximum, fill with -inf")
def _mean_over_padding(program: Program) -> Iterator[Remark]:
    """Positions that are set to 0 by a mask, and averaged together with the others."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "mean", "max", "amax"):
            continue
        free = program.called(call) in ("torch.mean", "torch.max", "torch.amax")
        over = argument(call, "dim", int(free))
        source = flow.value(call.args[0] if free and call.args else call.func.value)
        if call.func.attr == "mean" and over is None and not call.keywords:
            yield from _whole_mean(program, flow, call, source)
            continue
        if flow.number(over) not in (1, -2):
            continue
        mask: ast.AST | None = None
        if is_method(source, "masked_fill", "masked_fill_") and len(source.args) == 2 and flow.number(source.args[1]) == 0:
            mask = source.args[0]
        elif is_binary(source, ast.Mult):
            mask = next((one for one in (source.left, source.right) if "mask" in text_of(one).lower()), None)
        if mask is not None and _marks_padding(flow, mask) and not (call.func.attr != "mean" and (_never_below_zero(flow, _filled(source, mask)) or _is_of_distances(program, call))):
            does = "divides by all positions, also by" if call.func.attr == "mean" else "finds nothing below 0 beside"
            yield Remark(call, f"{short(call)} {does} those that {short(mask, 40)} sets to 0")


def _filled(source: ast.AST, mask: ast.AST) -> ast.AST:
    """What a mask sets to 0 in places."""
    if isinstance(source, ast.BinOp):
        return source.left if source.right is mask else source.right
    return source.func.value if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) else source


def _never_below_zero(flow: Flow, node: ast.AST) -> bool:
    """Whether values are distances, probabilities or sizes: a largest one of them is none that was set to 0."""
    value = flow.value(node)
    for _ in range(8):
        name = value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""
        if name in _NEVER_NEGATIVE or (is_binary(value, ast.Pow) and (number_in(value.right) or 1) % 2 == 0):
            return True
        if name not in _SAME_SIGN or not isinstance(value, ast.Call):
            return False
        value = flow.value(value.args[0] if flow.program.called(value) and value.args else value.func.value)  # type: ignore[attr-defined]
    return False


def _is_of_distances(program: Program, call: ast.Call) -> bool:
    """Whether what is filled with 0, and then searched for its largest value, is never below 0, wherever it is computed."""
    filled = [bare(one.args[0]) for one in computation_of(program).of("max", "amax") if one.node is call and one.args]
    return any(one.op == "masked_fill" and bare(one.args[0]).op in _NEVER_NEGATIVE for one in filled)


def _whole_mean(program: Program, flow: Flow, call: ast.Call, source: ast.AST) -> Iterator[Remark]:
    """A mean over errors of all positions, of which a mask of lengths sets the padded ones to 0."""
    while is_method(source, "pow", "abs", "square") or (is_binary(source, ast.Pow) and number_in(source.right) is not None):
        source = flow.value(source.func.value if is_method(source) else source.left)  # type: ignore[union-attr]
    for mask, errors in operands(source) if is_binary(source, ast.Mult) else ():
        made = flow.value(mask)
        whole = program.results(made) or [made]
        lengths = any(_positions_below(part) for one in whole for part in flow.origins(one))
        if lengths and any(is_binary(one, ast.Sub) or loss_name(program, one) for one in flow.origins(errors)):
            yield Remark(call, f"{short(call)} divides by all positions, also by those that {short(mask, 40)} sets to 0: the more padding a batch has, the less it counts")


def _positions_below(node: ast.AST) -> bool:
    """Whether an expression compares positions with lengths: `arange(n) < lengths[:, None]`."""
    return isinstance(node, ast.Compare) and is_method(_unshaped(node.left), "arange") and "len" in text_of(node.comparators[0]).lower()


def _unshaped(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Subscript) or is_method(node, "unsqueeze", "expand", "view", "to"):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value
    return node


def _marks_padding(flow: Flow, mask: ast.AST) -> bool:
    """Whether a mask is a comparison of words or positions, and not drawn at random."""
    origins = list(flow.origins(mask))
    for one in list(origins):
        origins += [found for given in flow.possible(one) for found in ast.walk(given)] if isinstance(one, ast.Name) else []
    compared = any(isinstance(one, ast.Compare) or is_method(one, "eq", "ne", "lt", "gt") for one in origins)
    return compared and not any(is_method(one, "rand", "rand_like", "bernoulli", "bernoulli_", "randn") for one in origins)


@RULES.add("normalized-over-time", "each feature is divided by its norm over the sequence, so vectors of one position have no unit length", "write F.normalize(x, dim=-1)")
def _over_time(program: Program) -> Iterator[Remark]:
    """F.normalize with its default dimension, 1, on what a recurrent or attention layer gives for each position."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) != "torch.nn.functional.normalize" or not call.args or argument(call, "dim", 2) is not None or any(one.arg is None for one in call.keywords):
            continue
        at: ast.AST | None = call.args[0]
        for _ in range(6):
            one = flow.given(at) if at is not None else None
            whole = one.value if one is not None and one.place in (None, 0) else at
            made = flow.maker(whole) if isinstance(whole, ast.Call) else None
            kind = program.called(made).rpartition(".")[2] if made is not None else ""
            if kind in ("GRU", "LSTM", "RNN", "TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention"):
                first = made is not None and any(word.arg == "batch_first" for word in made.keywords)
                if first or kind == "TransformerEncoder":
                    yield Remark(call, f"{short(call)} works along dimension 1, which for the output of {short(whole, 40) if whole is not None else kind} is the sequence")
                break
            if kind not in ("Linear", "Dropout", "LayerNorm", "ReLU", "GELU", "Tanh") or not isinstance(whole, ast.Call) or not whole.args:
                break
            at = whole.args[0]


@RULES.add("positions-of-the-batch", "every position of a sample gets the same encoding, that of the sample's place in the batch", "take the encodings along the sequence: pe[: x.size(1)]")
def _positions(program: Program) -> Iterator[Remark]:
    """Encodings of positions that are taken along the first dimension, with attention that has the batch there."""
    attention = [one for one in program.calls() if program.called(one) in ("torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoderLayer", "torch.nn.MultiheadAttention", "torch.nn.Transformer")]
    turned = any(is_method(one, "transpose", "permute", "swapaxes") for one in program.calls())
    first = [argument(one, "batch_first") for one in attention]
    if turned or not first or not all(isinstance(one, ast.Constant) and one.value is True for one in first):
        return
    for function in program.everywhere(ast.FunctionDef):
        if function.name != "forward" or len(function.args.args) < 2:
            continue
        given = function.args.args[1].arg
        for node in own(function, ast.BinOp):
            for _, encoding in operands(node) if is_binary(node, ast.Add) else ():
                at = encoding
                while is_method(at, "unsqueeze", "detach", "to", "requires_grad_"):
                    at = at.func.value
                rows = at.slice if isinstance(at, ast.Subscript) and is_attribute(at.value) else None
                rows = rows.elts[0] if isinstance(rows, ast.Tuple) and rows.elts else rows
                if isinstance(rows, ast.Slice) and rows.lower is None and rows.upper is not None and text_of(rows.upper) in (f"{given}.size(0)", f"{given}.shape[0]", f"len({given})"):
                    yield Remark(encoding, f"{short(encoding)} follows the first dimension of {given}, and batch_first=True makes that the batch")


@RULES.add("positions-begin-again", "with a cache, each new word gets the position 0: generation goes on as if it stood at the start", "begin behind the cache: torch.arange(start, start + x.size(1))")
def _begin_again(program: Program) -> Iterator[Remark]:
    """Positions from 0 in a forward that is also given the keys and values of earlier words."""
    for function in program.everywhere(ast.FunctionDef):
        given = [one.arg for one in function.args.args]
        caches = [name for name in given if _CACHES.fullmatch(name)]
        if not caches or function.name != "forward":
            continue
        counted = [one for one in own(function, ast.Call) if program.called(one) == "torch.arange" and len(one.args) == 1]
        shifted = any(is_binary(one, ast.Add, ast.Sub) and any(is_method(part, "arange") or "pos" in text_of(part).lower() for part in (one.left, one.right)) and any(_CACHES.search(name) or "start" in name or "offset" in name or "past" in name for name in names_of(one)) for one in own(function, ast.BinOp))
        for call in counted if len(counted) == 1 and not shifted else ():
            around = program.parent.get(call)
            looked_up = isinstance(around, ast.Call) and is_own(around.func) and "pos" in around.func.attr.lower()
            if looked_up and program.called(call) and f"{given[1]}.s" in text_of(call.args[0]):
                yield Remark(call, f"{short(call)} begins at 0 in every call, also where {caches[0]} holds the words before")


RULES.add(
    "softmax-over-the-frames",
    "the probabilities of a frame do not add up to 1, and depend on the other frames: the loss is none of probabilities",
    "let it run over the classes: log_softmax(dim=-1) before the axes are turned",
)(over_the_frames)
RULES.add(
    "mask-of-another-answer",
    "words of the prompt or the padding count as those of the answer, and some of its own do not: the comparison is not between the two answers",
    "make the mask of each answer from the answer itself",
)(mask_of_another_answer)
RULES.add(
    "left-out-in-the-divisor",
    "the more rows are left out, the smaller the mean: the loss and the steps shrink with them",
    "divide by the sum of the same mask that multiplies: (x * keep).sum() / keep.sum()",
)(left_out_in_the_divisor)
RULES.add(
    "cache-never-emptied",
    "a text is written on as if the texts before stood in front of it",
    "empty the cache before each text: layer.k_cache = layer.v_cache = None",
)(cache_never_emptied)
RULES.add(
    "prompt-left-out-in-part",
    "the model is also trained to write the end of prompts",
    "count the words before the prompt too: labels[: 1 + len(prompt)] = -100",
)(prompt_left_out_in_part)
RULES.add(
    "reward-behind-the-end",
    "the earlier a text ends, the less of its score comes to its words: texts learn to be long",
    "put the score at the last word: rewards[torch.arange(n), mask.sum(1) - 1] += score",
)(reward_behind_the_end)
