"""Labels of words that are spread over the pieces that a tokenizer cuts words into. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import (
    is_binary,
    is_call,
    is_method,
    is_name,
    is_nothing,
    is_string,
    last_word,
    names_of,
    names_read,
    returned,
    short,
    text_of,
)

_BEGINS = re.compile(r"^B[-_](\w*)$")
_INSIDE = re.compile(r"^I[-_](\w*)$")
_REST = ("word_ids", "offset_mapping", "first", "starts", "valid", "is_first", "heads")


def labels_begin_again(program: Program) -> Iterator[Remark]:
    """The label of a word, which says where a name begins, is given to each of its pieces."""
    if not _tells_begin_from_inside(program) or _turns_into_inside(program):
        return
    flow = flow_of(program)
    found = [_repeated(flow, loop) or _by_place(flow, loop) for loop in program.everywhere(ast.For)]
    found += [_listed(flow, listed) for listed in program.everywhere(ast.ListComp)]
    for node in dict.fromkeys(found):
        if node is not None:
            yield Remark(node, f"{short(node)} gives each piece of a word the label of the word: where that begins a name (B-), each piece begins one")


def _tells_begin_from_inside(program: Program) -> bool:
    """Whether labels of a program are B-… where a name begins, and I-… where it goes on; or are scored as such."""
    begins = inside = False
    for node in program.everywhere(ast.Constant, ast.JoinedStr):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = parts[0].value if parts and isinstance(parts[0], ast.Constant) else None
        if isinstance(text, str):
            begins = begins or bool(_BEGINS.match(text))
            inside = inside or bool(_INSIDE.match(text))
            around = program.parent.get(node)
            both = isinstance(around, ast.comprehension) and around.iter is node and text in ("BI", "BIES")
            begins, inside = begins or both, inside or both
        elif isinstance(parts[0] if parts else None, ast.FormattedValue) and any(isinstance(one, (ast.Tuple, ast.List)) and [text_of(each) for each in one.elts][:2] == ["'B'", "'I'"] for one in _gone_over(program, node)):
            begins = inside = True
    scored = any(program.called(one).startswith("seqeval.") or (last_word(one.func) in ("load", "load_metric") and one.args and is_string(one.args[0]) and one.args[0].value == "seqeval") for one in program.calls())
    return (begins and inside) or scored


def _gone_over(program: Program, node: ast.AST) -> Iterator[ast.AST]:
    """What the comprehensions around a node go over."""
    for around in program.parents(node):
        if isinstance(around, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            yield from (one.iter for one in around.generators)


def _turns_into_inside(program: Program) -> bool:
    """Whether a program makes I-… of B-…, by its text, by its number, or by a table."""
    for node in program.everywhere(ast.Call, ast.BinOp, ast.JoinedStr, ast.Name, ast.Attribute, ast.If, ast.IfExp):
        if is_method(node, "replace") and len(node.args) == 2 and all(map(is_string, node.args)) and str(getattr(node.args[1], "value", "")).startswith("I"):
            return True
        if is_binary(node, ast.Add) and is_string(node.left) and _INSIDE.match(str(node.left.value)) and _cut(node.right):
            return True
        if isinstance(node, ast.JoinedStr) and len(node.values) > 1 and is_string(node.values[0]) and _INSIDE.match(str(node.values[0].value)) and any(isinstance(one, ast.FormattedValue) and _cut(one.value) for one in node.values):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and re.search(r"(^|_)(b|begin)_?(to|2)_?(i|inside)(_|$)", last_word(node), re.I):
            return True
        if isinstance(node, (ast.If, ast.IfExp)) and any(is_binary(one, ast.Mod) for one in ast.walk(node.test)) and re.search(r"\+=? ?1\b", ast.unparse(node)):
            return True  # B-… has odd numbers, and I-… the next ones
    return False


def _cut(node: ast.AST) -> bool:
    """Whether an expression is a text without its first letters, or what comes behind a hyphen."""
    return (isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Slice, ast.Constant, ast.UnaryOp))) or is_method(node, "removeprefix", "lstrip", "strip", "split", "partition")


def _pieces(flow: Flow, node: ast.AST | None, word: str) -> bool:
    """Whether an expression is what a call makes of a word."""
    made = flow.value(node) if node is not None else None
    cut = is_method(made, "split", "chunk", "unfold") and is_name(made.func.value, word)  # a long text into shorter ones
    return isinstance(made, ast.Call) and word in names_read(made) and not is_call(made, "len", "range") and not cut


def _repeated(flow: Flow, loop: ast.For) -> ast.AST | None:
    """`labels.extend([tag] * len(pieces))` for each word and its tag, or an append for each of the pieces."""
    names = names_of(loop.target) if is_call(loop.iter, "zip", "enumerate") else set()
    if len(names) < 2 or _keeps_first(flow, loop):
        return None
    body = [one for statement in loop.body for one in ast.walk(statement)]
    grown = [one for one in body if _given(one) is not None]
    if any(is_binary(_given(one), ast.Add) for one in grown):
        return None  # [1] + [0] * (len(pieces) - 1): which piece is the first
    many: ast.AST | None
    length: ast.AST | None
    for node in body:
        if isinstance(node, ast.For):
            many, length = _appended(node), node.iter.args[0] if is_call(node.iter, "enumerate", "range") and node.iter.args else node.iter
        else:
            many, length = _times(_given(node))
        length = flow.value(length) if is_name(length) else length
        length = length.args[0] if is_call(length, "len") and len(length.args) == 1 else length
        if many is None or length is None:
            continue
        tag = names_read(many) & names
        tag |= {name for one in body if isinstance(one, ast.Assign) and is_name(one.targets[0], *names_read(many)) for name in names_read(one.value)} & names
        if is_call(loop.iter, "enumerate") and not is_call(next(iter(loop.iter.args), None), "zip") and not any(isinstance(one, ast.Subscript) and is_name(one.slice, *tag) for one in ast.walk(many)):
            continue
        asked = any(isinstance(one, (ast.If, ast.IfExp)) and names_read(one.test) & (tag | names_read(many)) for one in body)
        if len(tag) == 1 and not asked and any(_pieces(flow, length, word) for word in names - tag):
            return node.body[-1] if isinstance(node, ast.For) else node
    return None


def _appended(loop: ast.For) -> ast.AST | None:
    """What a loop over pieces appends that is one for all of them, where it asks for nothing."""
    if any(isinstance(one, (ast.If, ast.IfExp, ast.Compare)) for one in ast.walk(loop)):
        return None
    found = [one.args[0] for one in ast.walk(loop) if is_method(one, "append") and len(one.args) == 1]
    alike = [one for one in found if not names_read(one) & names_of(loop.target)]
    return alike[0] if len(found) == 2 and len(alike) == 1 else None


def _given(node: ast.AST) -> ast.AST | None:
    """What a statement adds to a list: of `x.extend(…)` and `x += …` the argument."""
    if is_method(node, "extend") and len(node.args) == 1:
        return node.args[0]
    return node.value if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and not isinstance(node.value, ast.Constant) else None


def _times(node: ast.AST | None) -> tuple[ast.AST | None, ast.AST | None]:
    """x and n of `[x] * n`, or x and y of `[x for _ in y]`."""
    if is_binary(node, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.List) and len(one.elts) == 1:
                return one.elts[0], other
    if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs and not names_of(node.generators[0].target) & names_read(node.elt):
        return node.elt, node.generators[0].iter
    return None, None


def _keeps_first(flow: Flow, node: ast.AST) -> bool:
    """Whether a function also keeps which piece is the first of its word."""
    function = flow.program.function_of(node)
    if function is None:
        return False
    found = {part for value in returned(function) if value is not None for one in ast.walk(value) for part in (str(one.value) if is_string(one) else last_word(one),)}
    return any(name in word for word in found for name in _REST)


def _by_place(flow: Flow, loop: ast.For) -> ast.AST | None:
    """`labels.append(-100 if place is None else tags[place])` for the word's place of each piece."""
    if not isinstance(loop.target, ast.Name) or _keeps_first(flow, loop):
        return None
    place = loop.target.id
    found = list(_outcomes(flow, loop.body, place, {}))
    return _spread(found, place)


def _listed(flow: Flow, listed: ast.ListComp) -> ast.AST | None:
    """`[-100 if place is None else tags[place] for place in places]`."""
    over = listed.generators[0]
    if len(listed.generators) != 1 or over.ifs or not isinstance(over.target, ast.Name) or _keeps_first(flow, listed):
        return None
    found = list(_values(flow, listed.elt, over.target.id, {}))
    return listed if _spread(found, over.target.id) is not None else None


_Outcome = tuple[ast.AST, bool]
"""What is appended, and whether that is where there is no word."""
_Held = dict[str, list[_Outcome]]


def _spread(found: list[_Outcome], place: str) -> ast.AST | None:
    """Where all pieces of words get what the place of their word says, and what belongs to no word is left out."""
    absent = [node for node, none in found if none]
    there = [node for node, none in found if not none]
    looked_up = [node for node in there if any(isinstance(one, ast.Subscript) and is_name(one.slice, place) for one in ast.walk(node))]
    if not absent or not there or len(looked_up) < len(there) or len({text_of(one) for one in there}) != 1:
        return None
    return there[0]


def _outcomes(flow: Flow, body: list[ast.stmt], place: str, held: _Held, *, none: bool = False) -> Iterator[_Outcome]:
    """What the statements append in each way through them; `held`: what their variables may be."""
    for statement in body:
        if isinstance(statement, ast.If):
            asked, known = _asks_none(statement.test, place), _flag(flow, statement.test)
            then, other = {**held}, {**held}
            if known is not False:
                yield from _outcomes(flow, statement.body, place, then, none=none or asked is True)
            if known is not True:
                yield from _outcomes(flow, statement.orelse, place, other, none=none or asked is False)
            for name in {*then, *other}:
                held[name] = [*then.get(name, []), *(one for one in other.get(name, []) if one not in then.get(name, []))]
        elif isinstance(statement, ast.Assign) and is_name(statement.targets[0]):
            held[statement.targets[0].id] = [(node, none or absent) for node, absent in _values(flow, statement.value, place, held)]
        elif isinstance(statement, ast.AugAssign) and is_name(statement.target):
            held[statement.target.id] = [(statement, none)]
        elif isinstance(statement, ast.Expr) and is_method(statement.value, "append") and len(statement.value.args) == 1:
            yield from ((node, none or absent) for node, absent in _values(flow, statement.value.args[0], place, held))


def _values(flow: Flow, node: ast.expr, place: str, held: _Held) -> Iterator[_Outcome]:
    """What an expression may be."""
    if isinstance(node, ast.Name) and held.get(node.id):
        yield from held[node.id]
        return
    if not isinstance(node, ast.IfExp):
        yield node, False
        return
    asked, known = _asks_none(node.test, place), _flag(flow, node.test)
    if known is not False:
        yield from ((one, none or asked is True) for one, none in _values(flow, node.body, place, held))
    if known is not True:
        yield from ((one, none or asked is False) for one, none in _values(flow, node.orelse, place, held))


def _flag(flow: Flow, test: ast.AST) -> bool | None:
    """Whether a switch is on or off, if it is set once."""
    value = flow.value(test)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, bool) else None


def _asks_none(test: ast.AST, place: str) -> bool | None:
    """Whether a test asks if there is no word (True), or if there is one (False); None if it asks something else."""
    if isinstance(test, ast.Compare) and is_name(test.left, place) and len(test.ops) == 1:
        if is_nothing(test.comparators[0]):
            return isinstance(test.ops[0], (ast.Is, ast.Eq))
        low = text_of(test.comparators[0])
        if low in ("-1", "0") and isinstance(test.ops[0], (ast.Lt, ast.Eq)):
            return True
    return None
