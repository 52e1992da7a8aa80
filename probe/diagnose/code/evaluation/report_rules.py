"""What is printed, logged and kept of a training: by which count it is divided, and under which name. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, TRAINING
from probe.diagnose.code.evaluation.mean_rules import added_of, divisions
from probe.diagnose.code.finders.data.precision_curves import precision_out_of_order
from probe.diagnose.code.finders.evaluation.ctc_decoding import blanks_before_repeats, letter_dropped
from probe.diagnose.code.finders.evaluation.ideals import divided_by_the_other_count, ideal_of_what_is_shown
from probe.diagnose.code.finders.evaluation.passes_alike import concordance_reversed, passes_alike
from probe.diagnose.code.finders.evaluation.ranks_of_items import item_for_rank, seen_set_to_zero
from probe.diagnose.code.finders.evaluation.raw_observations import raw_observations
from probe.diagnose.code.finders.evaluation.signal_peaks import peak_of_another_range
from probe.diagnose.code.finders.evaluation.tied_ranks import counted_as_better
from probe.diagnose.code.finders.measured.strided_windows import scored_in_several_windows
from probe.diagnose.code.finders.objectives.seen_items import seen_items_ranked
from probe.diagnose.code.finders.rankings.empty_slots import slots_left_at_zero
from probe.diagnose.code.finders.rankings.orders_for_ranks import order_for_ranks
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark, Rules
from probe.diagnose.code.syntax import (
    compares,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_string,
    last_word,
    number_in,
    own,
    short,
    text_of,
)

RULES = Rules("data")


@RULES.add("divided-by-the-last-index", "what is reported is too large: numbers that count from 0 end one below how many there are", "divide by len(loader), or by the last number + 1")
def _last_index(program: Program) -> Iterator[Remark]:
    """A sum over the turns of a loop that is divided by the number of the last turn."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        counter = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else None
        if not is_name(counter) or not is_call(loop.iter, "enumerate") or len(loop.iter.args) != 1 or loop.iter.keywords:
            continue
        scope, end = program.scope(loop), loop.end_lineno or 0
        sums = {text_of(one.target) for one in ast.walk(loop) if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and program.loops(one)[:1] == [loop]}
        for node, name, divisor in divisions(flow, scope):
            if name in sums and is_name(divisor, counter.id) and getattr(node, "lineno", 0) > end and loop not in program.parents(node):
                changed = [one for one in flow.bound.get((scope, counter.id), []) if one.node is not loop and loop.lineno <= getattr(one.node, "lineno", 0) <= getattr(node, "lineno", 0)]
                if not changed:
                    yield Remark(node, f"{name} adds up all turns of the loop, and {counter.id} is the number of the last one, counted from 0: {short(node)} lacks one")


def _reports(flow: Flow) -> Iterator[tuple[ast.If, float, ast.AST, str, float, bool]]:
    """What is divided by a number every so many turns of a loop: where, how many turns, the division, the sum, the
    number, and whether the sum begins anew there."""
    program = flow.program
    for node in program.everywhere(ast.If):
        loop = next(iter(program.loops(node)), None)
        test = node.test
        if not compares(test, ast.Eq) or not is_binary(test.left, ast.Mod) or not isinstance(loop, ast.For) or program.parent.get(node) is not loop:
            continue
        every = flow.number(test.left.right)
        sums = {text_of(one.target): one for one in loop.body if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add)}
        inside = [one for part in node.body for one in ast.walk(part)]
        for where, name, divisor in divisions(flow, program.scope(node)):
            number = number_in(divisor)
            if where not in inside or name not in sums or every is None or number is None or not _is_mean(flow, sums[name].value, loop) or not isinstance(where, ast.BinOp):
                continue
            if next((one for one in program.parents(where) if isinstance(one, ast.If)), None) is not node:
                continue  # in one of several such turns
            anew = any(isinstance(one, ast.Assign) and name in _set_by(one) for one in inside)
            yield node, every, where, name, number, anew


def _set_by(node: ast.Assign) -> set[str]:
    """What an assignment sets, also by a tuple."""
    found = [one for target in node.targets for one in ast.walk(target) if isinstance(one, (ast.Name, ast.Attribute, ast.Subscript))]
    return {text_of(one.value if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Slice) else one) for one in found}


def _is_mean(flow: Flow, value: ast.expr, loop: ast.For) -> bool:
    """Whether what is added is one number for each batch: a mean, or the loss that is trained on."""
    if is_method(value, "item") and is_name(value.func.value):
        trained = {text_of(one.func.value) for one in ast.walk(loop) if is_method(one, "backward")}
        return text_of(value.func.value) in trained
    return added_of(flow, value) == "mean"


@RULES.add("divided-by-another-interval", "what is reported is not the mean that it is called", "divide by the number of turns that are added up")
def _other_interval(program: Program) -> Iterator[Remark]:
    """A sum of so many batches that is divided by another number, and begins anew."""
    for node, every, where, name, number, anew in _reports(flow_of(program)):
        if anew and number != every and number > 1:
            yield Remark(where, f"{name} adds up {every:g} batches between two reports (line {node.lineno}) and is divided by {number:g}")


@RULES.add("sum-kept-between-reports", "what is reported grows from report to report whatever the model does", "set the sum to 0 after each report")
def _kept(program: Program) -> Iterator[Remark]:
    """A sum that is divided by the number of turns since the last report, and goes on growing."""
    flow = flow_of(program)
    for node, every, where, name, number, anew in _reports(flow):
        loop = program.loops(node)[0]
        set_again = any(isinstance(one, ast.Assign) and name in _set_by(one) for one in ast.walk(loop))
        if not anew and not set_again and number == every and every > 1:
            yield Remark(where, f"{name} is divided by the {every:g} batches since the last report (line {node.lineno}), and is not set back to 0: the second report holds twice as many")


@RULES.add("kept-under-another-name", "the curve that is shown for one part is that of another", "keep the score of the part that the name says")
def _other_name(program: Program) -> Iterator[Remark]:
    """A score of the training that is kept as that of held-out data, or the other way round."""
    for scope in program.scopes():
        for node in own(scope, ast.Call, ast.Dict):
            pairs: list[tuple[str, ast.expr]] = []
            if is_method(node, "append") and len(node.args) == 1:
                pairs = [(_called(node.func.value), node.args[0])]
            elif isinstance(node, ast.Dict):
                pairs = [(key.value, value) for key, value in zip(node.keys, node.values, strict=True) if is_string(key)]
            for name, value in pairs:
                given = _called(value.func.value if is_method(value, "item") else value)
                first, second = _part(name), _part(given)
                if first is not None and second is not None and first[0] != second[0] and first[1] == second[1]:
                    yield Remark(value, f"{short(node)} keeps {given} as {name}")


def _one_part_for_all(program: Program) -> Iterator[Remark]:
    """A loop over the names of the parts of the data keeps a score for each, and takes the data of one part in all of them."""
    for loop in program.everywhere(ast.For):
        names = [one.value for one in loop.iter.elts if is_string(one)] if isinstance(loop.iter, (ast.List, ast.Tuple)) else []
        if len(names) < 2 or not is_name(loop.target) or not any(_part(f"{one}_x") for one in names):
            continue
        target = loop.target.id
        inside = [one for statement in loop.body for one in ast.walk(statement)]
        keyed = any(isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and is_name(one.slice, target) for one in inside)
        reads = [one for one in inside if is_name(one, target) and isinstance(one.ctx, ast.Load)]
        others = [one for one in reads if not (isinstance(program.parent.get(one), ast.Subscript) and isinstance(getattr(program.parent.get(one), "ctx", None), ast.Store))]
        fixed = [one for one in inside if isinstance(one, ast.Call) and one.args and any(is_string(each) and each.value in names for each in one.args) and not is_method(one, "get", "append")]
        if keyed and not others and len(fixed) == 1:
            yield Remark(fixed[0], f"{short(fixed[0])} takes the same data in each turn of the loop of line {loop.lineno}, which keeps a score under each of {', '.join(names)}")


def _called(node: ast.AST) -> str:
    return node.slice.value if isinstance(node, ast.Subscript) and is_string(node.slice) else last_word(node)


def _part(name: str) -> tuple[str, str] | None:
    """Which part of the data a name says, and of what: `val_losses` is the loss of the held-out part."""
    held, trained = HELD_OUT.search(name), TRAINING.search(name)
    found = held or trained
    if found is None or (held is not None and trained is not None) or len(name) > 40:
        return None
    rest = (name[: found.start()] + "_" + name[found.end() :]).strip("_").lower()
    rest = rest.removesuffix("_list").removesuffix("_history").removesuffix("es").removesuffix("s").removesuffix("e")
    return ("held out" if held else "training"), rest


RULES.add(
    "seen-items-ranked",
    "items that a user has already fill the first places: recall and NDCG are lower than those of what would be recommended",
    "leave them out before the ranking: scores.masked_fill(seen, float('-inf')).topk(k)",
)(seen_items_ranked)


RULES.add(
    "ties-won-by-the-target",
    "the score is too high: candidates that tie with the target count as worse",
    "rank scores before they are rounded, or count half of the candidates that tie as better",
)(counted_as_better)


RULES.add(
    "letter-dropped-as-blank",
    "that letter is missing from everything that is read: the error rate that is reported has a floor",
    "leave out the blank of the loss, and no other number",
)(letter_dropped)
RULES.add(
    "blanks-before-repeats",
    "no doubled letter is ever read: the error rate that is reported has a floor",
    "join what is repeated first, and leave out the blanks then",
)(blanks_before_repeats)


RULES.add(
    "item-for-rank",
    "what is reported as rank, hits or reciprocal rank is the number of an item: it says nothing of the model",
    "take the place of the item: order.argsort(dim=1)[rows, target], or (scores > scores[target]).sum()",
)(item_for_rank)


RULES.add(
    "passes-alike",
    "the uncertainty that is reported is 0, whatever the model knows",
    "set the layers of dropout to train() after eval()",
)(passes_alike)


RULES.add(
    "concordance-reversed",
    "a good model scores below 0.5, and a score above it is that of a bad one",
    "count risk_i > risk_j where time_i < time_j",
)(concordance_reversed)


FINDERS = Finders()
FINDERS.add("kept-under-another-name")(_one_part_for_all)
FINDERS.add("seen-items-ranked")(seen_set_to_zero)
FINDERS.add("normalized-apart")(raw_observations)
FINDERS.add("precision-for-recall")(divided_by_the_other_count)


RULES.add(
    "peak-of-another-range",
    "the ratio that is reported is too high or too low by a fixed number of decibels",
    "give it the largest value that the images can have, and compare images that are not normalized",
)(peak_of_another_range)


RULES.add(
    "ideal-of-what-is-shown",
    "NDCG says nothing of what was missed: one hit of a hundred, in the first place, scores 1",
    "take the gains of all relevant items: dcg([1.0] * min(k, number of relevant items))",
)(ideal_of_what_is_shown)


RULES.add(
    "precision-out-of-order",
    "the number says nothing of the model: precision and recall are those of the order in which the samples happen to lie",
    "sort the labels by the scores, the highest first: labels[np.argsort(-scores)]",
)(precision_out_of_order)
RULES.add(
    "scored-in-several-windows",
    "the perplexity is too high: words are also scored with next to nothing before them, and the text counts several times",
    "score in each window only the words that no window before it had, as labels[:-new] = -100 does; or begin windows as far apart as they are long",
)(scored_in_several_windows)


RULES.add(
    "slots-left-at-zero",
    "the first thing counts as ranked wherever a list is short: the score is too high where it is right",
    "fill the block with -1, or compare only the slots that were filled",
)(slots_left_at_zero)


RULES.add(
    "order-for-ranks",
    "the numbers of the samples are averaged or compared, not their ranks: a blend or correlation of them says nothing of the scores",
    "sort twice: scores.argsort().argsort()",
)(order_for_ranks)
