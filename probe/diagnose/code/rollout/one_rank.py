"""Collectives that not all ranks reach. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Scope,
    argument,
    is_false,
    last_word,
    number_in,
    own,
    own_nodes,
    says,
    short,
    text_of,
)

RULES = Rules("rollout")

_COLLECTIVES = frozenset({
    "barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast",
    "broadcast_object_list", "reduce", "gather", "gather_object", "scatter", "reduce_scatter", "all_to_all",
})
_MAIN = (
    "is_main_process", "is_master", "is_main", "master_process", "is_rank_zero", "is_rank0", "is_primary",
    "is_chief",
)


def collective(program: Program, node: ast.AST) -> str | None:
    """The name of the collective of the whole group that a call runs."""
    if not isinstance(node, ast.Call) or argument(node, "group") is not None:
        return None
    library, _, last = program.called(node).rpartition(".")
    return last if library == "torch.distributed" and last in _COLLECTIVES else None


def _one_rank(program: Program, test: ast.AST) -> int:
    """1: the test holds on one rank only; -1: on all but one; 0: neither is known."""
    if isinstance(test, ast.BoolOp):
        found = [one for value in test.values if (one := _one_rank(program, value))]
        if isinstance(test.op, ast.And):
            return 1 if 1 in found else 0
        rest = [value for value in test.values if not _one_rank(program, value)]
        return int(found == [1] and all(says(value, "distributed", "world", "ddp") for value in rest))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return -_one_rank(program, test.operand)
    if isinstance(test, ast.Compare):
        among = test.comparators[0]
        numbers = among.elts if isinstance(among, (ast.List, ast.Tuple, ast.Set)) else [among]
        if not is_rank(program, test.left) or not any(number_in(one) == 0 for one in numbers):
            return 0
        sides = {ast.Eq: 1, ast.NotEq: -1, ast.Gt: -1} if numbers == [among] else {ast.In: 1, ast.NotIn: -1}
        return sides.get(type(test.ops[0]), 0)
    return int(last_word(test.func if isinstance(test, ast.Call) else test) in _MAIN)


def is_rank(program: Program, node: ast.AST) -> bool:
    """Whether an expression is the rank of the process."""
    if isinstance(node, ast.Call):
        return program.called(node) == "torch.distributed.get_rank" or text_of(node.func).endswith("get_rank")
    name = last_word(node)
    return name == "rank" or name.endswith(("_rank", "RANK"))


def side_of(program: Program, node: ast.AST) -> tuple[int, ast.If | None]:
    """On which ranks a node runs: 1 one, -1 all but one, 0 all or unknown; and the test that says so."""
    inner = node
    for around in program.parents(node):
        if isinstance(around, ast.If):
            side = _one_rank(program, around.test)
            if side and inner is not around.test:
                return (side if inner in around.body else -side), around
        if isinstance(around, Scope):
            break
        inner = around
    return 0, None


@RULES.add(
    "collective-on-one-rank", "the ranks hang, or go on with values of different collectives",
    "let all ranks run the collective, and only the printing or saving be rank 0's",
)
def _on_one_rank(program: Program) -> Iterator[Remark]:
    inside: dict[ast.AST, str] = {}
    for function in program.everywhere(ast.FunctionDef, ast.AsyncFunctionDef):
        for call in own(function, ast.Call):
            name = collective(program, call)
            if name is not None and not side_of(program, call)[0]:
                inside.setdefault(function, f"{name} in line {call.lineno}")
    for call in program.calls():
        side, test = side_of(program, call)
        if test is None:
            continue
        name = collective(program, call)
        local = program.local_function(call) if name is None else None
        runs = name or (inside.get(local) if local is not None else None)
        if runs is None or _paired(program, call, side, runs.partition(" ")[0]):
            continue
        shown = short(call, 40) if name else f"{short(call.func, 40)}, which runs {runs},"
        which = "one rank" if side > 0 else "all ranks but one"
        yield Remark(
            call,
            f"{shown} is reached by {which} only (if {short(test.test, 40)}): the others wait for "
            "it, or answer it with their next collective",
        )


def _paired(program: Program, call: ast.Call, side: int, name: str) -> bool:
    """Whether the other ranks reach the same collective in a branch of their own."""
    for other in own(program.frame(call), ast.Call):
        local = program.local_function(other)
        reached = [other, *(own_nodes(local) if local is not None else ())]
        if any(collective(program, one) == name for one in reached) and side_of(program, other)[0] == -side:
            return True
    return False


@RULES.add(
    "collective-after-return", "the one rank that is left waits for ever",
    "run the collective before the return",
)
def _after_return(program: Program) -> Iterator[Remark]:
    """`if rank != 0: return`, and a collective after it."""
    for node in program.everywhere(ast.If):
        if node.orelse or _one_rank(program, node.test) != -1 or not isinstance(node.body[-1], ast.Return):
            continue
        if any(collective(program, one) for part in node.body for one in ast.walk(part)):
            continue
        for later in program.after(node):
            found = next((one for one in ast.walk(later) if collective(program, one)), None)
            if found is not None:
                yield Remark(
                    found,
                    f"{short(found, 40)} is reached by one rank only: the others have returned in "
                    f"line {node.lineno}",
                )
                break


@RULES.add(
    "result-of-a-collective", "what uses the result uses None",
    "call it for what it does to the tensor, and go on with the tensor",
)
def _no_result(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign, ast.Return):
        value = getattr(node, "value", None)
        name = collective(program, value) if value is not None else None
        if name in ("all_reduce", "broadcast", "reduce", "all_gather", "gather") and isinstance(
            value, ast.Call
        ):
            flag = argument(value, "async_op")
            if flag is None or is_false(flag):
                yield Remark(
                    node, f"{short(value)} gives None: the result stands in the tensor that it was given"
                )
