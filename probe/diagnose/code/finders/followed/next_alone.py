"""Next states that are scaled where the states are not, and windows of several steps that go on from one episode to the next. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, origins, same
from probe.diagnose.code.finders.losses.bootstraps import compared
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_method, is_name, short
from probe.diagnose.code.traits.basic import without_small

FINDERS = Finders()


def next_state_alone_scaled(program: Program) -> Iterator[Remark]:
    """What a network is given to judge what follows was brought to the mean 0 and the deviation 1, and what it is given to predict
    was not."""
    for _, prediction, _, one in compared(computation_of(program)):
        following, now = _tables(one.future), _tables(prediction)
        scaled = [(table, of) for table in following if (of := _standardized(table)) is not None]
        if not scaled or not now or len(scaled) != len(following) or any(_standardized(table) is not None or any(part.op == "std" for part in origins(table)) for table in now):
            continue
        table, of = scaled[0]
        if not any(same(of, each) for each in now):
            yield Remark(table.node, f"{short(table.node)} scales the states that {short(one.future.node)} (line {one.future.line}) judges, and those that {short(prediction.node)} (line {prediction.line}) predicts are given as they are")
            return


def _tables(value: Value) -> list[Value]:
    """The tables whose rows the networks of a value are given first."""
    found = []
    for run in origins(value):
        if run.op != "run" or len(run.args) < 2 or any(one.op == "run" for one in origins(run.args[1])):
            continue
        given = bare(run.args[1])
        given = given.args[0].parts[0] if given.op == "cat" and given.args and isinstance(given.args[0], Many) and given.args[0].parts else given
        for _ in range(8):
            given = bare(given, "part", "rows", "element")
        found.append(given)
    return found


def _standardized(table: Value) -> Value | None:
    """x of (x - mean of x) / (deviation of x)."""
    top = bare(table.args[0]) if table.op == "div" and len(table.args) == 2 else table
    if top.op != "sub" or len(top.args) != 2 or without_small(table.args[1]).op != "std" or bare(top.args[1]).op != "mean":
        return None
    return bare(top.args[0])


def window_across_episodes(program: Program) -> Iterator[Remark]:
    """A window of the last steps is summed over with discounts, and nothing empties it where an episode begins."""
    for outer in program.everywhere(ast.For, ast.While):
        assert isinstance(outer, (ast.For, ast.While))
        begins = [one for one in outer.body if any(is_method(part, "reset") for part in ast.walk(one)) and not isinstance(one, (ast.For, ast.While))]
        for inner in (one for one in ast.walk(outer) if isinstance(one, (ast.For, ast.While)) and one is not outer) if begins else ():
            stepped = [one for one in ast.walk(inner) if isinstance(one, ast.Assign) and is_method(one.value, "step") and isinstance(one.targets[0], ast.Tuple)]
            added = [one for one in ast.walk(inner) if is_method(one, "append") and is_name(one.func.value) and len(one.args) == 1 and isinstance(one.args[0], ast.Tuple)]
            for call in added if len(stepped) == 1 and not any(is_method(one, "reset") for one in ast.walk(inner)) else ():
                target, entry = stepped[0].targets[0], call.args[0]
                assert isinstance(call.func.value, ast.Name) and isinstance(target, ast.Tuple) and isinstance(entry, ast.Tuple)
                name, ends = call.func.value.id, {one.id for part in target.elts[2:] for one in ast.walk(part) if isinstance(one, ast.Name)}
                if any(is_name(one, end) for one in entry.elts for end in ends) or _is_emptied(program, outer, name):
                    continue
                summed = next((one for one in ast.walk(inner) if _sums(one, name)), None)
                if summed is not None and _is_counted(inner, name):
                    yield Remark(summed, f"{short(summed)} adds up the steps in {name}, which line {call.lineno} adds to in each step, and nothing empties it where line {begins[0].lineno} begins a new episode")
                    return


def _is_emptied(program: Program, outer: ast.AST, name: str) -> bool:
    """Whether anything in a loop takes entries out of a window, makes it anew, or hands it on."""
    for one in ast.walk(outer):
        if is_name(one, name) and isinstance(one.ctx, (ast.Store, ast.Del)):
            return True
        if not is_name(one, name):
            continue
        around = program.parent.get(one)
        if isinstance(around, ast.Attribute) and around.attr != "append":
            return True
        if isinstance(around, ast.Call) and around.func is not one and not (isinstance(around.func, ast.Name) and around.func.id in ("len", "enumerate", "range", "list", "reversed")):
            return True
    return False


def _sums(node: ast.AST, name: str) -> bool:
    """Whether a call sums over a window with powers of a discount."""
    if not isinstance(node, ast.Call) or not (isinstance(node.func, ast.Name) and node.func.id == "sum"):
        return False
    inside = list(ast.walk(node))
    return any(is_name(one, name) for one in inside) and any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow) for one in inside)


def _is_counted(inner: ast.AST, name: str) -> bool:
    """Whether a loop asks how long a window is."""
    return any(isinstance(one, ast.Compare) and any(isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "len" and part.args and is_name(part.args[0], name) for part in ast.walk(one)) for one in ast.walk(inner))


@FINDERS.add("memory-kept-across-episodes")
def _stack_of_the_last_episode(program: Program) -> Iterator[Remark]:
    """An object that is made once shifts the last observations by one with each that it is given, and gets the first one of an episode
    as it gets all others: those before it are of the last episode."""
    for outer in program.everywhere(ast.For, ast.While):
        assert isinstance(outer, (ast.For, ast.While))
        begins = [one for one in outer.body if not isinstance(one, (ast.For, ast.While))]
        loops = [one for one in outer.body if isinstance(one, (ast.For, ast.While))]
        first = [call for one in begins for call in ast.walk(one) if isinstance(call, ast.Call) and _is_given(call, begins, "reset")]
        for call in first if any(is_method(one, "step") for loop in loops for one in ast.walk(loop)) else ():
            assert isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
            name, method = call.func.value.id, call.func.attr
            again = [one for loop in loops for one in ast.walk(loop) if is_method(one, method) and is_name(one.func.value, name) and _is_given(one, list(ast.walk(loop)), "step")]
            others = [one for one in ast.walk(outer) if isinstance(one, ast.Attribute) and is_name(one.value, name) and one.attr != method]
            made_here = any(is_name(one, name) and isinstance(one.ctx, ast.Store) for one in ast.walk(outer))
            if again and not others and not made_here and _shifts(program, name, method):
                yield Remark(call, f"{short(call)} begins an episode with the observations that {name} holds of the last one: it only shifts them by one, as {short(again[0])} (line {again[0].lineno}) does")
                return


def _is_given(call: ast.Call, around: list[ast.stmt] | list[ast.AST], source: str) -> bool:
    """Whether a method of a name is given what an environment's `reset` or `step` has told."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name) or len(call.args) != 1 or call.func.attr in ("append", "extend"):
        return False
    if any(is_method(one, source) for one in ast.walk(call.args[0])):
        return True
    names = {one.id for one in ast.walk(call.args[0]) if isinstance(one, ast.Name)}
    told = [one for statement in around for one in ast.walk(statement) if isinstance(one, ast.Assign) and is_method(one.value, source)]
    firsts = [target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target for one in told for target in one.targets]
    return any(isinstance(one, ast.Name) and one.id in names for one in firsts)


def _shifts(program: Program, name: str, method: str) -> bool:
    """Whether the method of the class that a name is made of shifts what the object holds, and gives it."""
    made = [one.value for one in program.everywhere(ast.Assign) if isinstance(one.value, ast.Call) and isinstance(one.value.func, ast.Name) and any(is_name(target, name) for target in one.targets)]
    classes = [of for one in made if isinstance(one.func, ast.Name) for of in program.classes.get(one.func.id, ())]
    body = program.method(classes[0], method) if len(made) == len(classes) == 1 else None
    if body is None or not any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(body)) or any(isinstance(one, ast.If) for one in ast.walk(body)):
        return False
    rolled = any(isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "roll" for one in ast.walk(body))
    queued = any(is_method(one, "append") and isinstance(one.func.value, ast.Attribute) for one in ast.walk(body))
    return rolled or (queued and any(isinstance(one, ast.Call) and "deque" in ast.unparse(one.func) for one in ast.walk(classes[0])))
