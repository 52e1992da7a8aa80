"""What is fitted to data: numbers of words and classes, scales and weights of classes. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
    KEPT,
    SHAPED,
    Many,
    Table,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.rows.sampler_weights import counts_each_class
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, short
from probe.diagnose.code.traits.basic import losses, without_small
from probe.diagnose.code.traits.numberings import first_word, first_words, looks_up

FINDERS = Finders()
_TEXTS = frozenset({"split", "lower", "strip", "name", "stem", "splitlines", "read", "join", "upper", "rstrip", "text", "casefold", "findall", "parts", "suffix"})
"""Operations that give texts."""
_SCALES = ("Scaler", "Normalizer", "QuantileTransformer", "PowerTransformer", "PCA", "SimpleImputer", "KBinsDiscretizer")
_NUMBERS = ("LabelEncoder", "OrdinalEncoder", "OneHotEncoder", "CountVectorizer", "TfidfVectorizer", "MultiLabelBinarizer", "LabelBinarizer", "DictVectorizer")
_SCORED = ("eq", "ne", "cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "nll_loss")


# Numbers of words -----------------------------------------------------------------


def word_zero(program: Program) -> Iterator[Remark]:
    """A tensor holds numbers that a table counts from n, and n is what an embedding, a loss or a mask takes for padding."""
    computation = computation_of(program)
    for taken, tensor, padding in paddings(computation):
        for first, given in first_words(computation, tensor):
            if first == padding:
                yield Remark(given.node, f"{short(given.node)} counts from {padding:g}, and {short(taken.node)} (line {taken.line}) takes {padding:g} for padding")
                return


def paddings(computation: Computation) -> Iterator[tuple[Value, Value, float]]:
    """Where a number is taken for padding: by what, in which tensor, and the number."""
    for value in computation.of("run"):
        table = value.args[0]
        if table.op in ("torch.nn.Embedding", "torch.nn.EmbeddingBag") and len(value.args) > 1:
            padding = number(table.argument("padding_idx", 2 if table.op.endswith("Embedding") else 9))
            if padding is not None:
                yield table, value.args[1], padding
        for name in ("src_key_padding_mask", "key_padding_mask", "tgt_key_padding_mask"):
            mask = bare(value.named[name]) if name in value.named else value
            if mask.op == "eq" and len(mask.args) == 2 and (padding := number(mask.args[1])) is not None:
                yield mask, mask.args[0], padding
    for value in computation.of("cross_entropy", "nll_loss"):
        padding = number(value.argument("ignore_index"))
        if padding is not None and len(value.args) > 1:
            yield value, value.args[1], padding


@FINDERS.add("blank-is-a-letter")
def _blank(program: Program) -> Iterator[Remark]:
    """The targets of CTC hold numbers that a table counts from the number of the blank."""
    computation = computation_of(program)
    for loss in computation.of("ctc_loss"):
        given = loss.argument("blank", 4)
        blank = 0.0 if given is None else number(given)
        for first, table in first_words(computation, loss.args[1]) if len(loss.args) > 1 else ():
            if first == blank:
                yield Remark(table.node, f"{short(table.node)} gives the first letter the number {first:g}, which is the blank of {short(loss.node)} (line {loss.line})")
                return


def unknown_words(program: Program) -> Iterator[Remark]:
    """What a table does not know gets the number that it gives to its first word."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value, table, unknown in _fallbacks(program, computation):
        found = first_word(computation, table)
        if found is not None and found[0] == unknown and value.node not in seen and not _is_known(table, found[1]):
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} gives unknown words the number {unknown:g}, which the first word has: {short(found[1].node)} (line {found[1].line})")


def _is_known(looked_up: Value, given: Value) -> bool:
    """Whether what is looked up is of the texts that the table was made of."""
    table = looked_up.args[0]
    made = [key for key, _ in table.others] if isinstance(table, Table) else [*given.made_of(), *table.args]
    if any(one.op == "most_common" and len(one.args) > 1 for key in made for one in origins(key)):
        return False  # rare words have no number
    source = looked_up.args[1] if len(looked_up.args) > 1 else looked_up
    while source.op in ("element", "lower", "split", "strip", "upper", "part", "list") and source.args and not (source.op == "part" and source.args[1].op not in ("@constant", "index")):
        source = source.args[0]
        if any(one is source for key in made for one in origins(key)):
            return True
    return False


def _fallbacks(program: Program, computation: Computation) -> Iterator[tuple[Value, Value, float | None]]:
    """Where something gets the number of a table, or else a fixed one."""
    for value in computation.of("get"):
        if looks_up(value) and len(value.args) > 2:
            yield value, value, number(value.args[2])
    for value in computation.of("part"):
        maker = value.args[0]
        if maker.op == "collections.defaultdict" and maker.args and getattr(maker.args[0], "data", None) == "builtins.int":
            yield value, value, 0.0
    for value in computation.of("either"):
        looked = [one for one in value.args if one.op == "part" and looks_up(one)]
        if len(value.args) == 2 and looked and isinstance(value.node, ast.IfExp) and isinstance(value.node.test, ast.Compare) and isinstance(value.node.test.ops[0], ast.In | ast.NotIn):
            yield value, looked[0], next((number(one) for one in value.args if one is not looked[0]), None)
    appended = list(computation.of("append"))
    for value in appended:
        handler = next((one for one in program.parents(value.node) if isinstance(one, ast.ExceptHandler)), None)
        tries = program.parent.get(handler) if handler is not None else None
        for other in appended if number(value.args[1]) is not None else ():
            if isinstance(tries, ast.Try) and tries in program.parents(other.node) and looks_up(other.args[1]) and other.args[1].op == "part":
                yield value, other.args[1], number(value.args[1])


@FINDERS.add("order-of-a-set")
def _set_order(program: Program) -> Iterator[Remark]:
    """Texts are numbered in the order of a set, and the weights are saved without the numbers."""
    computation = computation_of(program)
    saved = [value for value in computation.of("save", "save_pretrained", "torch.jit.save") if any(one.op == "state_dict" or one.op.startswith("torch.nn.") for one in origins(value))]
    if not saved or any(value.op.endswith((".dump", ".dumps", "savetxt", "to_csv", "writelines", "write", "write_text")) for value in computation.values):
        return
    kept = {id(one) for value in saved for one in origins(value)}
    for ordered, number_at in _numbered_rows(computation):
        source = bare(ordered)
        is_set = source.op in ("set", "frozenset") or (isinstance(source, Many) and (source.op == "set" or source.data == "set"))
        if is_set and not {id(ordered), id(source), id(number_at)} & kept and _are_texts(source):
            yield Remark(number_at.node, f"{short(number_at.node)} numbers texts in the order of a set (line {source.line}), which differs in each process; {short(saved[0].node)} does not save the numbers")
            return


def _numbered_rows(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Rows whose places are taken for numbers, and where."""
    for value in computation.values:
        if value.op == "index" and isinstance(value.node, ast.Call) and value.args:
            yield value.args[0], value
        elif isinstance(value, Table):
            for key, given in value.others[:1]:
                if key.op == "element" and given.op == "index" and given.data == "enumerate":
                    yield key.args[0], value
        elif value.op == "dict" and value.args and value.args[0].op == "zip" and len(value.args[0].args) == 2 and value.args[0].args[1].op in ("range", "itertools.count"):
            yield value.args[0].args[0], value


def _are_texts(source: Value) -> bool:
    """Whether a set holds texts: those have another order in each process, numbers have not."""
    elements = source.parts if isinstance(source, Many) else list(source.args)
    found = [one for element in elements for one in origins(element)]
    return any(one.op in _TEXTS for one in found) or any(isinstance(constant(one), str) and one.op == "@constant" for element in elements for one in alternatives(element))


# What is made for each part ------------------------------------------------------------


def in_training(computation: Computation) -> set[int]:
    """The identities of all that the losses are made of which a backward is called on."""
    return {id(one) for _, loss in losses(computation) for one in origins(loss)}


def is_judged(computation: Computation, value: Value, trained: set[int]) -> bool:
    """Whether a value, or what is made of it, goes into a model or a score outside of the training."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        if (at.op == "run" and at.args[0].op.startswith("torch.nn.")) or at.op.startswith("sklearn.metrics.") or at.op in _SCORED:
            return id(at) not in trained
        for one in computation.users(at):
            if id(one) not in seen and id(one) not in trained:
                seen.add(id(one))
                waiting.append(one)
    return False


@FINDERS.add("fitted-on-held-out")
def _scaled_apart(program: Program) -> Iterator[Remark]:
    """A scaler is fitted to data that no loss is computed of, and another one to those of the training."""
    yield from _fitted_apart(program, "fitted-on-held-out", "get a scale of their own")


@FINDERS.add("numbered-apart")
def _numbered_apart(program: Program) -> Iterator[Remark]:
    """Things are numbered in the data that no loss is computed of, and again in those of the training."""
    yield from _fitted_apart(program, "numbered-apart", "get numbers of their own")


@FINDERS.add("made-for-each-part")
def _made_apart(program: Program) -> Iterator[Remark]:
    """A table of numbers is made of the data that no loss is computed of, and another one of those of the training."""
    yield from _fitted_apart(program, "made-for-each-part", "get numbers of their own")


@FINDERS.add("fitted-in-each-data-set")
def _fitted_in_each(program: Program) -> Iterator[Remark]:
    """A data set fits a scale or numbers to its own samples, and there is one for training and one that is held out."""
    yield from _fitted_apart(program, "fitted-in-each-data-set", "get a scale or numbers of their own")


def _fitted_apart(program: Program, name: str, what: str) -> Iterator[Remark]:
    computation = computation_of(program)
    trained = in_training(computation)
    groups: dict[object, list[tuple[Value, Value]]] = {}
    for key, made, data in _fits(computation):
        groups.setdefault(key, []).append((made, data))
    for key, found in groups.items():
        ours = [one for one in found if id(one[0]) in trained]
        others = [one for one in found if id(one[0]) not in trained and not one[0].where.loops]
        for made, data in others if ours else ():
            if _rule_of(program, key, made) == name and not any(_is_same_data(data, one) for _, one in ours) and _is_known_apart(made, data, ours[0]) and is_judged(computation, made, trained):
                call = made.args[0] if isinstance(made.node, ast.Tuple) and made.args else made
                yield Remark(call.node, f"{short(call.node)} is made for the training and again for data that are only judged: they {what}")
                return


def _fits(computation: Computation) -> Iterator[tuple[object, Value, Value]]:
    """What is fitted to data: a key that is the same for what is made alike, what is made, and the data."""
    for value in computation.of("fit_transform"):
        maker = value.args[0].op.rpartition(".")[2]
        if value.args[0].op.startswith("sklearn.") and len(value.args) > 1 and maker.endswith((*_SCALES, *_NUMBERS)):
            yield maker, value, value.args[1]
    for value in computation.of("fit"):
        maker = value.args[0].op.rpartition(".")[2]
        if value.args[0].op.startswith("sklearn.") and len(value.args) > 1 and maker.endswith((*_SCALES, *_NUMBERS)):
            yield maker, value.args[0], value.args[1]
    for value in computation.of("codes", "pandas.factorize", "factorize", "pandas.get_dummies"):
        if value.args and (value.op != "codes" or value.args[0].op == "cat") and not _has_categories(value):
            yield (value.op, value.node), value, value.args[0]
    for value in computation.of("part"):
        if value.args[0].op == "unique" and constant(value.args[0].named.get("return_inverse")) is True and constant(value.args[1]) == 1:
            yield ("unique", value.node), value, value.args[0].args[0]
    for value in computation.values:
        if value.op in ("part", "get") and isinstance(value.args[0], Table) and value.args[0].others:
            key, given = value.args[0].others[0]
            if given.op == "len" or number(given) == len(value.args[0].entries) or (given.op == "index" and given.data == "enumerate"):
                yield (value.args[0].node,), value.args[0], key
        elif value.op == "index" and isinstance(value.node, ast.Call) and value.args and value.args[0].op in ("sorted", "unique", "set"):
            yield (value.args[0].node,), value.args[0], value.args[0]
        elif value.op == "map" and len(value.args) > 1 and value.args[1].op == "index" and value.args[1].args and value.args[1].args[0].op in ("sorted", "unique", "set"):
            yield (value.args[1].args[0].node,), value.args[1].args[0], value.args[1].args[0]


def _has_categories(value: Value) -> bool:
    """Whether the categories that codes stand for are given."""
    return any(one.op in ("pandas.Categorical", "pandas.CategoricalDtype", "pandas.api.types.CategoricalDtype", "set_categories") for one in origins(value))


def _is_known_apart(made: Value, data: Value, other: tuple[Value, Value]) -> bool:
    """Whether two things are made of data of which it is known that they differ: not those that two functions are given by others."""
    if any(one.op in ("iterdir", "glob", "rglob", "glob.glob", "os.listdir", "os.scandir", "os.walk") for one in origins(data)):
        return False  # folders of classes: mostly the same ones for each part
    if made.where.functions[:1] == other[0].where.functions[:1]:
        return True
    return not any(one.op == "@input" for at in (data, other[1]) for one in origins(at))


def _rule_of(program: Program, key: object, made: Value) -> str:
    """The name that what is made for each part goes by."""
    owner = next((of for one in made.where.functions if isinstance(one, Function) and (of := program.class_of(one)) is not None), None)
    if owner is not None and any(ast.unparse(base).endswith("Dataset") for base in owner.bases):
        return "fitted-in-each-data-set"
    if isinstance(key, str) and key.endswith(_SCALES):
        return "fitted-on-held-out"
    return "numbered-apart" if isinstance(key, str) or (isinstance(key, tuple) and len(key) == 2) else "made-for-each-part"


def _is_same_data(one: Value, other: Value) -> bool:
    """Whether two things are made of the same data."""
    return same(one, other) or (_made_by(one) == _made_by(other) and not any(each.op in DRAWN for each in origins(one)))


def _made_by(value: Value) -> set[tuple[str, ast.AST]]:
    """The operations that a value is made by, and where they stand."""
    return {(one.op, one.node) for one in origins(value) if one.op != "@library"}


# Parted too late -------------------------------------------------------------------------


@FINDERS.add("fitted-on-held-out")
def _parted_later(program: Program) -> Iterator[Remark]:
    """A scaler is fitted to data that are parted afterwards into those of the training and those that are judged."""
    computation = computation_of(program)
    trained = in_training(computation)
    for value in computation.of("fit_transform"):
        if not value.args[0].op.startswith("sklearn.") or not value.args[0].op.endswith(_SCALES) or id(value) not in trained:
            continue
        shares = list(_shares(computation, value))
        held = [one for one in shares if id(one) not in trained and is_judged(computation, one, trained)]
        if held and any(id(one) in trained for one in shares):
            yield Remark(value.node, f"{short(value.node)} is fitted to all rows, and {short(held[0].node)} (line {held[0].line}) holds some of them out")
            return


def _shares(computation: Computation, value: Value) -> Iterator[Value]:
    """The parts of a table of samples, by a share of its rows, on the way of its values."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        for one in computation.users(at):
            if id(one) in seen:
                continue
            seen.add(id(one))
            if one.op == "part" and one.args[0] is at and _is_share(one.args[1]):
                yield one
            elif one.op.endswith(("train_test_split", "random_split")):
                yield from (part for part in computation.users(one) if part.op == "part")
            elif one.op in KEPT or one.op in SHAPED or one.op in ("torch.utils.data.TensorDataset", "pandas.DataFrame"):
                waiting.append(one)


def _is_share(index: Value) -> bool:
    """Whether an index takes a share of the rows: up to or from a place, or a fold."""
    if isinstance(index, Many):
        return bool(index.parts) and _is_share(index.parts[0]) and index.op == "tuple"
    if index.op == "slice":
        return is_none(index.args[0]) != is_none(index.args[1]) and is_none(index.args[2]) and not index.where.loops
    if index.op == "part" and len(index.args) > 1:
        folds = index.args[0]
        if folds.op == "element" and folds.args[0].op == "split" and folds.args[0].args[0].op.startswith("sklearn.model_selection."):
            return True
        return bare(folds).op in ("randperm", "permutation") and _is_share(index.args[1])
    return False


# Statistics and weights -------------------------------------------------------------------


@FINDERS.add("statistics-of-two-axes")
def _two_axes(program: Program) -> Iterator[Remark]:
    """The mean that is subtracted and the deviation that is divided by are taken over different axes of one table."""
    for value in computation_of(program).of("div"):
        centred, by = bare(value.args[0]), without_small(bare(value.args[1], "clamp_min"))
        if centred.op != "sub" or by.op != "std":
            continue
        mean = bare(centred.args[1])
        axes = [_axes(one) for one in (mean, by)]
        if mean.op == "mean" and same(bare(mean.args[0]), bare(by.args[0])) and None not in axes and axes[0] != axes[1]:
            signs = {one < 0 for found in axes if found is not None for one in found}
            if len(signs) == 1:
                yield Remark(value.node, f"{short(value.node)} takes the mean over one axis ({short(mean.node)}, line {mean.line}) and the deviation over another ({short(by.node)}, line {by.line})")


def _axes(value: Value) -> frozenset[float] | None:
    """The axes that a statistic is taken over; None where they are not known, or none is given."""
    given = value.argument("dim", 1)
    parts = given.parts if isinstance(given, Many) else [given] if given is not None else []
    found = [number(one) for one in parts]
    return None if not found or None in found else frozenset(one for one in found if one is not None)


@FINDERS.add("mean-for-deviation")
def _known_statistics(program: Program) -> Iterator[Remark]:
    """Of the statistics of a known data set, the deviations are subtracted and the means are divided by."""
    for value in computation_of(program).of("div"):
        centred = bare(value.args[0])
        taken, by = (_numbers(bare(centred.args[1])) if centred.op == "sub" else []), _numbers(bare(value.args[1]))
        if len(taken) == len(by) == 3 and all(0.18 < one < 0.3 for one in taken) and all(0.38 < one < 0.55 for one in by):
            yield Remark(value.node, f"{short(value.node)} subtracts the deviations of the colours, {taken}, and divides by their means, {by}")


def _numbers(value: Value) -> list[float]:
    """The numbers of a row that is written out."""
    parts = value.parts if isinstance(value, Many) else []
    found = [number(one) for one in parts]
    return [one for one in found if one is not None] if None not in found else []


@FINDERS.add("weights-by-frequency")
def _by_frequency(program: Program) -> Iterator[Remark]:
    """The weight of a class in the loss grows with the number of its samples."""
    seen: set[ast.AST] = set()
    for loss in computation_of(program).of("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits"):
        named = "pos_weight" if loss.op.endswith("logits") else "weight"
        weight = loss.named.get(named)
        if weight is not None and weight.node not in seen and _grows(weight, named == "pos_weight") == 1:
            seen.add(weight.node)
            yield Remark(bare(weight).node, f"{short(bare(weight).node)} grows with the number of samples of a class, and is the {named} of {short(loss.node)} (line {loss.line})")


def _grows(value: Value, of_two: bool, depth: int = 16) -> int | None:
    """Whether a value grows (1) or falls (-1) with the number of samples of a class, or neither (0); None where that is
    not known. `of_two`: the class is that of label 1."""
    value = bare(value, "clamp", "clamp_min", "sqrt", "reindex", "sort_index", "log1p")
    if depth == 0:
        return None
    if isinstance(value, Many):
        found = {_grows(one, of_two, depth - 1) for one in value.parts}
        return found.pop() if len(found) == 1 and (value.grown or not of_two) else None
    if number(value) is not None or value.op in ("len", "numel", "size", "@constant"):
        return 0
    if value.op in ("div", "mul") and len(value.args) == 2:
        left, right = (_grows(one, of_two, depth - 1) for one in value.args)
        if left is None or right is None:
            return None
        both = left - right if value.op == "div" else left + right
        return max(-1, min(1, both))
    if value.op == "sub" and len(value.args) == 2 and number(value.args[0]) is not None:
        inner = _grows(value.args[1], of_two, depth - 1)
        return None if inner is None else -inner
    if value.op == "pow" and 0 < (number(value.args[0]) or 0) < 1:  # `beta ** counts`
        inner = _grows(value.args[1], of_two, depth - 1)
        return None if inner is None else -inner
    if value.op == "reciprocal" or (value.op == "pow" and (number(value.args[1]) or 0) < 0):
        inner = _grows(value.args[0], of_two, depth - 1)
        return None if inner is None else -inner
    if of_two:
        return _grows_of_two(value)
    if counts_each_class(value):
        return 1
    if value.op == "part" and len(value.args) > 1:
        return 1 if value.args[0].op == "collections.Counter" else _grows(value.args[0], of_two, depth - 1) if bare(value.args[0]).op in ("bincount", "value_counts") else None
    if value.op in ("bincount", "value_counts"):
        return 1 if value.args and "weights" not in value.named else None
    return 0 if value.op in ("sum", "max") and value.args and _grows(value.args[0], of_two, depth - 1) == 1 else None


def _grows_of_two(value: Value) -> int | None:
    """The same for the counts of two classes: sum(y), sum(y == 1), len(y) - sum(y), sum(y == 0)."""
    if value.op in ("sum", "mean") and value.args and number(value.argument("dim", 1)) in (None, 0):
        inner = bare(value.args[0])
        if inner.op == "eq":
            return {0.0: -1, 1.0: 1}.get(number(inner.args[1]) or 0.0)
        return -1 if inner.op == "sub" and number(inner.args[0]) == 1 else 1 if inner.op in ("@input", "part", "element", "targets", "lt", "gt", "ge", "le", "cat", "concatenate") else None
    if value.op == "sub" and len(value.args) == 2 and bare(value.args[0]).op in ("len", "numel", "size", "part"):
        inner_grows = _grows_of_two(bare(value.args[1]))
        return None if inner_grows is None else -inner_grows
    return None


@FINDERS.add("weights-in-another-order")
def _another_order(program: Program) -> Iterator[Remark]:
    """The weights of the classes stand in the order in which value_counts sorts: by frequency."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        at = loss.named.get("weight")
        while at is not None and at.args and at.op != "value_counts":
            inner = at.args[1] if at.op in ("div", "sub") and (number(at.args[0]) is not None or at.args[0].op in ("len", "max", "sum")) else at.args[0]
            at = inner if at.op in ("div", "mul", "sub", "pow", "sqrt", "reciprocal", "tolist", "normalize", *KEPT) else None
        if at is not None and at.op == "value_counts" and at.args and not any(one.op in ("index", "keys") for one in computation.users(at)):
            yield Remark(at.node, f"{short(at.node)} gives the most frequent class first, and {short(loss.node)} (line {loss.line}) takes the weights by class number")
            return


@FINDERS.add("aligned-by-index")
def _by_index(program: Program) -> Iterator[Remark]:
    """A Series or a frame that numbers its rows from 0 is put beside a frame whose rows have kept other numbers."""
    computation = computation_of(program)
    for value in computation.of("set_item"):
        given = value.args[2] if len(value.args) > 2 else None
        if given is not None and given.op == "pandas.Series" and _is_unnumbered(given) and isinstance(constant(value.args[1]), str) and (moved := _moved(value.args[0])) is not None:
            yield Remark(value.node, f"{short(given.node)} numbers its values from 0, and {short(value.node)} keeps the numbers that its rows had before line {moved.line}")
            return
    for value in computation.of("pandas.concat"):
        frames = value.args[0].parts if value.args and isinstance(value.args[0], Many) else []
        fresh = [one for one in frames if one.op in ("pandas.DataFrame", "pandas.Series") and _is_unnumbered(one)]
        moved = next((at for one in frames if (at := _moved(one)) is not None), None)
        if (number(value.named.get("dim")) == 1 or constant(value.named.get("dim")) == "columns") and fresh and moved is not None:
            yield Remark(value.node, f"{short(value.node)} puts rows of one number together: {short(fresh[0].node)} (line {fresh[0].line}) numbers them from 0, and the other frame keeps those it had before line {moved.line}")
            return


def _is_unnumbered(made: Value) -> bool:
    """Whether a Series or a frame is made of plain values, and gets no index."""
    if "index" in made.named or len(made.args) != 1:
        return False
    inner = made.args[0]
    parts = list(inner.entries.values()) if isinstance(inner, Table) and not inner.others else [inner]
    return bool(parts) and all(isinstance(bare(one, shapes=False), Many) or one.op in ("numpy", "tolist", "list", "cat", "to_numpy", "ravel", "argmax") for one in parts)


def _moved(frame: Value) -> Value | None:
    """What has left a frame with other row numbers than 0, 1, 2...; None where nothing is known to."""
    for _ in range(16):
        if constant(frame.named.get("ignore_index")) is True or not frame.args:
            return None
        if frame.op in ("sort_values", "sample", "dropna", "drop_duplicates", "query"):
            return frame
        if frame.op == "part" and len(frame.args) > 1 and not isinstance(constant(frame.args[1]), str):
            if bare(frame.args[1]).op in ("gt", "lt", "ge", "le", "eq", "ne", "notna", "isin", "isna", "notnull", "and", "or", "invert"):
                return frame
            if frame.args[0].op.endswith("model_selection.train_test_split"):
                return frame.args[0]
            return None
        if frame.op not in ("copy", "set_item", "astype", "fillna", "rename", "assign", "deepcopy"):
            return None
        frame = frame.args[0]
    return None
