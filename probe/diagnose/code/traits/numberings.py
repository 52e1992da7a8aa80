"""Things that get numbers (words, letters, classes), what is put into tensors, and what fills them up. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import (
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
)

_WALKED = KEPT | SHAPED | {"rows", "cat", "t", "transpose", "permute", "element", "block", "mT", "T", "star"}
"""Operations that keep the numbers they are done on, perhaps at other places."""
_BLOCKS = frozenset({"zeros", "full", "ones", "empty", "zeros_like", "full_like", "ones_like", "new_zeros", "new_full"})
_SETS = ("set", "frozenset", "sorted", "unique", "most_common", "collections.Counter", "keys", "ascii_lowercase", "split", "dict")

WORDS, PADDING = "words", "padding"
_OPPOSITE = {WORDS: PADDING, PADDING: WORDS}
_PLACES = ("arange", "range", "cumsum")
_TRUE = (True, 1, 1.0)


def written(computation: Computation, block: Value) -> Iterator[Value]:
    """The `set_item`s that write into a new tensor, also by its rows."""
    waiting = list(computation.users(block))
    seen: set[int] = set()
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if at.op == "set_item" and at.args and _is_row_of(at.args[0], block):
            yield at
            waiting += computation.users(at)
        elif at.op in ("element", "part", "zip", "enumerate", "rows") and at.args and _is_row_of(at, block):
            waiting += computation.users(at)


def _is_row_of(value: Value, block: Value) -> bool:
    """Whether a value is a tensor, or rows of it."""
    while value is not block and value.op in ("element", "part", "set_item", "rows") and value.args:
        value = value.args[0]
    return value is block or (value.op in ("zip", "enumerate") and block in value.args)


def contents(computation: Computation, value: Value) -> Iterator[Value]:
    """A value and all whose numbers it holds unchanged: parts, joined and stacked things, and what was written into
    it."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        yield at
        more: list[Value] = []
        if isinstance(at, Many):
            more = at.parts
        elif at.op in _WALKED or at.op == "torch.nn.utils.rnn.pad_sequence" or (at.op == "pad" and at.args):
            more = list(at.args) if at.op in ("cat", "either", "stack", "list") else list(at.args[:1])
        elif at.op == "part" and not looks_up(at):
            more = list(at.args[:1])
        elif at.op == "add" and any(isinstance(one, Many) for one in at.args):
            more = list(at.args)
        elif at.op == "set_item":
            more = [at.args[0], at.args[2]]
        elif at.op == "append" and len(at.args) == 2 and not isinstance(at.args[0], Many):
            more = list(at.args[:1])  # np.append: what stands behind is one value more
        elif at.op in _BLOCKS:
            more = [one.args[2] for one in written(computation, at)]
        for one in more:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def filled_up(computation: Computation, value: Value) -> tuple[float | None, Value, Value] | None:
    """What a padded tensor is filled up with, where its samples are shorter: the number (None: not known), the value that
    it is, and what fills up."""
    for at in contents(computation, value):
        if at.op == "torch.nn.utils.rnn.pad_sequence":
            given = at.argument("padding_value", 2)
            return (0.0, at, at) if given is None else (number(given), given, at)
        if at.op == "pad" and len(at.args) > 1:
            given = at.argument("value", 3)
            return (0.0, at, at) if given is None else (number(given), given, at)
        if at.op in ("zeros", "full", "zeros_like", "full_like", "new_zeros", "new_full") and any(_is_begin(one.args[1]) for one in written(computation, at)):
            given = None if "zeros" in at.op else at.argument("fill_value", 1)
            return (0.0, at, at) if given is None else (number(given), given, at)
        if at.op == "add" and len(at.args) == 2 and _is_repeated(at.args[1]) and not _is_repeated(at.args[0]):
            filling, = at.args[1].made_of()
            return number(filling), filling, at.args[1]
        if isinstance(at, Many) and at.grown and len(at.parts) > 1 and at.parts[-1].op == "@constant" and isinstance(at.node, ast.BinOp) and isinstance(at.node.op, ast.Add) and _repeats(at.node.right):
            return number(at.parts[-1]), at.parts[-1], at
    return None


def _is_repeated(value: Value) -> bool:
    """Whether a value is `[number] * n`, of a length that is not known."""
    return isinstance(value, Many) and value.grown and len(value.parts) == 1 and value.parts[0].op == "@constant" and _repeats(value.node)


def _repeats(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and not isinstance(node.right, ast.Constant)


def begins_at(index: Value) -> float | None:
    """Where the slice that is an index, or the last of several, begins: 0 of `[i, :n]`; None where that is unknown."""
    last = index.parts[-1] if isinstance(index, Many) and index.parts else index
    return None if last.op != "slice" else 0.0 if is_none(last.args[0]) else number(last.args[0])


def is_one_ahead(index: Value, other: Value) -> bool:
    """Whether a slice begins one place behind where another one begins: `[1:]` and `[:-1]`, `[i + 1 : i + n + 1]` and `[i : i + n]`."""
    if begins_at(index) is not None and begins_at(other) is not None:
        return begins_at(index) == 1 and begins_at(other) == 0
    first, second = (one.parts[-1] if isinstance(one, Many) and one.parts else one for one in (index, other))
    begin = first.args[0] if first.op == "slice" else first
    if second.op != "slice" or begin.op != "add" or len(begin.args) != 2:
        return False
    return any(number(one) == 1 and rest is second.args[0] for one, rest in (begin.args, begin.args[::-1]))


def _is_begin(index: Value) -> bool:
    """Whether an index is `[:n]`, alone or as the last of several."""
    last = index.parts[-1] if isinstance(index, Many) and index.parts else index
    return last.op == "slice" and is_none(last.args[0]) and not is_none(last.args[1]) and number(last.args[1]) is None


# What masks are true at -----------------------------------------------------------------


def marked(computation: Computation, mask: Value, depth: int = 10) -> str | None:
    """What a mask is true at (or 1): the `WORDS` of padded sequences, or their `PADDING`; None where that is unknown."""
    mask = bare(mask, "bool", "part", "T", "set_item")
    if depth == 0:
        return None
    if mask.op in ("invert", "not", "logical_not") and mask.args:
        return _OPPOSITE.get(marked(computation, mask.args[0], depth - 1) or "")
    if mask.op == "sub" and len(mask.args) == 2 and number(mask.args[0]) == 1:
        return _OPPOSITE.get(marked(computation, mask.args[1], depth - 1) or "")
    if mask.op in ("lt", "ge", "gt", "le") and len(mask.args) == 2:
        return _within(mask)
    if mask.op in ("eq", "ne") and len(mask.args) == 2 and (known := number(mask.args[1])) is not None:
        inner = marked(computation, mask.args[0], depth - 1)
        if inner is not None and known in (0, 1):
            return inner if (mask.op == "eq") == (known == 1) else _OPPOSITE[inner]
        filled = filled_up(computation, mask.args[0])
        return (PADDING if mask.op == "eq" else WORDS) if filled is not None and filled[0] == known else None
    if isinstance(mask, Many) and len(mask.parts) == 2 and [number(one) for one in mask.parts] == [1, 0]:
        return WORDS  # [1] * len(words) + [0] * rest
    cleared = [one for one in written(computation, mask) if len(one.args) > 2] if mask.op == "ones" else []
    if cleared and all(_is_begin(one.args[1]) and constant(one.args[2]) in (False, 0, 0.0) for one in cleared):
        return PADDING
    ones = [one for one in written(computation, mask) if len(one.args) > 2] if mask.op in ("zeros", "full") else []
    filled = filled_up(computation, mask) if ones else None
    if filled is not None and filled[0] == 0 and all(constant(one.args[2]) in _TRUE for one in ones):
        return WORDS
    return None


def _within(mask: Value) -> str | None:
    """What a comparison of places with lengths is true at: `arange(longest)[None] < lengths[:, None]`."""
    left, right = (bare(one, "part") for one in mask.args)
    if (left.op in _PLACES) == (right.op in _PLACES):
        return None
    op = mask.op if left.op in _PLACES else {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}[mask.op]
    lengths = right if left.op in _PLACES else left
    if lengths.op in ("sub", "@constant") or number(lengths) is not None or any(one.op in _PLACES for one in origins(lengths, stop=("rows", "run"))):
        return None
    return {"lt": WORDS, "ge": PADDING}.get(op)


# Numbers of words ----------------------------------------------------------------------


def looks_up(value: Value) -> bool:
    """Whether a value is the number that a table has for something."""
    if value.op in ("part", "get") and len(value.args) > 1:
        table = value.args[0]
        return (isinstance(table, Table) and bool(table.others)) or table.op == "collections.defaultdict" or (table.op == "dict" and bool(table.args))
    return value.op == "index" and isinstance(value.node, ast.Call)


def first_word(computation: Computation, looked_up: Value) -> tuple[float, Value] | None:
    """The number of the first of the words (letters, classes) that a table numbers in a row, and where it is given;
    None where a number that is no word's may come before."""
    if looked_up.op == "index":
        return (0.0, looked_up) if is_row_of_words(looked_up.args[0]) else None
    table = looked_up.args[0]
    if isinstance(table, Table):
        taken = any(number(one) == 0 or one.op == "index" for one in table.entries.values())
        if not table.others or taken:
            return None
        key, given = table.others[0]
        return _first_of(key, given, table)
    if table.op == "dict" and table.args and table.args[0].op == "zip" and len(table.args[0].args) == 2:
        words, numbers = table.args[0].args
        start = 0.0 if len(numbers.args) < 2 else number(numbers.args[0])
        if numbers.op == "range" and start is not None and is_row_of_words(words):
            return start, table
    if table.op == "collections.defaultdict":
        for given in computation.users(table):
            rows = given.args[1] if given.op == "update" and len(given.args) > 1 else None
            pair = rows.parts[0] if isinstance(rows, Many) and len(rows.parts) == 1 else None
            if isinstance(pair, Many) and len(pair.parts) == 2:
                return _first_of(pair.parts[0], pair.parts[1], given)
            if given.op == "set_item" and given.args[0] is table and number(given.args[1]) is None:
                return _first_of(given.args[1], given.args[2], given)
    return None


def _first_of(key: Value, given: Value, table: Value) -> tuple[float, Value] | None:
    start = _start(given, table)
    if start is None or _has_special(key):
        return None
    counted = given.op == "len" or (given.op == "add" and any(one.op == "len" for one in given.args))
    words = key
    while words.op in ("element", "part", "lower", "strip") and words.args:
        words = words.args[0]
        if words.op == "most_common" or (words.op not in ("element", "part", "lower", "strip") and is_row_of_words(words)):
            return start, given
    return (start, given) if counted else None


def _start(given: Value, table: Value) -> float | None:
    """The first number that a loop gives."""
    if given.op == "index" and given.data == "enumerate":
        return number(given.args[0])
    if given.op == "len" and given.args[0] is table:
        return 0.0
    if given.op == "add" and len(given.args) == 2:
        parts = [_start(one, table) for one in given.args]
        return None if None in parts else sum(one for one in parts if one is not None)
    return number(given)


def is_row_of_words(value: Value) -> bool:
    """Whether a value is a row of words or letters that were found in the data, or written out, and whose first is no
    special one."""
    value = bare(value)
    if _has_special(value):
        return False
    while value.op in ("sorted", "list", "tuple") and value.args:
        value = bare(value.args[0])
    if isinstance(value, Many):
        first = constant(value.parts[0]) if value.parts else None
        return value.op == "set" or value.data == "set" or (isinstance(first, str) and not is_special(first))
    text = constant(value)
    if isinstance(text, str):
        return bool(text) and not is_special(text[:1])
    if value.op == "@library":
        return str(value.data).startswith("string.")
    if value.op == "add" and len(value.args) == 2:
        return is_row_of_words(value.args[0])
    return value.op in _SETS and value.op != "dict"


def _has_special(words: Value) -> bool:
    """Whether a special word may be among words, and come first."""
    return any(
        isinstance(one.data, str) and one.op == "@constant" and (one.data[:1] in ("<", "[") or one.data.lower() in ("pad", "unk", "blank"))
        for one in origins(words)
    )


def is_special(word: str) -> bool:
    """Whether a word stands for no word: `<pad>`, `[UNK]`, a sign alone."""
    return word[:1] in ("<", "[") or not any(letter.isalnum() for letter in word) or word.lower() in ("pad", "unk", "blank", "none", "null", "unknown", "other")


def first_words(computation: Computation, value: Value) -> Iterator[tuple[float, Value]]:
    """For all tables whose numbers a value holds: the number of their first word, and where it is given."""
    for one in contents(computation, value):
        if (written_out := _counted_out(computation, one)) is not None:
            yield written_out
        for at in alternatives(one):
            if looks_up(at) and (found := first_word(computation, at)) is not None:
                yield found


def _counted_out(computation: Computation, value: Value) -> tuple[float, Value] | None:
    """The number of the first word of a list that is written out and numbered in a row, of which a value is some number."""
    found = list(alternatives(value)) if value.op in ("either", "index", "@constant") else []
    made = found[0].node if found else None
    plain = isinstance(made, ast.DictComp) and isinstance(made.value, ast.Name)
    if made is None or not all(one.node is made and (plain or (len(found) > 2 and one.op == "index")) and (one.op == "@constant" or one.data == "enumerate") for one in found):
        return None
    for row in computation.of("enumerate"):
        if row.args and is_row_of_words(row.args[0]) and any(row.node is one for one in ast.walk(made)):
            given = row.argument("start", 1)
            start = 0.0 if given is None else number(given)
            return None if start is None else (start, row)
    return None
