"""Lists of what a network said in each batch, which go on from pass to pass. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_WHOLE = frozenset({"cat", "stack", "mean", "sum", "sum_of", "len", "array", "asarray", "tensor", "as_tensor", "std"})
"""Operations that make something of all parts of a list."""
_EMPTIES = ("clear", "pop", "popleft", "remove")


@FINDERS.add("sum-never-reset")
def _list_never_emptied(program: Program) -> Iterator[Remark]:
    """A list is filled in the loop over the batches, read as a whole in each pass of the loop around it, and was made before
    both."""
    computation = computation_of(program)
    said: set[int] = set()
    learned = {loop for one in computation.of("backward") for loop in one.where.loops}
    for put in computation.of("append"):
        kept = put.args[0]
        made, around = kept.where.loops, put.where.loops
        if not isinstance(kept, Many) or id(kept) in said or len(around) < len(made) + 2 or around[: len(made)] != made or around[-1] in learned:
            continue
        outer, name = around[len(made)], _name_of(put.node)
        if name is None or _is_emptied(program, kept, name) or not any(one.op == "run" for one in origins(put.args[1])):
            continue
        read = next((one for one in _readings(computation, kept) if one.where.loops[: len(made) + 1] == (*made, outer) and around[-1] not in one.where.loops and one.number > put.number), None)
        if read is None or any(one.op in ("run", "backward", "step") for one in made_from(computation, read, None)):
            continue  # what is kept of all passes is learned from
        said.add(id(kept))
        yield Remark(read.node, f"{short(read.node)} reads all of {name}, which {short(put.node)} (line {put.line}) fills and nothing empties: it holds what all passes of the loop of line {getattr(outer, 'lineno', 0)} so far have put into it")


def _readings(computation: Computation, kept: Many) -> Iterator[Value]:
    """What is made of all parts of a list, by an operation or by going through it."""
    yield from (one for one in computation.users(kept) if one.op in _WHOLE)
    for count, node, over in computation.passes:
        if over is kept and isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            after = (one for one in computation.values[count : count + 12] if one.op in _WHOLE and getattr(one.node, "lineno", 0) == node.lineno)
            yield from after


def _name_of(node: ast.AST) -> str | None:
    """The list that `name.append(…)` fills, as it is written."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ast.unparse(node.func.value)
    return None


def _is_emptied(program: Program, kept: Many, name: str) -> bool:
    """Whether something takes parts out of a list, or puts another one in its place."""
    word = name.partition("[")[0].rpartition(".")[2]
    for node in program.everywhere(ast.Call, ast.Assign, ast.AnnAssign, ast.Delete):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _EMPTIES and _base(node.func.value) == word:
                return True
            continue
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target] if isinstance(node, ast.AnnAssign) else []
        stored = {_base(one) for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])}
        if word in stored and not any(one is kept.node for one in ast.walk(node)):
            return True
    return False


def _base(node: ast.expr) -> str | None:
    """The last word of an expression, without what is taken of it by a key."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return last_word(node)
