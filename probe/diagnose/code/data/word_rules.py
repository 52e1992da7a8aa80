"""Words and classes by their numbers: numbered apart for each part, numbered from a set, padded with a word. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, names_given
from probe.diagnose.code.finders.data.fitted import unknown_words, word_zero
from probe.diagnose.code.finders.rows.word_pieces import labels_begin_again
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_call,
    is_method,
    is_name,
    is_own,
    is_read,
    is_string,
    last_word,
    names_read,
    names_set,
    pairs_of,
    parameters,
    returned,
    short,
    text_of,
)

RULES = Rules("data")
_DISTINCT = frozenset({"set", "Counter", "unique", "fromkeys", "most_common", "factorize"})
"""What gives each word or class once: their numbers are a code, and not the places of samples."""


@RULES.add("numbered-apart", "one number stands for different words in training and evaluation", "number the words of the training part once, and use that for all parts")
def _numbered_apart(program: Program) -> Iterator[Remark]:
    """A numbering of words or classes that is made once for the training and once for held-out data."""
    flow = flow_of(program)
    numbering = {scope for scope in program.scopes() if isinstance(scope, Function) and any(_numbers(one, flow) or _counts_up(scope, one) for one in returned(scope))}
    sources: dict[str, list[tuple[ast.AST, set[str], bool]]] = {}
    for call in program.calls():
        local = program.local_function(call)
        if local in numbering and isinstance(local, Function) and call.args and len(parameters(local)) and _used(program, call):
            read = _data_in(ast.Tuple([*call.args], ast.Load()))
            sources.setdefault(local.name, []).append((call, read, _is_held(read)))
    for made in program.everywhere(ast.DictComp):
        if _numbers(made, flow) and _used(program, made) and program.frame(made) not in numbering:
            read = _data_in(made.generators[0].iter)
            shape = ast.unparse(made)
            for name in read:
                shape = re.sub(rf"\b{re.escape(name)}\b", "x", shape)
            sources.setdefault(shape, []).append((made, read, _is_held(read)))
    for coded, column, read in _coded(program, flow):
        sources.setdefault(f"codes of {column}", []).append((coded, read, _is_held(read)))
    for name, call in _made_by_classes(program, flow, numbering):
        for target in names_given(program, call):
            sources.setdefault(name, []).append((call, {target}, _is_held({target})))
    for found in sources.values():
        trained = [one for one in found if not one[2]]
        for node, read, held in found if trained else ():
            if held and not any(read & other for _, other, _ in trained):
                yield Remark(node, f"{short(node)} numbers what the held-out part contains by itself: in line {getattr(trained[0][0], 'lineno', 0)} the training part gets its own numbers")
                break


def _coded(program: Program, flow: Flow) -> Iterator[tuple[ast.AST, str, set[str]]]:
    """Columns of a frame that pandas numbers by what they hold: where, which, and what the frame is called there."""
    found: list[ast.expr] = [one.value.value for one in program.everywhere(ast.Attribute) if one.attr == "codes" and isinstance(one.value, ast.Attribute) and one.value.attr == "cat"]
    found += [call.args[0] for call in program.calls() if program.called(call) == "pandas.factorize" and call.args]
    for column in found:
        if any(is_call(one, "CategoricalDtype") or is_method(one, "CategoricalDtype", "set_categories") or (isinstance(one, ast.Call) and argument(one, "categories") is not None) for one in flow.origins(column)):
            continue
        frame = next((one for one in ast.walk(column) if isinstance(one, ast.Name)), None)
        if frame is None:
            continue
        text = re.sub(rf"\b{re.escape(frame.id)}\b", "x", text_of(column))
        within = program.function_of(column)
        if within is None or frame.id not in {one.arg for one in parameters(within)}:
            yield column, text, {frame.id}
        for call in program.calls():
            local = program.local_function(call)
            statement = program.statement(call)
            if local is not None and local is program.function_of(column) and frame.id in {one.arg for one in parameters(local)} and isinstance(statement, ast.Assign):
                yield from ((call, text, {target.id}) for target, value in pairs_of(statement) if value is call and is_name(target))


def _counts_up(function: Function, node: ast.AST | None) -> bool:
    """Whether a dict is filled by `numbers[word] = len(numbers)`, or by setdefault."""
    for one in ast.walk(function):
        if is_name(node) and is_method(one, "setdefault") and is_name(one.func.value, node.id) and len(one.args) == 2 and is_call(one.args[1], "len"):
            return True
    return any(
        isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript) and is_name(node) and is_name(one.targets[0].value, node.id)
        and is_call(one.value, "len") and len(one.value.args) == 1 and is_name(one.value.args[0], node.id)
        for one in ast.walk(function)
    )


def _made_by_classes(program: Program, flow: Flow, numbering: set[Function]) -> Iterator[tuple[str, ast.Call]]:
    """The calls of classes that number what they are given, each for itself."""
    for name, classes in program.classes.items():
        start = program.method(classes[0], "__init__") if len(classes) == 1 else None
        given = {one.arg for one in parameters(start)} - {"self"} if start is not None else set()
        if start is not None and any(_is_numbered(program, flow, one, numbering, given) for one in start.body):
            yield from ((name, call) for call in program.calls() if program.called(call) == name)


def _is_numbered(program: Program, flow: Flow, node: ast.stmt, numbering: set[Function], given: set[str]) -> bool:
    """Whether a statement of `__init__` keeps numbers of what it was given, and keeps them in any case."""
    if not isinstance(node, ast.Assign) or not is_own(node.targets[0]):
        return False
    made = isinstance(node.value, ast.Call) and program.local_function(node.value) in numbering
    if not made and not (isinstance(node.value, ast.DictComp) and _numbers(node.value, flow)):
        return False
    over = node.value.generators[0].iter if isinstance(node.value, ast.DictComp) else node.value
    found = list(flow.origins(over))
    distinct = any(isinstance(one, ast.SetComp) or (isinstance(one, ast.Call) and last_word(one.func) in _DISTINCT) for one in found)
    return (made or distinct) and bool(given) and any(is_read(one, *given) for one in found)



def _data_in(node: ast.AST) -> set[str]:
    """The names that an expression reads, without the functions that it calls."""
    return names_read(node) - {one.func.id for one in ast.walk(node) if is_call(one)}


def _is_held(names: set[str]) -> bool:
    return bool(names) and any(HELD_OUT.search(name) for name in names) and not any("train" in name.lower() for name in names)


def _numbers(node: ast.AST | None, flow: Flow) -> bool:
    """Whether an expression maps things to their numbers: `{word: i for i, word in enumerate(words)}`."""
    made = node if isinstance(node, ast.DictComp) else flow.held(node) if node is not None else None
    if not isinstance(made, ast.DictComp) or len(made.generators) != 1:
        return False
    over = made.generators[0]
    if not is_call(over.iter, "enumerate") or not isinstance(over.target, ast.Tuple) or len(over.target.elts) != 2:
        return False
    number, thing = over.target.elts
    value = made.value.left if isinstance(made.value, ast.BinOp) else made.value
    return is_name(number) and is_name(value, number.id) and is_name(thing) and is_name(made.key, thing.id)


def _used(program: Program, node: ast.AST) -> bool:
    """Whether a numbering is kept, or given on to what encodes with it."""
    around = program.parent.get(node)
    return isinstance(around, (ast.Assign, ast.Call, ast.keyword, ast.Return)) and not is_attribute(getattr(around, "func", None), "append")


RULES.add("word-zero-is-padding", "the first word is masked, has no embedding, or counts in no loss: it cannot be told from padding", "number words from 1, and keep 0 for padding")(word_zero)
RULES.add("unknown-is-a-word", "words that the numbering does not know are read as its first word", "keep a number of its own for unknown words")(unknown_words)


@RULES.add("order-of-a-set", "the numbers differ in each process that Python starts: a model that is loaded later takes one class for another", "number sorted(set(...))")
def _order_of_a_set(program: Program) -> Iterator[Remark]:
    """Texts that are numbered in the order of a set, beside a model that is saved without the numbers."""
    flow = flow_of(program)
    saves = [call for call in program.calls() if program.called(call) == "torch.save"]
    for made in program.everywhere(ast.DictComp) if saves else ():
        over = made.generators[0].iter
        source = flow.value(over.args[0]) if _numbers(made, flow) and isinstance(over, ast.Call) and over.args else None
        while is_call(source, "list", "tuple") and source.args:
            source = flow.value(source.args[0])
        if not (is_call(source, "set") or isinstance(source, ast.SetComp)) or not _strings(flow, source):
            continue
        statement = program.statement(made)
        names = names_set(statement) if isinstance(statement, ast.Assign) else set()
        kept = any(names & {one.id for one in flow.origins(call) if isinstance(one, ast.Name)} for call in saves)
        if names and not kept:
            yield Remark(made, f"{short(made)} numbers texts in the order of a set, which is another in each process; {short(saves[0], 40)} does not save the numbers")


def _strings(flow: Flow, node: ast.AST) -> bool:
    """Whether the elements of a set are texts: literals, or parts of a text."""
    return any(is_string(one) or is_method(one, "split", "lower", "read", "strip") for one in flow.origins(node))


RULES.add(
    "each-piece-begins-a-name",
    "a name of several pieces is learned, and counted, as several names: the scores of names are those of pieces",
    "give the first piece the word's label, and the others I-… or -100",
)(labels_begin_again)
