"""Padded texts, and their masks, labels and models. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Table,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.data.text_rules import vocabulary
from probe.diagnose.code.finders.data.fitted import paddings
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_negative, last_word, number_in, short
from probe.diagnose.code.traits.basic import without_small
from probe.diagnose.code.traits.extents import batch_first
from probe.diagnose.code.traits.numberings import PADDING, contents, filled_up, is_one_ahead, marked, written

FINDERS = Finders()
_CAUSAL = re.compile(r"(CausalLM|LMHeadModel)(\.from_\w+)?$")
_TOKENIZER = re.compile(r"Tokenizer(Fast)?(\.from_\w+)?$")
_ENCODER = re.compile(r"\.(Auto|Bert|Roberta|DistilBert|Albert|Electra|DebertaV2|Deberta|XLMRoberta|Camembert|MPNet)(Model|ForSequenceClassification|ForTokenClassification|ModelFor(Sequence|Token)Classification|ForMaskedLM|ModelForMaskedLM)(\.from_\w+)?$")
"""Models that attend both ways."""
_RIGHT_SIDED = re.compile(r"(GPT2|GPTNeo|GPTNeoX|OPT|Bloom|CodeGen)\w*\.from_pretrained$")
"""Tokenizers that fill up on the right where they are not told otherwise."""
_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
_PAD_SEQUENCE = "torch.nn.utils.rnn.pad_sequence"


# What transformers are given ---------------------------------------------------------


def _maker(value: Value) -> str:
    """The name of what makes a model or a tokenizer of transformers; empty for all else."""
    at = value
    while at.op in ("to", "eval", "train", "cuda", "half", "float", "requires_grad_", "deepcopy", "compile") and at.args:
        at = at.args[0]
    return at.op if at.op.startswith("transformers.") else ""


def _tokenized(value: Value) -> Value | None:
    """The call of a tokenizer that a value is a part of."""
    while value.args:
        if value.op in ("run", "pad", "batch_encode_plus") and _TOKENIZER.search(_maker(value.args[0])):
            return value
        if value.op not in ("part", "pop", "input_ids", "attention_mask", "to", "long", "cuda", "clone", "tensor", "rows", "either", "data", "set_item", "element", "convert_to_tensors"):
            return None
        value = value.args[0]
    return None


def fills_up(call: Value) -> bool:
    """Whether a tokenizer is told to fill several texts up to one length."""
    told = constant(call.named.get("padding"))
    if told == "max_length":
        return True
    texts = call.argument("text", 1)
    several = texts is not None and (texts.op in ("list", "tuple", "element", "part", "rows", "@input") or isinstance(texts, Many)) and texts.op not in ("text", "add")
    return several and told in (True, "longest") and texts is not None and (isinstance(texts, Many) or texts.op == "list")


def is_tokenizer(value: Value) -> bool:
    """Whether a value is a tokenizer of transformers."""
    return _TOKENIZER.search(_maker(value)) is not None


def _given(call: Value, name: str, place: int | None = None) -> Value | None:
    """What a model is given under a name, also by `**`."""
    if name in call.named or (place is not None and place < len(call.args)):
        return call.argument(name, place)
    at = call.named.get("**")
    while at is not None:
        if isinstance(at, Table):
            return at.entries.get(name)
        if at.op == "set_item" and constant(at.args[1]) == name:
            return at.args[2]
        at = at.args[0] if at.op in ("set_item", "to", "rows", "cuda") and at.args else None
    return None


def _models(computation: Computation) -> Iterator[Value]:
    """Where a model of transformers is applied."""
    for value in computation.of("run"):
        made = _maker(value.args[0])
        if made and not _TOKENIZER.search(made) and "Processor" not in made:
            yield value


# Masks ----------------------------------------------------------------------------------


def _is_of_padding(computation: Computation, mask: Value) -> bool | None:
    """Whether a mask is 1 where the padding is (True) or where the text is (False); None where that is not known."""
    mask = bare(mask, "bool")
    if mask.op == "invert" or (mask.op == "sub" and number(mask.args[0]) == 1):
        inner = _is_of_padding(computation, mask.args[-1])
        return None if inner is None else not inner
    if mask.op == "set_item" and _is_begin_of_rows(mask.args[1]) and number(mask.args[2]) in (0, 1):
        return number(mask.args[2]) == 0 and _block(mask).op.startswith(("ones", "full"))
    if mask.op in ("zeros", "ones", "zeros_like", "ones_like"):
        puts = [one for one in written(computation, mask) if _is_begin_of_rows(one.args[1])]
        return None if not puts or number(puts[0].args[2]) != float(mask.op.startswith("zeros")) else mask.op.startswith("ones")
    if mask.op in ("eq", "ne") and len(mask.args) == 2:
        return (mask.op == "eq") if _is_padding(computation, mask.args[0], mask.args[1]) else None
    if mask.op in ("ge", "lt", "gt", "le") and len(mask.args) == 2 and bare(mask.args[0]).op == "arange" and _are_lengths(mask.args[1]):
        return mask.op in ("ge", "gt")
    if _tells_text(mask):
        return False
    known = marked(computation, mask)
    return None if known is None else known == PADDING


def _block(value: Value) -> Value:
    while value.op in ("set_item", "element", "part") and value.args:
        value = value.args[0]
    return value


def _is_begin_of_rows(index: Value) -> bool:
    """Whether an index is `[:length]`, perhaps within a row."""
    last = index.parts[-1] if isinstance(index, Many) and index.parts else index
    return last.op == "slice" and is_none(last.args[0]) and bare(last.args[1]).op in ("len", "element", "size", "part")


def _are_lengths(value: Value) -> bool:
    """Whether a value holds the lengths of samples."""
    while value.op == "part" and value.args:
        value = value.args[0]
    value = bare(value)
    inner = value.parts[0] if isinstance(value, Many) and len(value.parts) == 1 else value
    return bare(inner).op == "len"


def _tells_text(mask: Value) -> bool:
    """Whether a mask is the attention_mask of a tokenizer."""
    named = mask.op == "attention_mask" or (mask.op in ("part", "pop") and len(mask.args) > 1 and constant(mask.args[1]) == "attention_mask")
    return named and _tokenized(mask) is not None


def _is_padding(computation: Computation, ids: Value, one: Value) -> bool:
    """Whether numbers are compared with that of their padding."""
    one = bare(one)
    if one.op == "pad_token_id" and _maker(one.args[0]):
        return True
    if one.op == "padding_idx" and one.args:
        return True
    known = number(one)
    fill = filled_up(computation, ids)
    if fill is not None and ((known is not None and fill[0] == known) or (known is None and same(bare(fill[1]), one))):
        return True
    tables = [value.args[0] for value in computation.of("run") if value.args[0].op == "torch.nn.Embedding" and len(value.args) > 1 and same(bare(value.args[1]), bare(ids))]
    return known is not None and any(number(table.argument("padding_idx", 2)) == known for table in tables)


@FINDERS.add("mean-of-the-padding")
def _mean_of_padding(program: Program) -> Iterator[Remark]:
    """A sum over what a mask of the padding keeps is divided by the number that it marks."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value in computation.of("div"):
        total, count = bare(value.args[0]), bare(without_small(value.args[1]), "clamp", "clamp_min", "maximum", "max")
        if total.op != "sum" or count.op != "sum" or value.node in seen:
            continue
        summed, counted = bare(total.args[0]), count.args[0]
        wrong: bool | None = False
        if summed.op == "mul" and any(same(bare(one), bare(counted)) for one in summed.args):
            wrong = _is_of_padding(computation, counted)
        elif summed.op == "masked_fill" and len(summed.args) > 2 and number(summed.args[2]) == 0:
            wrong = _is_of_padding(computation, summed.args[1]) is False
        if wrong:
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the mean of the positions of the padding, and leaves the text out (mask: line {bare(counted).line})")


@FINDERS.add("attention-to-the-padding")
def _attention(program: Program) -> Iterator[Remark]:
    """A model of transformers gets a mask that is 1 where the padding is."""
    computation = computation_of(program)
    for call in _models(computation):
        mask = _given(call, "attention_mask")
        if mask is not None and _is_of_padding(computation, mask):
            yield Remark(call.node, f"{short(call.node)} is given an attention_mask that is 1 where the padding is: {short(bare(mask).node)} (line {bare(mask).line})")
            return


@FINDERS.add("padding-read-as-text")
def _without_mask(program: Program) -> Iterator[Remark]:
    """A model that attends both ways gets texts that a tokenizer has filled up, and no mask."""
    computation = computation_of(program)
    for call in _models(computation):
        if not _ENCODER.search(_maker(call.args[0])) or len(call.args) > 2 or "attention_mask" in call.named or "encoder_outputs" in call.named:
            continue
        more = call.named.get("**")
        taken = [one for one in computation.of("pop") if one.number < call.number and one.args[0] is more and len(one.args) > 1 and constant(one.args[1]) == "attention_mask"]
        if more is None:
            ids = call.argument("input_ids", 1)
            call_of = None if ids is None or not _is_input_ids(ids) else _tokenized(ids)
        else:
            call_of = _behind(more) if taken else None
        if call_of is not None and fills_up(call_of):
            yield Remark(call.node, f"{short(call.node)} is given no attention_mask, and {short(call_of.node)} (line {call_of.line}) fills the texts up")
            return


def _is_input_ids(value: Value) -> bool:
    """Whether a value is the numbers of a tokenizer's texts."""
    while value.op in ("to", "long", "cuda", "rows", "clone", "tensor") or (value.op == "part" and len(value.args) > 1 and not isinstance(constant(value.args[1]), str)):
        value = value.args[0]
    return value.op == "input_ids" or (value.op == "part" and len(value.args) > 1 and constant(value.args[1]) == "input_ids")


def _behind(table: Value) -> Value | None:
    """The call of a tokenizer that a dict, or what is left of it, was made of."""
    return next((one for one in origins(table) if one.op == "run" and _TOKENIZER.search(_maker(one.args[0]))), None)


# Labels ------------------------------------------------------------------------------


def _leaves_out(program: Program) -> bool:
    """Whether a program takes something out of its labels."""
    if any(is_negative(one) and number_in(one.operand) == 100 for one in program.everywhere(ast.UnaryOp)):
        return True
    return any(last_word(one.func).startswith(("DataCollatorFor", "Seq2SeqTrainer", "SFTTrainer")) or any(word.arg in ("ignore_index", "label_pad_token_id") for word in one.keywords) for one in program.calls())


@FINDERS.add("padding-in-the-labels")
def _padding_in_labels(program: Program) -> Iterator[Remark]:
    """The labels that a model of transformers gets are filled up with the number of the padding."""
    if _leaves_out(program):
        return
    computation = computation_of(program)
    for call in _models(computation):
        labels = _given(call, "labels")
        if labels is None or not re.search(r"(CausalLM|LMHeadModel|Seq2SeqLM|ConditionalGeneration)", _maker(call.args[0])):
            continue
        labels = bare(labels, "rows")
        tokens = _tokenized(labels) if _is_input_ids(labels) else None
        if tokens is not None and labels.op != "set_item" and fills_up(tokens):
            yield Remark(tokens.node, f"the labels of {short(call.node)} (line {call.line}) are padded: {short(tokens.node)} fills up to a length")
            return
        fill = labels.argument("padding_value", 2) if labels.op == _PAD_SEQUENCE else None
        if fill is not None and (number(fill) or 0) >= 0:
            yield Remark(labels.node, f"{short(labels.node)} fills the labels of {short(call.node)} (line {call.line}) up with {short(fill.node)}, and the loss counts that")
            return


@FINDERS.add("padding-not-ignored")
def _not_ignored(program: Program) -> Iterator[Remark]:
    """Labels are filled up with the number of a class, and the loss leaves out another one."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for loss in computation.of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or constant(loss.named.get("reduction")) == "none" or "weight" in loss.named or loss.node in seen or len(loss.args) > 2:
            continue
        given = loss.named.get("ignore_index")
        ignored = -100.0 if given is None else number(given)
        fill = filled_up(computation, loss.args[1])
        if fill is None or fill[0] is None or ignored is None or fill[0] == ignored or fill[0] < 0 or _picks(computation, loss.args[1]):
            continue
        if not _holds_samples(computation, fill[2]):
            continue
        seen.add(loss.node)
        yield Remark(fill[2].node, f"{short(fill[2].node)} fills the labels up with {fill[0]:g}, and {short(loss.node)} (line {loss.line}) leaves out {ignored:g}")


def _picks(computation: Computation, labels: Value) -> bool:
    """Whether labels are picked by a mask or an index on the way to a loss."""
    for one in contents(computation, labels):
        if one.op in ("part", "masked_select", "index_select", "set_item") and len(one.args) > 1:
            index = one.args[1]
            parts = index.parts if isinstance(index, Many) else [index]
            if any(at.op not in ("slice", "@constant", "index", "element") for at in parts):
                return True
        if one.op == "where":
            return True
    return False


def _holds_samples(computation: Computation, padded: Value) -> bool:
    """Whether the labels of each sample, of different lengths, are what is filled up."""
    if padded.op == _PAD_SEQUENCE:
        return True
    if padded.op == "pad":
        width = padded.args[1].parts if isinstance(padded.args[1], Many) else []
        return len(width) == 2 and number(width[0]) == 0 and number(width[1]) is None and any(one.op == "len" or one.op in ("size", "shape") for one in origins(width[1]))
    return True


# Axes -----------------------------------------------------------------------------------


@FINDERS.add("padded-along-another-axis")
def _another_axis(program: Program) -> Iterator[Remark]:
    """What pad_sequence gives reaches a layer that takes the other axis for the batch."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value in computation.of("run", "torch.nn.utils.rnn.pack_padded_sequence"):
        layer = value.args[0] if value.op == "run" else value
        if layer.op not in (*_RECURRENT, "torch.nn.TransformerEncoder", "torch.nn.utils.rnn.pack_padded_sequence") or layer.node in seen:
            continue
        given = _before(value.args[1] if value.op == "run" and len(value.args) > 1 else value.args[0])
        first, padded = batch_first(layer), batch_first(given) if given.op == _PAD_SEQUENCE else None
        if first is not None and padded is not None and first != padded:
            seen.add(layer.node)
            front, other = ("batch", "steps") if padded else ("steps", "batch")
            yield Remark(given.node, f"{short(given.node)} puts the {front} in front, and {short(layer.node)} (line {layer.line}) takes the {other} in front")


def _before(value: Value) -> Value:
    """What layers that work on the last axis are done on."""
    for _ in range(12):
        value = bare(value, "relu", "gelu", "tanh", "dropout", "rows", shapes=False)
        if value.op == "run" and len(value.args) > 1 and value.args[0].op in ("torch.nn.Linear", "torch.nn.Embedding", "torch.nn.LayerNorm"):
            value = value.args[1]
        else:
            break
    return value


@FINDERS.add("padded-on-the-right")
def _on_the_right(program: Program) -> Iterator[Remark]:
    """A model writes on behind prompts that are filled up at their end."""
    computation = computation_of(program)
    if any(value.data == "padding_side" for value in computation.of("set_attribute")):
        return
    for call in computation.of("generate"):
        if not _CAUSAL.search(_maker(call.args[0])):
            continue
        ids = _given(call, "input_ids", 1) or _given(call, "inputs") or call.named.get("**")
        if ids is None:
            continue
        padded = next((one for one in contents(computation, ids) if one.op == _PAD_SEQUENCE), None)
        tokens = _tokenized(ids)
        if padded is not None:
            turned = any(one.op in ("flip", "reversed") for one in origins(padded)) or constant(padded.argument("padding_side", 3)) == "left"
            if not turned and any(_TOKENIZER.search(_maker(one.args[0])) for one in origins(padded) if one.op == "run"):
                yield Remark(call.node, f"{short(call.node)} writes on behind the padding that {short(padded.node)} (line {padded.line}) puts at the end of shorter prompts")
                return
        elif tokens is not None and tokens.op == "run" and fills_up(tokens) and _is_right_sided(tokens):
            yield Remark(call.node, f"{short(call.node)} writes on behind the padding that {short(tokens.node)} (line {tokens.line}) puts at the end of shorter prompts")
            return


def _is_right_sided(tokens: Value) -> bool:
    """Whether a tokenizer fills up at the end of a text."""
    tokenizer = tokens.args[0]
    side = constant(tokens.named.get("padding_side") or tokenizer.named.get("padding_side"))
    if "**" in tokens.named or "**" in tokenizer.named:
        return False
    return side == "right" or (side is None and bool(_RIGHT_SIDED.search(_maker(tokenizer))))


# Tokenizers and models ---------------------------------------------------------------------


@FINDERS.add("vocabulary-of-another-model")
def _other_vocabulary(program: Program) -> Iterator[Remark]:
    """The numbers of a tokenizer go into a model with another vocabulary."""
    computation = computation_of(program)
    for call in _models(computation):
        model = next((one for one in origins(call.args[0]) if one.op == _maker(call.args[0])), None)
        tokens = next((one.args[0] for one in origins(call) if one.op == "run" and one is not call and _TOKENIZER.search(_maker(one.args[0]))), None)
        names = [constant(one.argument("pretrained_model_name_or_path", 0)) if one is not None and one.op.endswith("from_pretrained") else None for one in (tokens, model)]
        if tokens is None or model is None or not isinstance(names[0], str) or not isinstance(names[1], str):
            continue
        kinds = [vocabulary(name) for name in names if isinstance(name, str)]
        if all(kinds) and kinds[0] != kinds[1]:
            yield Remark(tokens.node, f"the tokenizer is that of {names[0]}, and the model (line {model.line}) is {names[1]}: their vocabularies differ")
            return


@FINDERS.add("labels-shifted-twice")
def _twice(program: Program) -> Iterator[Remark]:
    """A causal model of transformers, which shifts its labels itself, gets labels that are one place ahead."""
    computation = computation_of(program)
    for call in _models(computation):
        labels, ids = _given(call, "labels"), _given(call, "input_ids", 1)
        if labels is None or not _CAUSAL.search(_maker(call.args[0])):
            continue
        labels = bare(labels, "rows", "masked_fill")
        ids = None if ids is None else bare(ids, "rows")
        rolled = labels.op == "roll" and number(labels.argument("shifts", 1)) == -1
        ahead = labels.op == "part" and ids is not None and ids.op == "part" and same(bare(labels.args[0]), bare(ids.args[0])) and is_one_ahead(labels.args[1], ids.args[1])
        if rolled or ahead:
            yield Remark(call.node, f"{short(labels.node)} is one place ahead, and {short(call.node)} (line {call.line}) shifts its labels once more")
            return


@FINDERS.add("decoder-given-its-labels")
def _own_labels(program: Program) -> Iterator[Remark]:
    """A decoder that works from left to right is given at each place what it is to say there."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for loss in computation.of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or loss.node in seen:
            continue
        target = bare(loss.args[1])
        for table in _read(loss.args[0], False):
            if same(bare(table.args[1]), target) and not isinstance(target, Instance):
                seen.add(loss.node)
                yield Remark(loss.node, f"{short(loss.node)} asks for {short(target.node)} at the places where {short(table.node)} (line {table.line}) reads it")
                break


def _read(value: Value, ordered: bool, depth: int = 24) -> Iterator[Value]:
    """The look-ups of embeddings that an output is computed from place by place, through a decoder that works from left
    to right (`ordered`: one is passed)."""
    value = bare(value, "log_softmax", "transpose", "permute", "dropout", "relu", "gelu", "mT", "normalize")
    if depth == 0:
        return
    if value.op in ("add", "mul") and len(value.args) == 2:
        for one in value.args:
            yield from _read(one, ordered, depth - 1)
    elif value.op == "part" and constant(value.args[1]) == 0 and value.args[0].op == "run":
        yield from _read(value.args[0], ordered, depth - 1)
    elif value.op == "run" and len(value.args) > 1:
        layer = value.args[0]
        if layer.op == "torch.nn.Embedding":
            if ordered:
                yield value
        elif layer.op in ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.Dropout"):
            yield from _read(value.args[1], ordered, depth - 1)
        elif (layer.op in _RECURRENT and constant(layer.named.get("bidirectional")) is not True) or (layer.op == "torch.nn.TransformerEncoder" and ("mask" in value.named or constant(value.named.get("is_causal")) is True)):
            yield from _read(value.args[1], True, depth - 1)
        elif layer.op in ("torch.nn.Transformer", "torch.nn.TransformerDecoder") and "tgt_mask" in value.named and len(value.args) > 2:
            yield from _read(value.args[2 if layer.op.endswith("Transformer") else 1], True, depth - 1)


# Numbers that begin at 0 -----------------------------------------------------------------


@FINDERS.add("word-zero-is-padding")
def _drawn_from_zero(program: Program) -> Iterator[Remark]:
    """Rows of numbers that begin at 0 are filled up with 0, and 0 is what an embedding or a loss leaves out."""
    computation = computation_of(program)
    for taken, tensor, padding in paddings(computation):
        filled = bare(tensor, "flatten", "part", "transpose", "t")
        put = filled.argument("padding_value", 2)
        if padding != 0 or filled.op != _PAD_SEQUENCE or not filled.args or (put is not None and number(put) != 0):
            continue
        begun = next((one for one in _numbers_in(filled.args[0]) if _begins_at_zero(one)), None)
        if begun is not None:
            yield Remark(filled.node, f"{short(filled.node)} fills up with 0, which {short(taken.node)} (line {taken.line}) leaves out, and {short(begun.node)} (line {begun.line}) gives the number 0 to what is real")
            return


def _numbers_in(value: Value, depth: int = 16) -> Iterator[Value]:
    """The numbers that a list of rows is made of, where nothing is done with them on the way."""
    if depth == 0:
        return
    if isinstance(value, Many):
        inner: list[Value] = value.parts
    elif value.op in ("tensor", "as_tensor", "LongTensor", "torch.LongTensor", "long", "array", "element", "either", "list", "int", "clone", "rows", "asarray", "from_numpy", "flip"):
        inner = list(value.args if value.op == "either" else value.args[:1])
    else:
        inner = list(value.args[:1]) if value.op == "part" and len(value.args) == 2 and value.args[1].op in ("slice", "index", "@constant") else []
    if not inner:
        yield value
    for one in inner:
        yield from _numbers_in(one, depth - 1)


def _begins_at_zero(value: Value) -> bool:
    """Whether a whole number may be 0, like any other one below a bound: a remainder, or one drawn from 0 on."""
    if value.op == "part" and len(value.args) == 2:
        return _begins_at_zero(value.args[0])
    if value.op == "mod" and len(value.args) == 2:
        return True
    if value.op in ("integers", "randint"):
        numbers = [one for one in value.args if one.op != "tuple" and not one.op.startswith(("default_rng", "numpy.random", "random.", "torch.Generator"))]
        low = value.named.get("low") or (numbers[0] if len(numbers) > 1 and not isinstance(numbers[1], Many) else None)
        return value.named.get("high") is not None or low is None or number(low) == 0
    return False
