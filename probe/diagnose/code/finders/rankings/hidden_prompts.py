"""Prompts that are left out of the labels of texts which are padded before they begin. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import names_read, short

_IGNORED = -100


def hidden_before_the_text(program: Program) -> Iterator[Remark]:
    """The first places of a row are hidden from the loss, as many as a prompt has words, and the text stands at the end of its row."""
    computation = computation_of(program)
    for value in computation.of("set_item"):
        cut = _last(value)
        if cut is None or number(value.args[2]) != _IGNORED or not (is_none(cut.args[0]) or number(cut.args[0]) == 0) or not _is_length(cut.args[1]):
            continue
        put = next((one for one in _before(value) if (place := _last(one)) is not None and _counts_from_the_end(place)), None)
        if put is not None:
            yield Remark(value.node, f"{short(value.node)} hides places from the start of the row, and {short(put.node)} (line {put.line}) puts the text at its end, behind the padding: words of the prompt stay in the loss")
            return
    for value in computation.of("masked_fill", "where"):
        if len(value.args) != 3 or _IGNORED not in [number(one) for one in value.args]:
            continue
        test = bare(value.args[0] if value.op == "where" else value.args[1])
        if test.op not in ("lt", "gt") or not any(one.op == "arange" and len(one.args) == 1 for one in origins(test)):
            continue
        lengths = next((one for one in map(bare, test.args) if any(each.op == "len" for each in origins(one, stop=("len",))) and not any(each.op in ("arange", "sub", "add", "sum", "eq", "ne", "argmax") for each in origins(one, stop=("len",)))), None)
        padded = _padded_before(program)
        if lengths is not None and padded is not None and any(one.op == "eq" for one in origins(value)):
            yield Remark(value.node, f"{short(value.node)} hides places from the start of the row ({short(test.node)}), and {short(padded)} (line {padded.lineno}) puts the padding before the text: words of the prompt stay in the loss")
            return


def _last(value: Value) -> Value | None:
    """The slice along the last axis that something is put into."""
    index = value.args[1] if value.op == "set_item" and len(value.args) == 3 else None
    at = index.parts[-1] if isinstance(index, Many) and index.parts else index
    return at if at is not None and at.op == "slice" else None


def _is_length(value: Value) -> bool:
    return (not is_none(value) and bare(value).op in ("len", "numel")) or (bare(value).op == "part" and bare(value).args[0].op in ("shape", "size"))


def _before(value: Value) -> Iterator[Value]:
    """What was put into the same block before."""
    at = value.args[0]
    while at.op == "set_item" and at.args:
        yield at
        at = at.args[0]


def _counts_from_the_end(place: Value) -> bool:
    """Whether a text is put so that it ends where its row does: `row[size - len(text):]`, `row[-len(text):]`."""
    begin = bare(place.args[0])
    if not is_none(place.args[1]):
        return False
    inner = begin.args[-1] if begin.op == "neg" or (begin.op == "sub" and len(begin.args) == 2) else None
    return inner is not None and _is_length(inner)


def _padded_before(program: Program) -> ast.BinOp | None:
    """`[pad] * (longest - len(ids)) + ids`, where the texts of a batch are padded so in one place alone."""
    found, behind = [], False
    for node in program.everywhere(ast.BinOp):
        if isinstance(node.op, ast.Add):
            sides = [_is_padding(one) for one in (node.left, node.right)]
            if sides == [True, False]:
                found.append(node)
            behind = behind or sides == [False, True]
    return found[0] if len(found) == 1 and not behind else None


def _is_padding(node: ast.expr) -> bool:
    """Whether a list is one entry as often as a text is too short."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    lists = [one for one in (node.left, node.right) if isinstance(one, ast.List) and len(one.elts) == 1]
    counts = [one for one in (node.left, node.right) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub)]
    return len(lists) == len(counts) == 1 and "pad" in " ".join(names_read(lists[0])).lower() + ("pad" if isinstance(lists[0].elts[0], ast.Constant) else "")
