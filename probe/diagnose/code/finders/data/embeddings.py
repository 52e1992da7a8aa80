"""Rows of embeddings that are drawn or dropped, and language models: masked words and perplexity. Pure; standard library
only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.sequences.text_ends import ends_of, is_moved
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import contents
from probe.diagnose.code.traits.sides import DRAWS, draws_of, labels_of, sides_of

FINDERS = Finders()
_MEANS = ("mean", "sum", "sum_of", "statistics.fmean", "statistics.mean", "add")
_OF_ALL = ("average_precision_score", "roc_auc_score", "f1_score", "precision_score", "recall_score", "r2_score", "matthews_corrcoef", "cohen_kappa_score", "fbeta_score")
"""Scores of all samples that are not the mean of those of parts."""


# Embeddings -------------------------------------------------------------------------------


@FINDERS.add("candidates-of-another-kind")
def _another_kind(program: Program) -> Iterator[Remark]:
    """Numbers for one embedding are drawn below the number of rows of another one."""
    computation = computation_of(program)
    tables = {id(value.args[0]): value.args[0] for value in computation.of("run") if value.args[0].op == "torch.nn.Embedding" and value.args[0].args}
    seen: set[ast.AST] = set()
    for value in computation.of("run") if len(tables) > 1 else ():
        table = tables.get(id(value.args[0]))
        for drawn in contents(computation, value.args[1]) if table is not None and len(value.args) > 1 else ():
            sources = drawn.args[1:] if drawn.op == "where" else (drawn,)
            for one in (bare(source) for source in sources):
                limit = _limit(one)
                if limit is None or table is None or same(limit, _size(table)) or one.node in seen:
                    continue
                other = next((at for at in tables.values() if same(limit, _size(at))), None)
                if other is not None and number(limit) is None:
                    seen.add(one.node)
                    yield Remark(one.node, f"{short(one.node)} draws below {short(limit.node)}, the rows of {short(other.node)} (line {other.line}), for {short(table.node)} (line {table.line})")


def _limit(drawn: Value) -> Value | None:
    """Below what whole numbers are drawn."""
    if drawn.op not in ("randint", "randint_like", "randrange") or len(drawn.args) < 1:
        return None
    limit = drawn.args[1] if drawn.op == "randint_like" and len(drawn.args) > 1 else drawn.args[0]
    if number(limit) == 0 and len(drawn.args) > 1:
        limit = drawn.args[1]
    return _size(limit.args[0]) if limit.op == "num_embeddings" and limit.args[0].op == "torch.nn.Embedding" else limit


def _size(table: Value) -> Value:
    """The number of rows of an embedding."""
    return table.args[0]


@FINDERS.add("dropped-to-a-class")
def _dropped_to_a_class(program: Program) -> Iterator[Remark]:
    """Labels that are dropped at random become 0, and the embedding has a last row of its own for no label."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value in computation.of("run"):
        table = value.args[0]
        if table.op != "torch.nn.Embedding" or len(value.args) < 2 or not table.args or table.node in seen:
            continue
        empty = next((one for one in computation.of("full", "full_like") if _is_last_row(one, table)), None)
        labels = _dropped_to_zero(value.args[1])
        if empty is not None and labels is not None:
            seen.add(table.node)
            yield Remark(labels.node, f"{short(labels.node)} makes 0, the first class, of dropped labels, and {short(empty.node)} (line {empty.line}) takes another number for none")


def _is_last_row(filled: Value, table: Value) -> bool:
    """Whether a tensor is filled with the number of the last row of an embedding, which has one row more than there are classes."""
    fill, rows = filled.argument("fill_value", 1), table.args[0]
    if fill is None:
        return False
    known = number(fill)
    if known is not None:
        return known > 0 and number(rows) == known + 1
    return rows.op == "add" and number(rows.args[1]) == 1 and same(rows.args[0], fill)


def _dropped_to_zero(labels: Value) -> Value | None:
    """Where labels that are drawn at random become 0."""
    for one in alternatives(bare(labels, shapes=False)):
        draws = [at for at in origins(one) if at.op in DRAWS]
        if one.op == "mul" and len(one.args) == 2 and draws and any(bare(at).op in ("lt", "gt", "le", "ge", "bernoulli") for at in one.args):
            return one
        if one.op == "where" and len(one.args) == 3 and draws and any(number(at) == 0 or bare(at).op == "zeros_like" for at in one.args[1:]):
            return one
        if one.op == "masked_fill" and len(one.args) == 3 and number(one.args[2]) == 0 and any(at.op in DRAWS for at in origins(one.args[1])):
            return one
    return None


# Masked words -----------------------------------------------------------------------


@FINDERS.add("loss-of-unmasked-words")
def _unmasked_words(program: Program) -> Iterator[Remark]:
    """Words are hidden from a model at random, and the loss asks for all words."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        hidden = [one for one in sides.given.values() if _hides(one)]
        if not hidden or not any(one.op in ("cross_entropy", "nll_loss", "gather") or one.op == "run" for one in sides.beside.values()):
            continue
        for masked in hidden:
            words = bare(masked.args[2] if masked.op == "where" else masked.args[0])
            drawn = draws_of(masked.args[0] if masked.op == "where" else masked.args[1]) - draws_of(words)
            looked_up = [one.args[1] for one in sides.given.values() if one.op == "run" and one.args[0].op == "torch.nn.Embedding" and len(one.args) > 1]
            asked = [one for one in _targets(sides.beside) if _all_of(one, words)]
            if not asked or drawn & sides.beside.keys() or any(masked not in origins(one) and words in origins(one, _BY_SHAPE) for one in looked_up):
                continue
            transformer = any(".ForMaskedLM" in f".{one.op}" or "MaskedLM" in one.op for run in sides.runs for one in origins(run.args[0]))
            if transformer or any(masked in origins(one) for one in looked_up):
                yield Remark(asked[0].node, f"{short(asked[0].node)} asks for all words, and only those that {short(masked.node)} (line {masked.line}) replaces are hidden from the model")
                return


_BY_SHAPE = ("zeros_like", "ones_like", "full_like", "shape", "size", "len")
"""Operations that take the shape of a value, and none of its numbers."""


def _hides(value: Value) -> bool:
    """Whether a value is words of which some, drawn at random, are replaced by one number."""
    if value.op == "where" and len(value.args) == 3:
        mask, put = value.args[0], value.args[1]
    elif value.op in ("masked_fill", "set_item") and len(value.args) == 3:
        mask, put = value.args[1], value.args[2]
    else:
        return False
    put = put.args[1] if put.op == "full_like" and len(put.args) > 1 else put
    return bool(draws_of(mask)) and ((number(put) or 0) > 0 or put.op == "mask_token_id") and not isinstance(mask, Many)


def _targets(beside: dict[int, Value]) -> Iterator[Value]:
    """What words a loss asks for."""
    for one in beside.values():
        if one.op in ("cross_entropy", "nll_loss") and len(one.args) > 1:
            yield one.args[1]
        elif one.op == "gather" and one.args and bare(one.args[0], "neg").op == "log_softmax":
            yield one.args[-1]
        elif one.op == "run" and (labels := labels_of(one)) is not None:
            yield labels


def _all_of(target: Value, words: Value) -> bool:
    """Whether a target is words, of which none or what no draw says are left out."""
    for _ in range(12):
        target = bare(target)
        if target is words:
            return True
        if target.op == "part" and len(target.args) == 2 and target.args[1].op == "ne" and same(target.args[1].args[0], target.args[0]):
            target = target.args[0]  # `target[target != -100]`
            continue
        if target.op not in ("set_item", "masked_fill") or draws_of(target.args[1]):
            return False
        target = target.args[0]
    return False


@FINDERS.add("loss-of-what-is-shown")
def _asks_for_the_hidden_form(program: Program) -> Iterator[Remark]:
    """Words are hidden from a model at random, and the loss asks for what was put in their place."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        looked_up = [one.args[1] for one in sides.given.values() if one.op == "run" and one.args[0].op == "torch.nn.Embedding" and len(one.args) > 1]
        shown = {id(at): at for one in looked_up for at in origins(one) if _hides(at)}
        for target in _targets(sides.beside) if shown else ():
            asked = bare(target)
            for _ in range(6):
                chosen = asked.op == "part" and len(asked.args) == 2 and asked.args[1].op in ("ne", "eq", "and", "where")
                if chosen or (asked.op == "masked_fill" and len(asked.args) == 3 and (number(asked.args[2]) or 0) < 0):
                    asked = bare(asked.args[0])
                elif asked.op == "where" and len(asked.args) == 3 and ((number(asked.args[2]) or 0) < 0 or _is_ignored(asked.args[2])):
                    asked = bare(asked.args[1])
            hidden = next((one for one in origins(asked, stop=("run", "rows", "@input")) if id(one) in shown), None)
            if hidden is not None and asked.op in ("where", "masked_fill", "set_item") and any(asked is one for at in looked_up for one in origins(at)):
                yield Remark(target.node, f"{short(target.node)} asks for what line {hidden.line} has put in the place of the hidden words, and not for the words")
                return


def _is_ignored(value: Value) -> bool:
    """Whether a value is one negative number at all places: what a loss leaves out."""
    value = bare(value)
    return value.op == "full_like" and (number(value.args[-1]) or 0) < 0


# Perplexity --------------------------------------------------------------------------


def _is_of_words(value: Value) -> bool:
    """Whether a value is made of the logarithms of what a model says of words, and of no logarithm of 2."""
    found = list(origins(value))
    if any(one.op in ("log2", "log10") or (one.op == "log" and number(one.args[0]) == 2) or (number(one) is not None and abs((number(one) or 0) - 0.6931) < 0.001) for one in found):
        return False
    return any(one.op in ("cross_entropy", "nll_loss") or (one.op == "gather" and bare(one.args[0]).op == "log_softmax") for one in found)


@FINDERS.add("perplexity-of-another-base")
def _another_base(program: Program) -> Iterator[Remark]:
    """2 is raised to a mean of natural logarithms."""
    seen: set[ast.AST] = set()
    for value in computation_of(program).of("exp2", "pow"):
        power = value.args[0] if value.op == "exp2" else value.args[1] if len(value.args) > 1 and number(value.args[0]) == 2 else None
        if power is not None and value.node not in seen and _is_of_words(power):
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} takes 2 for the base of {short(power.node)} (line {power.line}), whose logarithms are natural")


@FINDERS.add("perplexity-with-smoothing")
def _with_smoothing(program: Program) -> Iterator[Remark]:
    """The exponential of a loss with smoothed labels is taken."""
    seen: set[ast.AST] = set()
    for value in computation_of(program).of("exp"):
        inner = bare(value.args[0]) if value.args else value
        if inner.op not in ("div", "cross_entropy", "mean", "add", "loss") or value.node in seen:
            continue
        smoothed = next((one for one in origins(inner) if _is_smoothed(one)), None)
        if smoothed is not None and _is_of_words(inner):
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is taken of a loss whose labels are smoothed: {short(smoothed.node)} (line {smoothed.line})")


def _is_smoothed(loss: Value) -> bool:
    """Whether a loss is that of smoothed labels: of torch, or written out."""
    if loss.op == "cross_entropy":
        given = loss.named.get("label_smoothing")
        by = given.args[2] if given is not None and given.op == "get" and len(given.args) > 2 else given
        return (number(by) or 0) > 0
    if loss.op != "add" or len(loss.args) != 2:
        return False
    spread = [one for part in loss.args if bare(part).op == "mul" for one in bare(part).args if bare(one).op == "neg" and bare(bare(one).args[0]).op == "mean"]
    return any(bare(bare(bare(one).args[0]).args[0]).op == "log_softmax" for one in spread) and all(bare(one).op == "mul" for one in loss.args)


@FINDERS.add("perplexity-of-each-batch")
def _of_each_batch(program: Program) -> Iterator[Remark]:
    """The exponentials of the losses of batches are added up, or averaged."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value in computation.of("exp"):
        inner = bare(value.args[0]) if value.args else value
        if inner.op not in ("cross_entropy", "nll_loss") or not inner.where.loops or value.node in seen or constant(inner.named.get("reduction")) == "none":
            continue
        used = next((one for one in _uses(computation, value) if one.op in _MEANS and not (one.op == "add" and one.where.loops != value.where.loops)), None)
        if used is not None and not is_none(used.args[0]):
            seen.add(value.node)
            yield Remark(used.node if used.op == "add" else value.node, f"{short(value.node)} is the perplexity of one batch, and {short(used.node)} (line {used.line}) averages or adds those of all")


def _uses(computation: Computation, value: Value) -> Iterator[Value]:
    """What is computed of a value, also as an element of a list."""
    waiting, seen = list(computation.users(value)), {id(value)}
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if at.op in ("item", "float", "list", "tensor", "stack", "array", "cpu", "detach", "append") or (at.op == "mul" and any(number(one) is None for one in at.args)):
            waiting += computation.users(at.args[0] if at.op == "append" else at)
            if isinstance(at, Many) and not at.grown:
                continue
        else:
            yield at


# Ends and streams ---------------------------------------------------------------------------


@FINDERS.add("end-is-the-padding")
def _end_is_padding(program: Program) -> Iterator[Remark]:
    """Each text is written with a last number behind it, and that is the number which the loss leaves out."""
    computation = computation_of(program)
    found: list[tuple[Value, Value, Value]] = []
    for loss in computation.of("cross_entropy", "nll_loss"):
        left_out = loss.named.get("ignore_index")
        if len(loss.args) > 1 and left_out is not None:
            found.append((loss, loss.args[1], left_out))
        elif len(loss.args) > 1 and constant(loss.named.get("reduction")) == "none":
            masks = [one for one in computation.of("ne") if len(one.args) > 1 and same(bare(one.args[0]), bare(loss.args[1]))]
            found += [(mask, mask.args[0], mask.args[1]) for mask in masks]
        chosen = bare(loss.args[1]) if len(loss.args) > 1 else loss
        mask = bare(chosen.args[1]) if chosen.op == "part" and len(chosen.args) == 2 else chosen
        if mask.op == "ne" and len(mask.args) == 2 and same(bare(mask.args[0]), bare(chosen.args[0])):
            found.append((mask, mask.args[0], mask.args[1]))
    for by, target, left_out in found:
        if (number(left_out) or 0) < 0:
            continue
        for row in contents(computation, target):
            behind = isinstance(row, Many) and isinstance(row.node, ast.List) and len(row.parts) == 1 and any(one.op == "add" and one.args[-1] is row and not is_moved(one.args[0]) for one in computation.users(row))
            if behind and isinstance(row, Many) and same(bare(row.parts[-1]), bare(left_out)):
                yield Remark(by.node, f"{short(by.node)} leaves out the number of {short(row.node)}, which line {row.line} puts behind each text")
                return
            put = next((node for one, node in ends_of(computation, row) if number(one) is not None and number(one) == number(left_out)), None)
            if put is not None:
                yield Remark(by.node, f"{short(by.node)} leaves out {number(left_out):g}, and each text ends in that: {short(put)} (line {getattr(put, 'lineno', 0)})")
                return
            if not isinstance(row, Many) or not isinstance(row.node, ast.List) or len(row.node.elts) < 2 or len(row.parts) < 2 or isinstance(row.node.elts[-1], ast.Starred):
                continue
            if not any(isinstance(one, ast.Starred) for one in row.node.elts) or not same(bare(row.parts[-1]), bare(left_out)) or same(bare(row.parts[0]), bare(left_out)):
                continue
            yield Remark(by.node, f"{short(by.node)} leaves out {short(left_out.node)}, and each text ends in that: {short(row.node)} (line {row.line})")
            return


@FINDERS.add("stream-cut-across")
def _cut_across(program: Program) -> Iterator[Remark]:
    """A stream is laid out in rows, and the steps of a sample are taken down the columns."""
    computation = computation_of(program)
    for block in computation.of("view", "reshape"):
        if len(block.args) != 3 or number(block.args[1]) != -1 or number(block.args[2]) == 1:
            continue
        cuts = [one for one in computation.users(block) if one.op == "part" and len(one.args) > 1 and one.args[1].op == "slice" and one.args[1].args[0].op in ("index", "add")]
        firsts = [one for one in cuts if one.args[1].args[0].op == "index"]
        nexts = [one for one in cuts if one.args[1].args[0].op == "add" and number(one.args[1].args[0].args[1]) == 1 and any(one.args[1].args[0].args[0] is at.args[1].args[0] for at in firsts)]
        if firsts and nexts:
            yield Remark(block.node, f"{short(block.node)} puts neighbours of the stream into one row, and {short(firsts[0].node)} (line {firsts[0].line}) takes rows for steps: no sample is a text")
            return


# Scores of batches ----------------------------------------------------------------------------


@FINDERS.add("score-of-each-batch")
def _score_of_batches(program: Program) -> Iterator[Remark]:
    """A score that is no mean over samples is computed of what a model says of one batch, and averaged over the batches."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value in computation.values:
        if not value.op.startswith("sklearn.metrics.") or not value.op.endswith(_OF_ALL) or not value.where.loops or value.node in seen:
            continue
        found = list(origins(value))
        said = [one for one in found if one.op == "run"]
        if not said or any(one.op in ("cat", "concatenate", "append") or (isinstance(one, Many) and one.grown and one.op == "list") for one in found if one.number > said[0].number):
            continue
        if not any(one.op == "rows" and one.where.loops for one in found):
            continue
        used = next((one for one in _uses(computation, value) if one.op in _MEANS[:4]), None)
        if used is not None:
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the score of one batch, and {short(used.node)} (line {used.line}) averages those of all")
