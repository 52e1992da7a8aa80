"""Stores of transitions, and what goes into them and comes out: unfilled places, fields in another order, episodes
that never begin again. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from probe.diagnose.code.finders.training.stored_transitions import emptied_after_storing
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.mode_rules import closed, in_each_pass, is_constant, reached
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    is_attribute,
    is_call,
    is_method,
    is_name,
    is_own,
    is_string,
    last_word,
    number_in,
    own,
    pairs_of,
    parameters,
    reads,
    returned,
    short,
    text_of,
)

RULES = Rules("rollout")
_UNIFORM = frozenset({"random.random", "numpy.random.rand", "numpy.random.random", "numpy.random.uniform", "torch.rand", "random.uniform"})
_FILLED = frozenset({"numpy.zeros", "numpy.empty", "torch.zeros", "torch.empty"})
_OF_STEPS = re.compile(r"rew|done|terminal|terminated|log_?prob|returns?$|advantage|next_(state|obs)", re.I)
"""Words in the names of what belongs to one step of an environment."""
_SPACES = ("_batch", "batch_", "_b", "b_", "_list", "_t", "_buf", "_buffer", "_tensor", "_arr")


# Places that nothing was put into -----------------------------------------------------


@RULES.add("drawn-from-the-unfilled", "until the store is full, most of a batch is zeros that no step of the environment gave", "draw below the number of transitions that are stored")
def _unfilled(program: Program) -> Iterator[Remark]:
    """A store of a fixed size that is filled one by one, and drawn from as if it were full."""
    for of in program.everywhere(ast.ClassDef):
        sizes = _sizes(program, of)
        if not sizes or any(is_own(one) and "full" in one.attr.lower() for one in ast.walk(of)):
            continue
        for method in (one for one in of.body if isinstance(one, Function) and one.name != "__init__"):
            for node in own(method, ast.Assign):
                draw = node.value
                size = _drawn_below(program, draw) if isinstance(draw, ast.Call) else None
                if size is None or text_of(size) not in sizes or not is_name(node.targets[0]) or _asked(program, method, node):
                    continue
                index = node.targets[0].id
                taken = [one for one in own(method, ast.Subscript) if is_own(one.value) and text_of(one.value) in sizes[text_of(size)] and reads(one.slice, index)]
                if taken and not _waits(program, of, last_word(size)):
                    yield Remark(draw, f"{short(draw)} draws from all {short(size)} places of {short(taken[0].value)}, also from those that nothing was put into yet")
                    return


def _sizes(program: Program, of: ast.ClassDef) -> dict[str, set[str]]:
    """The arrays of a class that are made empty and filled place by place, by the text of their length."""
    init = program.method(of, "__init__")
    found: dict[str, set[str]] = {}
    if init is None:
        return found
    for target, made in (pair for node in own(init, ast.Assign) for pair in pairs_of(node)):
        if program.called(made) not in _FILLED or not isinstance(made, ast.Call) or not made.args or not is_own(target):
            continue
        shape = made.args[0]
        length = shape.elts[0] if isinstance(shape, (ast.Tuple, ast.List)) and shape.elts else shape
        if isinstance(length, (ast.Name, ast.Attribute)) and _filled(of, text_of(target)):
            given = [(text_of(one), text_of(value)) for assign in own(init, ast.Assign) for one, value in pairs_of(assign)]
            names = {text_of(length)} | {one for one, value in given if value == text_of(length)} | {value for one, value in given if one == text_of(length)}
            for name in names:
                found.setdefault(name, set()).add(text_of(target))
    return found


def _filled(of: ast.ClassDef, name: str) -> bool:
    """Whether a method, other than the one that makes the array, puts something into one place of it."""
    return any(
        isinstance(target, ast.Subscript) and text_of(target.value) == name and not isinstance(target.slice, ast.Slice)
        for method in of.body if getattr(method, "name", "") != "__init__" for node in ast.walk(method) if isinstance(node, ast.Assign) for target, _ in pairs_of(node)
    )


def _drawn_below(program: Program, call: ast.Call) -> ast.expr | None:
    """n of a draw of whole numbers from 0 to n."""
    name = program.called(call)
    if name in ("numpy.random.randint", "torch.randint", "numpy.random.choice"):
        two = name != "numpy.random.choice" and len(call.args) > 1 and number_in(call.args[0]) == 0
        bound = call.args[1] if two else call.args[0] if call.args else None
        return bound if isinstance(bound, (ast.Name, ast.Attribute)) and not any(one.arg == "p" for one in call.keywords) else None
    if is_method(call, "integers") and len(call.args) > 1 and number_in(call.args[0]) == 0:
        return call.args[1] if isinstance(call.args[1], (ast.Name, ast.Attribute)) else None
    if name == "random.sample" and call.args and is_call(call.args[0], "range") and len(call.args[0].args) == 1:
        return call.args[0].args[0]
    return None


def _asked(program: Program, method: Function, node: ast.AST) -> bool:
    """Whether a draw stands under a condition, or after one that may have ended the method."""
    above = any(isinstance(one, ast.If) for one in program.parents(node))
    return above or any(isinstance(one, (ast.Raise, ast.Assert, ast.IfExp)) for one in ast.walk(method)) or (
        any(isinstance(one, ast.If) and one.lineno < getattr(node, "lineno", 0) for one in ast.walk(method))
    )


def _waits(program: Program, of: ast.ClassDef, size: str) -> bool:
    """Whether a program compares anything with the size of the store outside of the class: it may wait until it is full."""
    for node in program.everywhere(ast.Compare):
        if of not in program.parents(node) and any(last_word(one).lower() in (size.lower(), "capacity", "memory_capacity", "buffer_size", "memory_size") for one in ast.walk(node)):
            return True
        if program.function_name(node) in ("ready", "is_ready", "can_sample", "is_full", "sample"):
            return True
    return False


# Fields in another order -----------------------------------------------------------------


@RULES.add("fields-in-another-order", "values go by the wrong names: a reward is read as the end of an episode, or a state as the one after it", "take them in the order in which they are put in")
def _another_order(program: Program) -> Iterator[Remark]:
    """The parts of a transition that are put together in one order and taken apart in another."""
    flow = flow_of(program)
    kept = _put_in(program)
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)):
            taken = _names(target.elts)
            if _zipped(node.value) and taken is not None:
                yield from _compared(kept, taken, node, "takes them out")
            local = program.local_function(node.value) if isinstance(node.value, ast.Call) else None
            results = list(returned(local)) if local is not None else []
            given = _names(results[0].elts) if len(results) == 1 and isinstance(results[0], ast.Tuple) else None
            swapped = taken is not None and given is not None and local is not None and _permuted(given, taken)
            if swapped and taken and given and local is not None and not _swapped_before(program, flow, node.value):
                yield Remark(node, f"{short(node)} takes ({', '.join(taken)}), and {local.name}() returns ({', '.join(given)})")
    for loop in program.everywhere(ast.For):
        taken = _names(loop.target.elts) if isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, (ast.Name, ast.Attribute)) else None
        if taken is not None:
            yield from _compared(kept, taken, loop.target, "takes them out")
    for call in program.calls():
        given = _names(call.args)
        if given is None or len(given) < 4:
            continue
        fields = _fields(program, flow, call)
        statement = program.parent.get(call)
        taken_apart = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)
        if fields is not None and _permuted(fields[: len(given)], given) and not taken_apart:
            yield Remark(call, f"{short(call)} gives ({', '.join(given)}) in the places of ({', '.join(fields)})")


def _swapped_before(program: Program, flow: Flow, call: ast.AST) -> bool:
    """Whether the arguments of a call are in another order too: then its results may be meant to be."""
    given = _names(call.args) if isinstance(call, ast.Call) else None
    fields = _fields(program, flow, call) if isinstance(call, ast.Call) else None
    return given is not None and fields is not None and _permuted(fields[: len(given)], given)


def _compared(kept: Sequence[list[str]], taken: list[str], node: ast.AST, what: str) -> Iterator[Remark]:
    same = [one for one in kept if sorted(map(_bare, one)) == sorted(map(_bare, taken))]
    orders = {tuple(map(_bare, one)) for one in same}
    if len(orders) == 1 and _permuted(same[0], taken):
        yield Remark(node, f"({', '.join(same[0])}) is the order in which the transitions are stored, and this {what} as ({', '.join(taken)})")


def _put_in(program: Program) -> list[list[str]]:
    """The names of what is appended to stores, four or more at once."""
    found = []
    for call in program.calls():
        if is_method(call, "append", "push", "put", "add") and len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List)):
            names = _names(call.args[0].elts)
            if names is not None and len(names) >= 4:
                found.append(names)
    return found


def _names(parts: Sequence[ast.AST]) -> list[str] | None:
    """The names of variables in a row; None where one is something else, or two are the same."""
    names = [last_word(one) for one in parts]
    told = len(names) >= 4 and all(names) and len(set(names)) == len(names) and "_" not in names
    return names if told and any(_OF_STEPS.search(one) for one in names) else None


def _bare(name: str) -> str:
    """A name without what says that there are several of it."""
    name = name.lower()
    for one in _SPACES:
        name = name.removesuffix(one) if one.startswith("_") else name.removeprefix(one)
    return name.removesuffix("s")


def _permuted(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two rows of one length have the same names, but for one at most, in another order."""
    first, second = list(map(_bare, one)), list(map(_bare, other))
    if len(first) != len(second) or len(set(first)) < len(first) or len(set(second)) < len(second):
        return False
    both = set(first) & set(second)
    order = [[name for name in row if name in both] for row in (first, second)]
    return len(both) >= max(3, len(first) - 1) and order[0] != order[1]


def _zipped(node: ast.AST) -> bool:
    """Whether an expression turns a list of rows into columns: `zip(*rows)`, alone or mapped."""
    if is_call(node, "map", "list", "tuple") and node.args:
        return _zipped(node.args[-1])
    return is_call(node, "zip") and len(node.args) == 1 and isinstance(node.args[0], ast.Starred)


def _fields(program: Program, flow: Flow, call: ast.Call) -> list[str] | None:
    """What the places of a call are called: the parameters of a function of the program, or a named tuple's fields."""
    named = _named_tuple(program, flow, call.func)
    if named is not None:
        return named
    function = program.run_by(call)
    if function is None:
        return None
    names = [one.arg for one in parameters(function)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    if not names and function.args.vararg is not None:  # def push(self, *args): Transition(*args)
        for inner in own(function, ast.Call):
            starred = [one.value for one in inner.args if isinstance(one, ast.Starred)]
            if len(inner.args) == 1 and len(starred) == 1 and is_name(starred[0], function.args.vararg.arg):
                return _named_tuple(program, flow, inner.func)
    inside = function in program.parents(call)
    return None if inside else names


def _named_tuple(program: Program, flow: Flow, func: ast.AST) -> list[str] | None:
    """The fields of a named tuple that an expression is the type of."""
    made = flow.value(func) if isinstance(func, (ast.Name, ast.Attribute)) else None
    if not isinstance(made, ast.Call) or last_word(made.func) != "namedtuple" or len(made.args) < 2:
        return None
    fields = flow.value(made.args[1])
    if is_string(fields):
        return fields.value.replace(",", " ").split()
    if isinstance(fields, (ast.Tuple, ast.List)) and all(is_string(one) for one in fields.elts):
        return [one.value for one in fields.elts if is_string(one)]
    return None


# Exploration -------------------------------------------------------------------------------


@RULES.add("exploration-never-falls", "every action is drawn at random for the whole training: what is learned is never tried", "make it smaller with the steps: epsilon = max(least, epsilon * decay)")
def _never_falls(program: Program) -> Iterator[Remark]:
    """A share of random actions that is 1 and stays 1."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
            continue
        drawn: ast.AST = node.left
        share = node.comparators[0]
        key = flow.key(share)
        values = [one for one in flow.values(key) if one is not None]
        drawn = flow.value(drawn) if isinstance(drawn, ast.Name) else drawn
        if program.called(drawn) not in _UNIFORM or key is None or len(values) != 1 or len(flow.bound[key]) != 1 or flow.number(values[0]) != 1:
            continue
        if any(one.how == "parameter" for one in flow.bound[key]) or any(one.how == "add" for one in flow.bound[key]):
            continue
        if isinstance(key[0], ast.ClassDef) and (flow.stores_of(key[1].removeprefix("self.")) != 1 or not closed(program, key[0])):
            continue
        test = program.parent.get(node)
        chosen = test.body if isinstance(test, ast.If) else []
        acts = any(is_method(one, "sample", "randint", "randrange", "choice") for part in chosen for one in ast.walk(part))
        if acts and any(is_attribute(one, "backward") for one in program.everywhere(ast.Attribute)):
            yield Remark(node, f"{short(node)} is always true: {last_word(share)} is {short(values[0])} and nothing changes it")


# Episodes that never begin again ----------------------------------------------------------


@RULES.add("never-reset", "steps after the end of an episode are none of any: the environment says how it goes on, or nothing at all", "reset the environment where terminated or truncated is True")
def _never_reset(program: Program) -> Iterator[Remark]:
    """An environment that is stepped on after the end of an episode."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        call, target = node.value, node.targets[0]
        if not is_method(call, "step") or not isinstance(target, ast.Tuple) or len(target.elts) not in (4, 5) or not _single(flow, call.func.value):
            continue
        loops = program.loops(node)
        if not loops:
            continue
        loop = loops[0]
        if any(is_attribute(one, "reset") or is_method(one, "reset") for one in ast.walk(loop)) or _helped(program, loop):
            continue
        ends = [last_word(one) for one in target.elts[2:-1]]
        tests = [one.test for one in ast.walk(loop) if isinstance(one, (ast.If, ast.While, ast.IfExp))]
        asked = {name for name in ends if name and any(_decides(program, loop, test, name) for test in tests)}
        outer = any(is_attribute(one, "reset") for around in loops[1:] for one in ast.walk(around))
        if not asked and not outer:
            yield Remark(call, f"{short(call)} runs on and on in the loop of line {loop.lineno}, which neither resets the environment nor asks for the end of an episode")
        elif len(target.elts) == 5 and isinstance(loop, ast.While) and len(asked) == 1 and ends[0] in asked and not _counted(loop):
            unused = not any(reads(one, ends[1]) for one in own(program.frame(node), ast.stmt)) if ends[1] else True
            if unused:
                yield Remark(call, f"the loop of line {loop.lineno} goes on until {ends[0]}, and does not look at whether the episode was truncated: after the time limit {short(call)} goes on as if there were none")


@RULES.add("reset-to-one-start", "each episode begins in the same state, with the same random numbers: the policy learns one start by heart", "give the seed to the first reset alone")
def _one_start(program: Program) -> Iterator[Remark]:
    """An environment that is reset with one and the same seed in each episode of a loop."""
    flow = flow_of(program)
    for call in program.calls():
        seed = next((one.value for one in call.keywords if one.arg == "seed"), None) if is_method(call, "reset") else None
        if seed is None or program.without_gradient(call) or re.search(r"eval|test|valid|play|render|record", program.function_name(call) or "", re.I):
            continue
        if re.search(r"eval|test|val", text_of(call.func), re.I):
            continue
        loops = flow.loops(call)
        for loop in loops:
            steps = any(is_method(one, "step") for part in reached(program, loop, 2) for one in ast.walk(part))
            fresh = any(program.called(one) in ("gymnasium.make", "gym.make") for one in ast.walk(loop) if isinstance(one, ast.Call))
            trains_here = any(is_attribute(one, "backward") for one in program.everywhere(ast.Attribute))
            if steps and not fresh and trains_here and is_constant(flow, seed) and in_each_pass(flow, call, loop):
                yield Remark(call, f"{short(call)} gives the same seed in each episode of the loop of line {loop.lineno}")
                break


def _single(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is one environment that gymnasium (or gym) made, without a wrapper that resets it."""
    values = flow.possible(node)
    if not values:
        return False
    for value in values:
        name = flow.program.called(value)
        if name not in ("gymnasium.make", "gym.make"):
            return False
    return not any("autoreset" in source.text.lower() for source in flow.program.sources)


def _helped(program: Program, loop: ast.AST) -> bool:
    """Whether a loop calls a function of the program that resets something."""
    for call in ast.walk(loop):
        local = program.local_function(call) if isinstance(call, ast.Call) else None
        if local is not None and any(is_attribute(one, "reset") for one in ast.walk(local)):
            return True
    return False


def _decides(program: Program, loop: Loop, test: ast.AST, name: str) -> bool:
    """Whether a test of a loop asks for a variable, or for one that is computed from it there."""
    names = {name}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and any(reads(node.value, one) for one in names):
            names |= {one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)}
    return any(reads(test, one) for one in names)


def _counted(loop: ast.While) -> bool:
    """Whether a loop ends after a number of steps as well."""
    tests = [loop.test, *(one.test for one in ast.walk(loop) if isinstance(one, ast.If) and any(isinstance(part, (ast.Break, ast.Return)) for part in ast.walk(one)))]
    return any(isinstance(one, ast.Compare) for test in tests for one in ast.walk(test))


# Entries that are one list ------------------------------------------------------------------


RULES.add(
    "stored-and-emptied",
    "every entry of the store is one and the same list, with what the newest episode has left in it",
    "store a copy: store.append(list(rewards)), or begin each episode with new lists",
)(emptied_after_storing)
