"""Texts as numbers for a language model: padding and ends in the labels, and the axis of the batch. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import loaders_of, sample_of
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    compares,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_negative,
    is_string,
    is_true,
    iterated,
    last_word,
    mentions,
    number_in,
    own,
    pairs_of,
    short,
    text_of,
)

RULES = Rules("data")
_COPIES = ("clone", "copy", "detach", "squeeze", "to", "long", "cuda", "contiguous", "deepcopy", "tolist")
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "TransformerEncoderLayer", "TransformerDecoderLayer", "MultiheadAttention", "Transformer"})
_GUARDED = ("gpt2", "gpt-neo", "gpt-j", "llama", "mistral", "pythia", "distilgpt2")
"""Models whose tokenizer has no padding of its own."""
_RIGHT = ("gpt2", "gpt-neo", "gpt-j", "pythia", "dialogpt", "facebook/opt")
"""Models whose tokenizer fills up on the right where it is not told otherwise."""
_CAUSAL = re.compile(r"AutoModelForCausalLM|GPT2LMHeadModel|GPTNeo\w*ForCausalLM|OPTForCausalLM")
_END_NAMES = frozenset({"eos_token", "eos_token_id", "eos_id", "eos", "eos_idx", "end_id", "eot_id"})
_END_WORDS = frozenset({"</s>", "<eos>", "<EOS>", "[EOS]", "<end>", "<|endoftext|>"})
_PAD = re.compile(r"^pad(ding)?(_token)?(_id|_idx|_index)?$", re.I)
_WRITERS = re.compile(r"(CausalLM|LMHeadModel)$")
_ENCODERS = re.compile(r"(Auto|Bert|Roberta|DistilBert|Albert|Electra|DebertaV2|Deberta|XLMRoberta)(Model|ModelFor\w*Classification|For\w*Classification)$")
_VOCABULARIES = {
    r"(distil)?bert-(base|large)-uncased": "uncased words", r"(distil)?bert-(base|large)-cased": "cased words",
    r"(distil)?bert-base-multilingual-cased": "words of many languages", r"(distil)?roberta-(base|large)": "roberta",
    r"(distil)?gpt2(-medium|-large|-xl)?": "gpt2", r"t5-(small|base|large)": "t5", r"albert-\w+-v2": "albert",
    r"xlm-roberta-(base|large)": "xlm-roberta",
}
_OWNED = {
    "dmis-lab/biobert-base-cased": "cased words", "dmis-lab/biobert-v1.1": "cased words", "allenai/scibert_scivocab": "words of science",
    "microsoft/deberta-v3": "deberta", "ProsusAI/finbert": "uncased words", "sentence-transformers/all-MiniLM": "uncased words", "EleutherAI/pythia": "pythia",
    "EleutherAI/gpt-neo-": "gpt2", "facebook/bart": "roberta", "facebook/opt": "opt",
}


@RULES.add("padding-in-the-labels", "the model is also trained to say the padding: most of the loss may be that", "set the labels of the padding to -100: labels[attention_mask == 0] = -100")
def _padding(program: Program) -> Iterator[Remark]:
    """Labels of a language model that are its padded input, with nothing that takes the padding out."""
    flow = flow_of(program)
    padded = next((call for call in program.calls() if _pads(call)), None)
    if padded is None or _ignores(program):
        return
    for node in program.everywhere(ast.Assign, ast.Dict, ast.Call):
        for label, beside in _labels(node):
            source = _ids(flow, label)
            if source is not None and isinstance(tokenized := flow.value(source), ast.Call) and _pads(tokenized):
                yield Remark(label, f"the labels are {short(label)}, padding included: {short(tokenized)} fills up to a length (line {tokenized.lineno})")
            elif beside is not None and text_of(_bare(flow, label)) == text_of(_bare(flow, beside)) and isinstance(node, ast.Call) and is_attribute(_bare(flow, label)) is False:
                yield Remark(label, f"the labels are the input {short(beside)} itself, padding included: {short(padded)} fills up to a length (line {padded.lineno})")


def _pads(node: ast.AST) -> bool:
    """Whether a tokenizer is told to fill up to a length."""
    given = argument(node, "padding") if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and last_word(node.func) in ("pad", "from_pretrained", "DataCollatorWithPadding", "Conv1d", "Conv2d"):
        return False
    return given is not None and (is_true(given) or (is_string(given) and given.value in ("max_length", "longest")))


def _ignores(program: Program) -> bool:
    """Whether a program takes something out of its labels."""
    if any(is_negative(one) and number_in(one.operand) == 100 for one in program.everywhere(ast.UnaryOp)):
        return True
    if any(last_word(one.func) == "DataCollatorForLanguageModeling" or argument(one, "ignore_index") is not None or argument(one, "label_pad_token_id") is not None for one in program.calls()):
        return True
    return any(compares(one, ast.Eq, ast.NotEq) and mentions(one, "pad_token_id", "pad_id") for one in program.everywhere(ast.Compare)) or any(
        last_word(one) in ("loss_mask", "label_mask", "LABEL_IGNORE", "IGNORE_INDEX", "ignore_index", "pad_token_label_id") for one in program.everywhere(ast.Name, ast.Attribute)
    )


def _labels(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What is given as labels, by key or by name; with the input that a call is given beside it."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and is_string(target.slice) and target.slice.value == "labels":
            yield node.value, None
    elif isinstance(node, ast.Dict):
        yield from ((value, None) for key, value in zip(node.keys, node.values, strict=True) if is_string(key) and key.value == "labels")
    elif isinstance(node, ast.Call) and (label := argument(node, "labels")) is not None:
        yield label, argument(node, "input_ids", 0)


def _bare(flow: Flow, node: ast.AST) -> ast.AST:
    """A value without copies and changes of shape."""
    at: ast.AST = node
    for _ in range(8):
        if is_method(at, *_COPIES):
            at = at.args[0] if last_word(at.func) == "deepcopy" and at.args else at.func.value
        elif is_call(at, "list", "deepcopy") and at.args:
            at = at.args[0]
        elif isinstance(at, ast.Subscript) and number_in(at.slice) == 0:
            at = at.value
        elif isinstance(at, ast.Name) and (held := flow.held(at)) is not None and not isinstance(held, ast.Call | ast.Subscript | ast.Attribute) | is_method(held, *_COPIES):
            at = held
        else:
            break
    return at


def _ids(flow: Flow, node: ast.expr) -> ast.expr | None:
    """What an expression takes the input numbers of: x of `x["input_ids"].clone()`, `x.input_ids`."""
    at: ast.AST = node
    for _ in range(8):
        at = _bare(flow, at)
        if isinstance(at, ast.Subscript) and is_string(at.slice):
            return at.value if at.slice.value == "input_ids" else None
        if is_attribute(at, "input_ids"):
            return at.value
        if (held := flow.held(at)) is None:
            return None
        at = held
    return None


@RULES.add("end-never-learned", "the model never learns to stop: it writes on until it is cut off", "give the padding a token of its own, or keep the end in the labels by its attention_mask")
def _end(program: Program) -> Iterator[Remark]:
    """Texts that end in a token which is also the padding, and whose padding is taken out of the labels."""
    flow = flow_of(program)
    same = next((node for node in program.everywhere(ast.Assign) if _is_end_for_padding(program, node)), None)
    if same is None or any(is_method(one, "add_special_tokens") for one in program.calls()) or not _adds_end(program):
        return
    for node in program.everywhere(ast.AST):
        masks = False
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            mask = flow.value(target.slice) if isinstance(target, ast.Subscript) else None
            ignored = is_negative(node.value) and number_in(node.value.operand) == 100
            masks = ignored and isinstance(mask, ast.Compare) and compares(mask, ast.Eq) and _is_padding(flow, mask)
        elif isinstance(node, ast.Call):
            masks = last_word(node.func) == "DataCollatorForLanguageModeling" and (mlm := argument(node, "mlm", 1)) is not None and is_false(mlm)
            masks = masks or (last_word(node.func) in ("CrossEntropyLoss", "cross_entropy") and _names_padding(argument(node, "ignore_index"), same))
            masks = masks or (is_method(node, "masked_fill", "masked_fill_") and len(node.args) == 2 and compares(node.args[0], ast.Eq) and mentions(node.args[0], "pad_token_id") and "100" in text_of(node.args[1]))
        if masks:
            yield Remark(node, f"{short(node)} takes the padding out of the loss, and with {short(same)} (line {same.lineno}) each end of a text is padding")
            break


def _names_padding(given: ast.expr | None, same: ast.Assign) -> bool:
    """Whether the ignored number is read by a name of the padding, or of the end that was made the padding."""
    return given is not None and (is_attribute(given, "pad_token_id") or last_word(given) in (last_word(same.targets[0]), last_word(same.value)))


@RULES.add("end-is-the-padding", "the model never learns to stop: it writes on until it is cut off", "give the padding a number of its own")
def _end_number(program: Program) -> Iterator[Remark]:
    """An end whose number is the one that the loss leaves out."""
    flow = flow_of(program)
    ends = list(_end_numbers(program))
    if not ends or not _adds_end(program):
        return
    for call in program.calls():
        given = argument(call, "ignore_index") if last_word(call.func) in ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss") else None
        number = flow.number(given)
        if number is None and is_attribute(given):
            fields = {number_in(one.value) for one in program.everywhere(ast.AnnAssign) if is_name(one.target, given.attr)}
            number = fields.pop() if len(fields) == 1 else None
        same = next((node for node, end in ends if end == number), None)
        if number is not None and same is not None:
            yield Remark(call, f"{short(call)} leaves {number:g} out of the loss, and that is the end of a text: {short(same)} (line {getattr(same, 'lineno', 0)})")


def _end_numbers(program: Program) -> Iterator[tuple[ast.AST, float]]:
    """Where the end of a text gets a number: by its name, or by its place in a list of words."""
    given: list[tuple[ast.stmt, ast.expr, ast.expr]] = [(node, *pair) for node in program.everywhere(ast.Assign) for pair in pairs_of(node)]
    given += [(node, node.target, node.value) for node in program.everywhere(ast.AnnAssign) if node.value is not None]
    for node, target, value in given:
        if last_word(target).lower() in _END_NAMES and (number := number_in(value)) is not None:
            yield node, number
    for words in program.everywhere(ast.List):
        if all(map(is_string, words.elts)) and not _is_put_behind(program, words):
            yield from ((words, place) for place, one in enumerate(words.elts) if is_string(one) and one.value in _END_WORDS)


def _is_put_behind(program: Program, words: ast.List) -> bool:
    """Whether words are put behind a text, and number nothing: `words + ["</s>"]`."""
    around = program.parent.get(words)
    return (is_binary(around, ast.Add) and around.right is words) or is_method(around, "extend") or isinstance(around, ast.AugAssign)


def _is_end_for_padding(program: Program, node: ast.Assign) -> bool:
    """Whether the end is made the padding: `tokenizer.pad_token = tokenizer.eos_token`, whatever model is loaded."""
    ends = is_attribute(node.value, "eos_token", "eos_token_id", "eos_id", "eos") or is_name(node.value, "EOS", "EOS_ID", "eos_id")
    looked_up = node.value.slice if isinstance(node.value, ast.Subscript) else None
    ends = ends or (isinstance(looked_up, ast.Constant) and looked_up.value in _END_WORDS)
    pads = is_attribute(node.targets[0], "pad_token", "pad_token_id", "pad_id", "pad") or is_name(node.targets[0], "PAD", "PAD_ID", "pad_id")
    if not ends or not pads or (isinstance(node.targets[0], ast.Attribute) and is_attribute(node.targets[0].value, "config", "generation_config")):
        return False
    guarded = any(isinstance(one, ast.If) for one in program.parents(node))
    word = last_word(node.targets[0])
    without = any(isinstance(one.value, ast.Constant) and one.value.value is None and any(is_attribute(target, word) for target in one.targets) for one in program.everywhere(ast.Assign))
    return not guarded or without or any(isinstance(one.value, str) and any(word in one.value.lower() for word in _GUARDED) and len(one.value) < 80 for one in program.everywhere(ast.Constant))


def _adds_end(program: Program) -> bool:
    """Whether a program writes the end behind its texts."""
    for node in program.everywhere(ast.BinOp, ast.JoinedStr):
        parts = [one.value for one in node.values if isinstance(one, ast.FormattedValue)] if isinstance(node, ast.JoinedStr) else []
        if is_binary(node, ast.Add):
            parts = [node.right, *(node.right.elts if isinstance(node.right, ast.List) else [])]
        parts += [one.slice for one in parts if isinstance(one, ast.Subscript)]  # index["</s>"]
        if any(last_word(one).lower() in _END_NAMES or (is_string(one) and one.value in _END_WORDS) for one in parts):
            return True
    return False


def _is_padding(flow: Flow, mask: ast.Compare) -> bool:
    """Whether a comparison asks for the token of the padding."""
    sides = [flow.value(one) for one in (mask.left, *mask.comparators)]
    return mentions(mask, "pad_token_id") or any(is_attribute(one, "pad_token_id", "pad_id", "pad") or is_name(one, "PAD", "PAD_ID", "pad_id") for one in sides)


@RULES.add("padded-along-another-axis", "the model takes steps for samples, and mixes the texts of a batch", "pad_sequence(..., batch_first=True)")
def _other_axis(program: Program) -> Iterator[Remark]:
    """Sequences padded to (steps, batch), in a program whose layers all take (batch, steps), and that turns nothing."""
    pads = [call for call in program.calls() if program.called(call) == "torch.nn.utils.rnn.pad_sequence"]
    if not pads or any(argument(one, "batch_first", 1) is not None or any(word.arg is None for word in one.keywords) for one in pads):
        return
    made = [call for call in program.calls() if program.called(call).startswith("torch.nn.") and program.called(call).rpartition(".")[2] in _RECURRENT]
    first = [call for call in made if (given := argument(call, "batch_first", 4 if program.called(call).endswith(("LSTM", "GRU", "RNN")) else None)) is not None and is_true(given)]
    turned = any(is_method(one, "transpose", "permute", "t", "swapaxes", "movedim", "einsum", "rearrange") or is_call(one, "rearrange") for one in program.calls()) or any(one.attr in ("T", "mT") for one in program.everywhere(ast.Attribute))
    if first and len(first) == len(made) and not turned and _fed(program, pads[0]):
        yield Remark(pads[0], f"{short(pads[0])} puts the steps in front, and {short(first[0])} (line {first[0].lineno}) takes the batch in front")


def _fed(program: Program, call: ast.Call) -> bool:
    """Whether padded sequences are a part of a batch: returned by the function that pads them."""
    function = program.function_of(call)
    if function is None:
        return False
    statement = program.statement(call)
    names = {text_of(one) for one in statement.targets} if isinstance(statement, ast.Assign) else set()
    return any(one.value is not None and (call in ast.walk(one.value) or names & {text_of(part) for part in ast.walk(one.value) if isinstance(part, ast.Name)}) for one in own(function, ast.Return))


@RULES.add("padding-read-as-text", "the model attends to the padding: what it says of a text depends on the texts beside it", "give the model the attention_mask that the tokenizer returns")
def _padding_read(program: Program) -> Iterator[Remark]:
    """An encoder that is given padded texts without the mask that tells the padding."""
    padded = next((call for call in program.calls() if _pads(call)), None)
    batched = any(program.called(call).endswith("DataLoader") for call in program.calls())
    if padded is None or not batched or _knows_mask(program):
        return
    flow = flow_of(program)
    for call in program.calls():
        made = flow.value(call.func)
        name = last_word(made.func.value) if is_method(made, "from_pretrained") else ""
        if _ENCODERS.match(name) and (call.args or argument(call, "input_ids") is not None):
            yield Remark(call, f"{short(call)} is given no attention_mask, and {short(padded)} (line {padded.lineno}) fills the texts up")
            break


def _knows_mask(program: Program) -> bool:
    """Whether a program says attention_mask anywhere, or hands all that a tokenizer returns on."""
    words = {one.value for one in program.everywhere(ast.Constant) if isinstance(one.value, str)} | {last_word(one) for one in program.everywhere(ast.Name, ast.Attribute)}
    words |= {word.arg or "" for call in program.calls() for word in call.keywords} | {one.arg for one in program.everywhere(ast.arg)}
    starred = any(word.arg is None for call in program.calls() for word in call.keywords)
    trainer = any(last_word(call.func).endswith("Trainer") for call in program.calls())
    return starred or trainer or any("mask" in word.lower() and "<" not in word and "[" not in word and len(word) < 40 for word in words)


@RULES.add("padded-on-the-right", "shorter prompts end in padding: the model goes on from there, and not from the prompt", "AutoTokenizer.from_pretrained(name, padding_side='left')")
def _right_side(program: Program) -> Iterator[Remark]:
    """Prompts that are filled up behind their end, and given to a model that writes on from there."""
    flow = flow_of(program)
    words = {one.value for one in program.everywhere(ast.Constant) if isinstance(one.value, str)}
    if any(mentions(one, "padding_side") for one in program.everywhere(ast.Attribute)) or any(word.arg == "padding_side" for call in program.calls() for word in call.keywords) or "padding_side" in words:
        return
    if not any(any(name in word.lower() for name in _RIGHT) and len(word) < 60 for word in words) or not any(_CAUSAL.search(last_word(one)) for one in program.everywhere(ast.Name)):
        return
    for call in program.calls():
        given = [*call.args, *(word.value for word in call.keywords)] if is_method(call, "generate") else []
        padded = next((one for value in given for one in flow.origins(value) if isinstance(one, ast.Call) and _pads(one)), None)
        if padded is not None and padded.args and not is_string(padded.args[0]) and not isinstance(padded.args[0], ast.JoinedStr):
            yield Remark(call, f"{short(call)} writes on behind the padding that {short(padded)} (line {padded.lineno}) puts at the end of shorter prompts")


@RULES.add("vocabulary-of-another-model", "the numbers of words mean other words to the model", "load the tokenizer and the model by one name")
def _other_vocabulary(program: Program) -> Iterator[Remark]:
    """A tokenizer and a model that are loaded by names of families with different vocabularies."""
    found: dict[bool, list[tuple[ast.Call, str, str]]] = {True: [], False: []}
    for call in program.calls():
        name = call.args[0] if is_method(call, "from_pretrained") and call.args else None
        if name is None or not is_method(call):
            continue
        what = last_word(call.func.value)
        text = name.value if is_string(name) else ""
        if "Config" not in what and "Processor" not in what:
            found["Tokenizer" in what].append((call, text, vocabulary(text)))
    if len(found[True]) == 1 and len(found[False]) == 1:
        (tokenizer, one, first), (model, other, second) = found[True][0], found[False][0]
        if first and second and first != second:
            yield Remark(tokenizer, f"the tokenizer is that of {one}, and the model (line {model.lineno}) is {other}: their vocabularies differ")


def vocabulary(name: str) -> str:
    """The vocabulary of a model of a well-known name; empty for all else."""
    if "/" in name.removeprefix("google-bert/").removeprefix("FacebookAI/").removeprefix("openai-community/").removeprefix("distilbert/"):
        return next((words for start, words in _OWNED.items() if name.startswith(start)), "")
    for pattern, words in _VOCABULARIES.items():
        if re.fullmatch(pattern, name.rpartition("/")[2]):
            return words
    return ""


@RULES.add("labels-shifted-twice", "the model learns to say the word after the next one", "give the model the same numbers as input and labels: it shifts them itself")
def _twice(program: Program) -> Iterator[Remark]:
    """Labels that are moved by one place, given to a model of transformers that moves them by one itself."""
    flow = flow_of(program)
    for call in program.calls():
        made = flow.value(call.func)
        labels, given = argument(call, "labels"), argument(call, "input_ids", 0)
        if labels is None or given is None or not is_method(made, "from_pretrained", "from_config") or not _WRITERS.search(last_word(made.func.value)):
            continue
        first, second = _span(flow, given), _span(flow, labels)
        if first is not None and second is not None and first[0] == second[0] and (first[1], second[1]) == ("", "1"):
            yield Remark(labels, f"{short(labels)} is one place after {short(given)}, and {last_word(made.func.value)} shifts its labels once more")
            continue
        pair = [flow.given(one) for one in (given, labels)]
        loop = pair[0].node if pair[0] is not None else None
        if isinstance(loop, ast.For) and pair[1] is not None and pair[1].node is loop and (pair[0].place, pair[1].place) == (0, 1):  # type: ignore[union-attr]
            for loader in loaders_of(flow, iterated(loop)):
                sample = sample_of(flow, loader)
                if isinstance(sample, ast.Tuple) and len(sample.elts) == 2 and _next_to(flow, sample.elts[0], sample.elts[1]):
                    yield Remark(labels, f"{short(sample)} (line {sample.lineno}) moves the labels by one place, and {last_word(made.func.value)} shifts them once more")


def _span(flow: Flow, node: ast.expr) -> tuple[str, str] | None:
    """What `ids[:, 1:]` is a part of, and where it begins."""
    value = flow.value(node)
    while is_method(value, *_COPIES):
        value = flow.value(value.func.value)
    part = value.slice.elts[-1] if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Tuple) else value.slice if isinstance(value, ast.Subscript) else None
    if not isinstance(value, ast.Subscript) or not isinstance(part, ast.Slice):
        return None
    return text_of(value.value), "" if part.lower is None or number_in(part.lower) == 0 else text_of(part.lower)


def _next_to(flow: Flow, one: ast.expr, other: ast.expr) -> bool:
    """Whether two parts of one thing begin at i and at i + 1."""
    first, second = _span(flow, one), _span(flow, other)
    if first is None or second is None or first[0] != second[0]:
        return False
    return second[1] in ((f"{first[1]} + 1", f"1 + {first[1]}") if first[1] else ("1",))


@RULES.add("mean-of-the-padding", "the text is left out of its own mean, and the padding is what is averaged", "take the positions that are not padding: mask = (ids != pad).float()")
def _of_padding(program: Program) -> Iterator[Remark]:
    """A mean over positions whose mask is 1 where the padding is."""
    flow = flow_of(program)
    numbers = {flow.number(given) for call in program.calls() for given in [argument(call, "padding_idx")] if given is not None} - {None}
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Div) or not is_method(node.left, "sum"):
            continue
        product = flow.value(node.left.func.value)
        counted = flow.value(node.right)
        while is_method(counted, "clamp", "clamp_min", "unsqueeze", "float"):
            counted = flow.value(counted.func.value)
        if not is_binary(product, ast.Mult) or not is_method(counted, "sum"):
            continue
        masks = [one for one in (product.left, product.right) if text_of(_plain(flow, one)) == text_of(_plain(flow, counted.func.value))]
        compared = _plain(flow, masks[0]) if masks else None
        limit = compared.comparators[0] if compares(compared, ast.Eq) else None
        padding = limit is not None and (last_word(limit).lower() in ("pad", "pad_id", "pad_idx", "pad_token_id", "padding_idx", "pad_index") or (flow.number(limit) in numbers and flow.number(limit) is not None))
        if padding and isinstance(compared, ast.Compare):
            yield Remark(node, f"{short(node)} is the mean of the positions where {short(compared)}: those are the padding")


def _plain(flow: Flow, node: ast.AST) -> ast.AST:
    """A mask without its type and shape."""
    value = flow.value(node)
    while is_method(value, "float", "to", "unsqueeze", "type", "long", "double", "expand", "expand_as"):
        value = flow.value(value.func.value)
    while isinstance(value, ast.Subscript):
        value = flow.value(value.value)
        while is_method(value, "float", "to", "unsqueeze"):
            value = flow.value(value.func.value)
    return value


@RULES.add("attention-to-the-padding", "the model reads the padding, and not the text", "the mask of transformers is 1 where the text is: ids != pad")
def _inverted(program: Program) -> Iterator[Remark]:
    """An attention_mask for a model of transformers that is 1 where the padding is."""
    if not any(name.startswith("transformers") for source in program.sources for name in source.imports.values()):
        return
    flow = flow_of(program)
    padding = {flow.number(argument(call, "padding_value", 2)) for call in program.calls() if program.called(call).endswith("rnn.pad_sequence")} - {None}
    padding |= {0.0} if any(program.called(call).endswith("rnn.pad_sequence") and argument(call, "padding_value", 2) is None for call in program.calls()) else set()
    for node in program.everywhere(ast.AST):
        given: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            given = [value for key, value in zip(node.keys, node.values, strict=True) if is_string(key) and key.value == "attention_mask"]
        elif isinstance(node, ast.Call):
            given = [word.value for word in node.keywords if word.arg == "attention_mask"]
        elif isinstance(node, ast.Assign) and last_word(node.targets[0]) == "attention_mask" and any(word.arg == "attention_mask" for call in program.calls() for word in call.keywords):
            given = [node.value]
        for one in given:
            mask = _plain(flow, one)
            limit = mask.comparators[0] if compares(mask, ast.Eq) else mask.args[0] if is_method(mask, "eq") and len(mask.args) == 1 else None
            if limit is not None and (_PAD.search(last_word(limit)) or (flow.number(limit) in padding and flow.number(limit) is not None)):
                yield Remark(one, f"{short(mask)} is 1 where the padding is, and attention_mask is 1 where the text is")
                return
