"""Scores before a softmax, and what a transformer is given and asked for. Pure; standard library only."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    comes_from,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.sequences.same_words import ahead_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short, text_of
from probe.diagnose.code.traits.arithmetic import (
    TURNED,
    is_large,
    is_run_of_network,
    networks,
    product,
    root_of,
    sides,
)
from probe.diagnose.code.traits.basic import without_small
from probe.diagnose.code.traits.numberings import PADDING, WORDS, marked

FINDERS = Finders()
_ATTENDING = ("torch.nn.MultiheadAttention", "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer")
_CONTRACTIONS = ("matmul", "einsum", "inner", "baddbmm")


def _scores(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """What softmax, logsumexp or cross_entropy is taken of, without masks, and that user."""
    for value in computation.of("softmax", "log_softmax", "logsumexp", "cross_entropy"):
        if value.args:
            at = bare(value.args[0], *TURNED)
            while at.args and (at.op in ("masked_fill", "add", "fill_diagonal_") or (at.op == "sub" and number(at.args[0]) is None) or (at.op == "set_item" and is_large(at.args[-1]))):
                at = bare(at.args[0], *TURNED)
            yield at, value


@FINDERS.add("multiplied-by-temperature")
def _multiplied_by_temperature(program: Program) -> Iterator[Remark]:
    """Scores between -1 and 1, or what is named a temperature, are multiplied by less than 1 before a softmax."""
    for scores, user in _scores(computation_of(program)):
        for one, other in sides(scores):
            known = _factor(other) if scores.op == "mul" else None
            if known is None or not 0 < known < 1:
                continue
            if _is_named_temperature(scores.node, bare(other)) or (known <= 0.5 and user.op == "cross_entropy" and _is_cosine(one)):
                yield Remark(scores.node, f"{short(scores.node)} multiplies by {known:g}, and {short(user.node)} takes its softmax")


def _factor(value: Value) -> float | None:
    """The number that a factor is, or begins with: also of `exp` of a parameter that is the logarithm of one."""
    value = bare(value)
    if value.op != "exp" or not value.args:
        return number(value)
    inner = bare(value.args[0])
    inner = bare(inner.args[0]) if inner.op == "torch.nn.Parameter" and inner.args else inner
    if inner.op == "log" and inner.args:
        return number(bare(inner.args[0]))
    known = number(inner)
    return math.exp(known) if known is not None and abs(known) < 50 else None


def _is_named_temperature(node: ast.AST, value: Value) -> bool:
    """Whether one side of a product is named a temperature, and is not the inverse of one."""
    if any(isinstance(one, ast.BinOp) and isinstance(one.op, (ast.Div, ast.Pow)) for one in ast.walk(value.node)):
        return False
    texts = [text_of(one).lower() for one in _operands(node)]
    return any(re.search(r"temperature|(?:^|[^a-z])(?:temp|tau)(?:$|[^a-z])", text) and "inv" not in text and "/" not in text for text in texts)


def _operands(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return list(node.args) if isinstance(node, ast.Call) else []


def _is_cosine(value: Value) -> bool:
    """Whether a value is a product of vectors of length 1."""
    value = bare(value)
    both = [bare(one, *TURNED) for one in value.args[-2:]]
    return value.op == "cosine_similarity" or (value.op in _CONTRACTIONS and len(both) == 2 and all(_is_unit(one) for one in both))


def _is_unit(value: Value) -> bool:
    """Whether a value is made of vectors of length 1."""
    value = bare(value, *TURNED, "part", "chunk", "split", "cat")
    return value.op == "normalize" or (value.op == "div" and without_small(value.args[1]).op in ("norm", "vector_norm"))


def _is_normalized(value: Value) -> bool:
    """Whether the length of vectors is set by a normalization."""
    inner = bare(value, *TURNED, "part", "chunk", "split", "cat")
    return _is_unit(value) or inner.op in ("layer_norm", "rms_norm") or (inner.op == "run" and "Norm" in inner.args[0].op)


@FINDERS.add("scores-scaled-up")
def _scores_scaled_up(program: Program) -> Iterator[Remark]:
    """The products of queries and keys are multiplied by the root of their width before a softmax."""
    for scores, user in _scores(computation_of(program)):
        if user.op == "cross_entropy":
            continue
        above, below, contraction = _scaled(scores)
        if contraction is None or any(_is_normalized(one) for one in contraction.args[-2:]):
            continue
        up = next((one for one in above if _is_root_of_width(one, 0.5)), None) or next((one for one in below if _is_root_of_width(one, -0.5)), None)
        down = any(_is_root_of_width(one, 0.5) for one in below) or any(_is_root_of_width(one, -0.5) for one in above)
        if up is not None and not down:
            yield Remark(scores.node, f"{short(scores.node)} makes the scores larger by {short(up.node)}")


def _scaled(value: Value) -> tuple[list[Value], list[Value], Value | None]:
    """The factors and divisors of scores, also of the queries and keys; and the product of these."""
    factors = product(value)
    above, below, found = [], list(factors.below), None
    for one in factors.above:
        one = bare(one, *TURNED)
        if one.op in _CONTRACTIONS and len(one.args) >= 2 and found is None:
            found = one
            for side in one.args[-2:]:
                inner = product(bare(side, *TURNED))
                above += inner.above
                below += inner.below
        else:
            above.append(one)
    if found is not None:
        kept = [bare(one, *TURNED) for one in above]
        both = [one for one in kept if not _is_root_of_width(one, 0.5) and not _is_root_of_width(one, -0.5)]
        if len(both) == 2:
            found = Value(found.op, both, node=found.node, where=found.where)
    return above, below, found


def _is_root_of_width(value: Value, power: float) -> bool:
    """Whether a value is a number to the power 0.5 (or -0.5)."""
    value = bare(value)
    node = value.node
    if value.op == "@constant":
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _number_in(node.right) == power and not 0.5 < (number(value) or 1) < 2
    of = root_of(value) if power > 0 else None
    if value.op == "pow" and number(value.args[1]) == power:
        of = value.args[0]
    if power < 0 and value.op == "rsqrt":
        of = value.args[0]
    if power < 0 and value.op == "div" and number(value.args[0]) == 1 and _is_root_of_width(value.args[1], 0.5):
        return True
    if of is None:
        return False
    of = bare(of)
    return (number(of) or 0) >= 4 or of.op in ("size", "floordiv", "@input") or (of.op == "part" and bare(of.args[0]).op in ("shape", "size"))


def _number_in(node: ast.AST) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number_in(node.operand)
        return None if inner is None else -inner
    return float(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) else None


@FINDERS.add("temperature-on-one-side")
def _temperature_on_one_side(program: Program) -> Iterator[Remark]:
    """Only one of the two distributions that are compared is softened."""
    computation = computation_of(program)
    known = networks(computation)
    pairs = [(value, value.args[0], value.args[1]) for value in computation.of("kl_div") if len(value.args) > 1]
    pairs += [(value, a, b) for value in computation.of("mul") for a, b in sides(value)]
    for value, log, wanted in pairs:
        log, wanted = bare(log), bare(_without_index(wanted))
        if log.op != "log_softmax" or wanted.op not in ("softmax", "log_softmax") or not log.args or not wanted.args:
            continue
        divisors = [_temperature(log.args[0]), _temperature(wanted.args[0])]
        outputs = [_output(one.args[0], known) for one in (log, wanted)]
        warm = [one for one in divisors if one is not None]
        if len(warm) == 1 and (number(bare(warm[0])) or 0) > 1 and None not in outputs and outputs[0] is not outputs[1]:
            soft, hard = (wanted, log) if divisors[0] is None else (log, wanted)
            yield Remark(value.node, f"{short(soft.node)} is softened by {short(warm[0].node)}, and {short(hard.node)} (line {hard.line}) is not")


def _without_index(value: Value) -> Value:
    value = bare(value)
    while value.op == "part" and isinstance(value.args[1], Value) and value.args[1].op in ("slice", "index"):
        value = bare(value.args[0])
    return value


def _temperature(value: Value) -> Value | None:
    """What logits are divided by."""
    value = bare(value)
    return value.args[1] if value.op == "div" else None


def _output(value: Value, known: set[int]) -> Value | None:
    """The network whose output logits are."""
    value = bare(value)
    while value.args and value.op in ("div", "cat", "part"):
        value = bare(value.args[0])
        while isinstance(value, Many) and value.parts:
            value = bare(value.parts[0])
    return value.args[0] if is_run_of_network(value, known) else None


# What a transformer is given ------------------------------------------------------


@FINDERS.add("positions-of-the-batch")
def _positions_of_the_batch(program: Program) -> Iterator[Remark]:
    """Positions are numbered along the first axis, and the layers that follow take that for the batch."""
    computation = computation_of(program)
    for value in computation.of("add"):
        for positions, tokens in sides(value):
            count = next((one for one in origins(positions) if one.op == "arange" or (one.op == "part" and _rows_of(one) is not None)), None)
            numbered = None if count is None else _first_axis(count, tokens)
            layer = None if numbered is None else _batch_first(value, computation)
            if numbered is not None and layer is not None:
                yield Remark(value.node, f"{short(positions.node)} is numbered along the first axis of {short(numbered.node)}, and batch_first=True (line {layer.line}) makes that the batch")


def _rows_of(value: Value) -> Value | None:
    """The slice that a part takes of the first axis, and of no other one: `x[:n]`, `x[:n, :]`."""
    index = value.args[1]
    parts = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
    if not parts or parts[0].op != "slice" or any(one.op != "slice" or not all(is_none(each) for each in one.args) for one in parts[1:]):
        return None
    return parts[0]


def _has_one_row(value: Value) -> bool:
    """Whether a value has an axis of one row in front."""
    while value.args and value.op in (*KEPT, "set_item", "torch.nn.Parameter"):
        value = value.args[0]
    if value.op in ("zeros", "randn", "rand", "empty"):
        sizes = value.args[0].parts if value.args and isinstance(value.args[0], Many) else value.args
        return bool(sizes) and number(sizes[0]) == 1
    return value.op == "unsqueeze" and number(value.argument("dim", 1)) == 0


def _first_axis(count: Value, tokens: Value) -> Value | None:
    """What positions have as many of as its first axis is long, if tokens are made of that."""
    rows = _rows_of(count) if count.op == "part" else None
    if rows is not None and _has_one_row(count.args[0]):
        return None
    bounds = rows.args if rows is not None else count.args
    given = [one for one in bounds if not (one.op == "@constant" and one.data in (None, 0))]
    if len(given) != 1:
        return None
    length = bare(given[0])
    of: Value | None = None
    if length.op == "len" or (length.op == "size" and len(length.args) > 1 and number(length.args[1]) == 0):
        of = length.args[0]
    elif length.op == "part" and number(length.args[1]) == 0 and bare(length.args[0]).op in ("shape", "size"):
        of = bare(length.args[0]).args[0]
    at = tokens
    while at.args and of is not None and at is not of and (at.op in ("mul", "dropout", "to") or (at.op == "run" and at.args[0].op in ("torch.nn.Embedding", "torch.nn.Linear") and len(at.args) > 1)):
        at = at.args[1] if at.op == "run" else at.args[0]
    return of if of is not None and (at is of or same(at, of)) else None


def _batch_first(value: Value, computation: Computation) -> Value | None:
    """The transformer or recurrent layer with batch_first=True that a value is given to."""
    for user in computation.users(value):
        if user.op in ("dropout", "to", "layer_norm") or (user.op == "run" and user.args[0].op in ("torch.nn.Dropout", "torch.nn.LayerNorm")):
            found = _batch_first(user, computation)
            if found is not None:
                return found
        elif user.op == "run" and len(user.args) > 1 and user.args[1] is value:
            layer = user.args[0]
            while layer.op in ("torch.nn.TransformerEncoder", "element") and layer.args:
                layer = layer.args[0]
            if layer.op in ("torch.nn.TransformerEncoderLayer", "torch.nn.MultiheadAttention", "torch.nn.LSTM", "torch.nn.GRU") and constant(layer.named.get("batch_first")) is True:
                return layer
    return None


@FINDERS.add("targets-not-shifted")
def _targets_not_shifted(program: Program) -> Iterator[Remark]:
    """A network that sees no later word is asked for the very words that it is given."""
    for value in computation_of(program).of("cross_entropy"):
        target = bare(value.args[1], "masked_fill") if len(value.args) > 1 else None
        if target is None or target.op == "@constant":
            continue
        made = list(origins(value.args[0]))
        given = [one for one in made if one.op == "run" and one.args[0].op == "torch.nn.Embedding" and len(one.args) > 1 and bare(one.args[1]) is target]
        causal = any(
            one.op in ("triu", "tril") or one.op.endswith("generate_square_subsequent_mask") or constant(one.named.get("is_causal")) is True for one in made
        )
        if given and causal and not any(one.op in ("roll", "cat", "pad") for one in origins(given[0].args[1], stop=("run",))) and not any(_is_interleaved(one, given[0]) for one in made):
            yield Remark(value.node, f"{short(value.node)} asks for the words that {short(given[0].node)} (line {given[0].line}) reads: nothing shifts the targets")


def _is_interleaved(value: Value, read: Value) -> bool:
    """Whether words that are read stand between others of another kind: state, action, state, action."""
    parts = value.args[0].parts if value.op in ("stack", "cat") and value.args and isinstance(value.args[0], Many) else []
    along = value.op == "stack" or number(value.argument("dim", 1)) == 1
    return len(parts) > 1 and along and any(comes_from(one, read) for one in parts) and not all(comes_from(one, read) for one in parts)


@FINDERS.add("language-model-without-mask")
def _reads_ahead(program: Program) -> Iterator[Remark]:
    """Each position is asked for the token after it, and attends to all positions, also to that token."""
    for loss in computation_of(program).of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        target = bare(loss.args[1])
        made = list(origins(loss.args[0]))
        ahead = {id(read) for read, places in ahead_of(loss.args[0], loss.args[1]) if places == 1}
        given = next((one for one in made if id(one) in ahead or _is_read_before(one, target)), None)
        attends = [one for one in made if given is not None and one.op == "run" and one.args[0].op in _ATTENDING and comes_from(one.args[min(2, len(one.args) - 1)], given)]
        attends += [one for one in made if given is not None and one.op == "scaled_dot_product_attention" and comes_from(one.args[0], given)]
        open_ones = [one for one in attends if one.op == "scaled_dot_product_attention" and one.argument("attn_mask", 3) is None and one.argument("is_causal", 5) is None]
        open_ones += [one for one in attends if one.op == "run" and len(one.args) in (2, 4) and not one.named.keys() & {"mask", "attn_mask", "src_mask", "is_causal", "**"}]
        weighed = [(one, is_open) for one in made if given is not None and (is_open := _is_open(one, given)) is not None]
        attends += [one for one, _ in weighed]
        open_ones += [one for one, is_open in weighed if is_open]
        if attends and len(attends) == len(open_ones) and not any(one.op in ("triu", "tril") or _compares_places(one) or (one.op.startswith("torch.nn.Transformer") and one.op.endswith("_mask")) for one in made):
            yield Remark(attends[0].node, f"{short(attends[0].node)} has no mask, and {short(target.node)} (line {target.line}) are the tokens one position after those that are read: each position sees the one that it is asked for")
            return


def _compares_places(value: Value) -> bool:
    """Whether a value is a comparison of places with places."""
    return value.op in ("lt", "le", "gt", "ge") and len(value.args) == 2 and all(any(each.op in ("arange", "range", "index") for each in origins(one, ("run",))) for one in value.args)


def _is_read_before(value: Value, target: Value) -> bool:
    """Whether a layer looks up the words one position before the targets."""
    return value.op == "run" and value.args[0].op == "torch.nn.Embedding" and len(value.args) > 1 and _is_one_later(target, bare(value.args[1]))


def _is_open(value: Value, given: Value) -> bool | None:
    """Whether the weights of an attention that is written out are those of all positions; None where a value is no such
    weights."""
    scores = value.args[0] if value.op == "softmax" and value.args else value
    while scores.args and scores is not value and (scores.op in ("div", "mul", "to", "float") or scores.op in SHAPED):
        scores = scores.args[0] if number(scores.args[0]) is None else scores.args[-1]
    if scores is value:
        return None
    product = scores if scores.op in ("matmul", "einsum") else next((one for one in origins(scores, ("matmul", "einsum", "run")) if one.op in ("matmul", "einsum")), None)
    sides_given = [one for one in product.args if one.op != "@constant"] if product is not None else []
    if len(sides_given) != 2 or any(not comes_from(one, given) for one in sides_given) or any(_is_of_steps(one, given) for one in sides_given):
        return None
    return scores is product


def _is_of_steps(value: Value, given: Value) -> bool:
    """Whether a value is a sum over places, or a list of what was computed step by step."""
    found = [*origins(value, ("run",)), *origins(value, ("size", "shape", "len", "device", "dtype"), without=(given,))]
    return any(one.op in ("mean", "sum", "max") or (isinstance(one, Many) and one.grown) for one in found)


def _is_one_later(target: Value, given: Value) -> bool:
    """Whether a part of a sequence begins one position after another one of as many."""
    if target.op != "part" or given.op != "part" or not same(target.args[0], given.args[0]):
        return False
    one, other = target.args[1], given.args[1]
    if one.op == "add" and any(same(part, other) for part in one.args):
        return any(number(part) == 1 for part in one.args)
    cuts = [(index.parts[-1] if isinstance(index, Many) and index.parts else index) for index in (one, other)]
    if any(cut.op != "slice" for cut in cuts):
        return False
    bounds = [[number(bound) for bound in cut.args[:2]] for cut in cuts]
    return bounds[0][0] == 1 and bounds[1][1] == -1 and bounds[1][0] in (None, 0) and constant(cuts[0].args[1]) is None


@FINDERS.add("mask-without-effect")
def _padding_shown(program: Program) -> Iterator[Remark]:
    """A mask that is true at the padding goes where True marks what takes part, or one that is true at the words where it
    marks what is hidden."""
    computation = computation_of(program)
    for value in computation.of("scaled_dot_product_attention", "run", "masked_fill", "where", "add"):
        given, meant = _mask_in(value)
        marks = None if given is None else marked(computation, given)
        first_part = given is not None and bare(given).op in ("lt", "le", "gt", "ge") and any(number(one) == -100 for one in value.args[1:])
        if given is not None and marks is not None and marks != meant and not first_part:  # labels of a prompt are hidden so
            other = "takes part" if meant == WORDS else "is hidden"
            yield Remark(value.node, f"{short(given.node)} is true at the {marks}, and {short(value.node)} takes True for what {other}")
            return


def _mask_in(value: Value) -> tuple[Value | None, str]:
    """The mask that an attention is given, and what it has to be true at."""
    if value.op == "scaled_dot_product_attention":
        return value.argument("attn_mask", 3), WORDS
    if value.op == "run":
        return value.named.get("key_padding_mask") or value.named.get("src_key_padding_mask"), PADDING
    if value.op == "add":
        products = [bare(one) for one in value.args if bare(one).op == "mul"]
        return next((mask for one in products for mask, by in (one.args[:2], one.args[1::-1]) if is_large(bare(by))), None), PADDING
    fills = value.args[1:] if value.op == "where" else [None, *value.args[2:3]]
    hidden = [one is not None and any(is_large(each) for each in (one, *one.args[:1])) for one in fills]
    if len(value.args) < 3 or len(hidden) != 2 or hidden[0] == hidden[1]:
        return None, WORDS
    return value.args[0 if value.op == "where" else 1], WORDS if value.op == "where" and hidden[1] else PADDING
