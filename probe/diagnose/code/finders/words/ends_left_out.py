"""Ends of texts that a loss leaves out, by values. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import begins_at, contents, written

FINDERS = Finders()


@FINDERS.add("end-is-the-padding")
def _end_left_out(program: Program) -> Iterator[Remark]:
    """Each row of numbers ends with one that a loss over these rows leaves out, whatever the number is."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        left_out = loss.argument("ignore_index", 4)
        if left_out is None or len(loss.args) < 2 or loss.where.no_grad:
            continue
        behind = any(one.op == "part" and len(one.args) == 2 and begins_at(one.args[1]) == 1 for one in origins(loss.args[1]))  # the start is not asked for
        row = next((one for one in origins(loss.args[1]) if _ends_with(one, bare(left_out), behind) and not any(user.op in ("append", "extend") and user.args[0] is one for user in computation.users(one))), None)
        row = row or next(_written_behind(computation, loss.args[1], bare(left_out)), None)
        if row is not None:
            yield Remark(loss.node, f"{short(loss.node)} leaves {short(left_out.node)} out of the loss, and each text ends with it: {short(row.node)} (line {row.line})")
            return


def _written_behind(computation: Computation, labels: Value, end: Value) -> Iterator[Value]:
    """Where the labels of a padded block get an end behind the words of a row: `y[i, len(words)] = END`."""
    for block in contents(computation, labels):
        writes = [one for one in written(computation, block) if len(one.args) > 2] if block.op in ("full", "zeros", "new_full", "new_zeros") else []
        for one in writes:
            last = one.args[1].parts[-1] if isinstance(one.args[1], Many) and one.args[1].parts else one.args[1]
            behind = any(begins_at(each.args[1]) == 0 and _stops_at(each.args[1], last) for each in writes)
            if behind and (bare(one.args[2]) is end or same(bare(one.args[2]), end)):
                yield one


def _stops_at(index: Value, place: Value) -> bool:
    """Whether a slice goes up to a place: `[i, :n]` and n."""
    last = index.parts[-1] if isinstance(index, Many) and index.parts else index
    return last.op == "slice" and place.op != "slice" and (last.args[1] is place or same(last.args[1], place))


@FINDERS.add("end-never-learned")
def _end_masked_as_padding(program: Program) -> Iterator[Remark]:
    """The padding of a tokenizer is the end, the texts are given ends, and the labels leave out all places with that number."""
    computation = computation_of(program)
    made = next((one for one in computation.of("set_attribute") if one.data == "pad_token" and one.args[-1].op == "eos_token"), None)
    written = any(user.op in ("add", "text", "append", "join", "format") or (isinstance(user, Many) and len(user.parts) == 1) for end in (*computation.of("eos_token"), *computation.of("eos_token_id")) for user in computation.users(end))
    if made is None or not written:
        return
    for value in computation.of("where", "masked_fill", "set_item"):
        if len(value.args) != 3:
            continue
        mask, words, put = (value.args[0], value.args[1], value.args[2]) if value.op == "where" else (value.args[1], value.args[0], value.args[2])
        mask, kept = bare(mask), value.op != "where"
        if mask.op in ("invert", "not", "logical_not") and mask.args:
            mask, kept = bare(mask.args[0]), not kept
        if value.op == "where" and _is_left_out(words):
            words, put, kept = put, words, not kept
        if mask.op == ("eq" if kept else "ne") and len(mask.args) == 2 and _is_left_out(put) and mask.args[1].op in ("pad_token_id", "eos_token_id"):
            yield Remark(value.node, f"{short(value.node)} takes the padding out of the loss, and with {short(made.node)} (line {made.line}) each end of a text is padding")
            return


def _is_left_out(value: Value) -> bool:
    """Whether a value is -100, or as many of it as are needed."""
    given = value.args[-1] if value.op in ("full_like", "full") and value.args else value
    return number(bare(given)) == -100


@FINDERS.add("end-is-the-padding")
def _end_marked(program: Program) -> Iterator[Remark]:
    """The places that hold the padding are left out of the labels, and the padding is what each text ends with."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        for marked in origins(loss.args[1]) if len(loss.args) > 1 and not loss.where.no_grad else ():
            if marked.op not in ("set_item", "masked_fill") or len(marked.args) != 3 or number(marked.args[2]) != -100:
                continue
            asked = bare(marked.args[1])
            padding = bare(asked.args[1]) if asked.op == "eq" and len(asked.args) == 2 else None
            if padding is None or number(padding) is not None:
                continue  # a number that is written out is asked about elsewhere
            row = next((one for one in origins(marked.args[0]) if _is_filled_with_its_end(one, padding) or _ends_with(one, padding)), None)
            if row is not None:
                yield Remark(marked.node, f"{short(marked.node)} leaves out all places with {short(asked.args[1].node)}: it is the padding, and the end of each text too ({short(row.node)}, line {row.line})")
                return


def _is_filled_with_its_end(row: Value, padding: Value) -> bool:
    """Whether a row is filled up with what its text ends with: `text + [padding] * n`."""
    node = row.node
    if not isinstance(row, Many) or len(row.parts) < 3 or not isinstance(node, ast.BinOp) or not isinstance(node.right, ast.BinOp) or not isinstance(node.right.op, ast.Mult):
        return False
    end, filling = bare(row.parts[-2]), bare(row.parts[-1])
    return all(one is padding or same(one, padding) for one in (end, filling)) and not same(bare(row.parts[-3]), padding)


def _ends_with(row: Value, end: Value, behind: bool = False) -> bool:
    """Whether a row is numbers that are looked up, and one behind them that is always the same: `numbers + [end]`, or
    `np.append(numbers, end)`."""
    node = row.node
    if row.op == "append" and len(row.args) == 2 and isinstance(node, ast.Call) and len(node.args) == 2:
        last = bare(row.args[1])
        return number(bare(row.args[0])) is None and last.op not in ("rows", "element", "index") and (last is end or same(last, end))
    joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.right, ast.List) and len(node.right.elts) == 1
    listed = isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.elts[-2], ast.Starred) and not isinstance(node.elts[-1], ast.Starred)
    if not isinstance(row, Many) or len(row.parts) < 2 or not (joined or listed):
        return False
    last = bare(row.parts[-1])
    # The start may be the same number: what is left out then may be the start of the targets, unless these lie `behind` it.
    return last.op not in ("rows", "element", "index") and (last is end or same(last, end)) and (behind or not (last is bare(row.parts[0]) or same(last, bare(row.parts[0]))))
