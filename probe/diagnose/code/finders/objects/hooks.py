"""What hooks keep and give back. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Table, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import (
    Function,
    is_attribute,
    is_method,
    is_name,
    last_word,
    names_read,
    own,
    parameters,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.traits.basic import terms
from probe.diagnose.code.traits.updates import backwards

FINDERS = Finders()
_REGISTER = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_hook")
_CUT = ("detach", "cpu", "numpy", "clone", "item")


def _hooks(program: Program) -> Iterator[tuple[Function, str]]:
    """The functions of the program that are hooks, or that a function which makes hooks gives; with how they are registered."""
    for call in program.calls():
        if not is_method(call, *_REGISTER) or not call.args:
            continue
        given = call.args[0]
        if is_name(given) or is_attribute(given):
            word = given.id if is_name(given) else given.attr  # type: ignore[union-attr]
            found = program.functions.get(word, []) or [one for one in program.everywhere(ast.FunctionDef) if one.name == word]
            if len(found) == 1 and isinstance(found[0], ast.FunctionDef):
                yield found[0], call.func.attr
        elif isinstance(given, ast.Call) and (maker := program.local_function(given)) is not None:
            names = {one.id for one in returned(maker) if is_name(one)}
            inner = [one for one in maker.body if isinstance(one, ast.FunctionDef) and one.name in names]
            if len(inner) == 1:
                yield inner[0], call.func.attr


@FINDERS.add("result-thrown-away")
def _gives_nothing(program: Program) -> Iterator[Remark]:
    """A hook computes what it is to put in the place of the output or gradient, and returns nothing."""
    seen: set[ast.AST] = set()
    for function, how in _hooks(program):
        given = [one.arg for one in parameters(function)]
        if function in seen or not given or any(one is not None for one in returned(function)) or "backward" in how:
            continue
        seen.add(function)
        name = given[-1]
        for node in own(function, ast.Assign):
            changed = len(node.targets) == 1 and is_name(node.targets[0], name) and name in names_read(node.value)
            makes = isinstance(node.value, ast.BinOp) or (is_method(node.value) and not node.value.func.attr.endswith("_") and node.value.func.attr not in _CUT) or (
                isinstance(node.value, ast.Call) and program.called(node.value).startswith("torch.") and not program.called(node.value).endswith("_")
            )
            read = any(is_name(one, name) and isinstance(one.ctx, ast.Load) and one.lineno > node.lineno for one in own(function, ast.Name))
            if changed and makes and not read:
                yield Remark(node, f"{short(node)} is all that the hook {function.name} does with it, and the hook returns nothing: what it was called with goes on unchanged")


@FINDERS.add("term-without-gradient")
def _kept_without_gradient(program: Program) -> Iterator[Remark]:
    """A hook keeps an output without its gradient, and a term of the loss is made of nothing else."""
    cut: dict[str, ast.Assign] = {}
    whole: set[str] = set()
    for function, _ in _hooks(program):
        for node in own(function, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Subscript) and isinstance(target.value, (ast.Name, ast.Attribute)):
                word = last_word(target.value)
                if is_method(node.value, *_CUT) and ".detach()" in text_of(node.value) and word not in whole:
                    cut[word] = node
                else:
                    whole.add(word)
                    cut.pop(word, None)
    if not cut:
        return
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for back, loss in backwards(computation):
        found = [one for one, _ in terms(loss)]
        for term in found if len(found) > 1 else ():
            inside = list(origins(term))
            stores = [name for one in inside if one.op == "part" and isinstance(one.args[0], Table) and (name := _name_of(program, one.args[0])) in cut]
            if stores and not any(one.op in ("run", "parameters", "named_parameters", "torch.nn.Parameter") for one in inside) and term.node not in said:
                said.add(term.node)
                yield Remark(term.node, f"{short(term.node)} is added to the loss without its gradient: the hook keeps {short(cut[stores[0]].value)} (line {cut[stores[0]].lineno}), and {short(back.node)} (line {back.line}) does not reach the layer through it")


def _name_of(program: Program, table: Value) -> str | None:
    around = program.parent.get(table.node)
    target = around.targets[0] if isinstance(around, ast.Assign) else around.target if isinstance(around, ast.AnnAssign) else None
    return last_word(target) if isinstance(target, (ast.Name, ast.Attribute)) else None


def first_entry_again(program: Program) -> Iterator[Remark]:
    """A hook adds to a list in each forward, nothing empties it, and a loop reads an entry by its number from the front."""
    hooked = {id(function) for function, _ in _hooks(program)}
    hooked |= {id(call.args[0]) for call in program.calls() if is_method(call, *_REGISTER) and call.args and isinstance(call.args[0], ast.Lambda)}
    grown: dict[str, ast.Call] = {}
    for call in program.calls():
        if is_method(call, "append") and any(id(one) in hooked for one in program.parents(call)):
            grown.setdefault(text_of(call.func.value), call)
    for name, call in grown.items():
        word = name.rpartition(".")[2]
        emptied = any(is_method(one, "clear", "pop", "popleft", "remove") and text_of(one.func.value).rpartition(".")[2] == word for one in program.calls())
        emptied = emptied or any(word in text_of(one) for one in program.everywhere(ast.Delete))
        made: list[ast.stmt] = [one for one in program.everywhere(ast.Assign) if any(_is_named(each, word) for each in one.targets)]
        made += [one for one in program.everywhere(ast.AnnAssign) if _is_named(one.target, word)]
        made += [one for one in program.everywhere(ast.AugAssign) if _is_named(one.target, word)]
        if emptied or len(made) != 1 or program.loops(made[0]):
            continue
        if program.function_name(made[0]) not in (None, "__init__", "main") or any(is_method(one, "remove") for one in program.calls()):
            continue
        for node in program.everywhere(ast.Subscript):
            place = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if text_of(node.value) == name and isinstance(place, int) and place >= 0 and program.loops(node) and isinstance(node.ctx, ast.Load):
                yield Remark(node, f"{short(node)} is what the hook kept in the first pass: {short(call)} (line {call.lineno}) adds at the end, and nothing empties the list")
                break


def _is_named(target: ast.AST, word: str) -> bool:
    """Whether an assignment sets a variable or attribute of that name, or a part of it."""
    return text_of(target).rpartition(".")[2].partition("[")[0] == word
