"""Statements that do nothing: results that are thrown away, methods that are named and not called. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program, blocks, reads
from probe.diagnose.code.rule import Remark, Rule

_PURE = frozenset({
    "abs", "add", "argmax", "bfloat16", "bmm", "bool", "cat", "clamp", "clip", "clone", "contiguous", "cos",
    "cpu", "cuda", "cumsum", "detach", "div", "double", "exp", "expand", "fill", "flatten", "flip", "float",
    "gather", "gelu", "half", "index_fill", "int", "leaky_relu", "log", "log_softmax", "long", "masked_fill",
    "matmul", "mean", "mul", "nan_to_num", "neg", "norm", "normalize", "one_hot", "pad", "permute", "pow",
    "relu", "reshape", "roll", "round", "scatter", "sigmoid", "softmax", "sqrt", "squeeze", "stack", "sub",
    "sum", "tanh", "to", "transpose", "tril", "triu", "type", "unsqueeze", "view", "where",
})
"""Functions and methods of tensors that give a new one and change nothing. `fill` and the like have a twin
that changes the tensor, and is written with `_` at its end."""
_FRAME_PURE = frozenset({
    "astype", "clip", "drop", "dropna", "fillna", "rename", "replace", "reset_index", "sample", "sort_values",
})
_CALLED = frozenset({
    "backward", "barrier", "close", "cpu", "cuda", "detach_", "eval", "flush", "reset", "step", "synchronize",
    "train", "unscale_", "update", "zero_grad",
})
"""Methods that do something when they are called, and nothing when they are only named."""


def _in_try(program: Program, node: ast.AST) -> bool:
    """Whether a statement may stand there to see whether it raises, or to be timed or warmed up."""
    return any(isinstance(one, (ast.Try, ast.With, ast.AsyncWith)) for one in program.parents(node))


def _thrown_away(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Expr):
        assert isinstance(node, ast.Expr)
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if _in_try(program, node):
            continue
        method = call.func.attr
        if any(keyword.arg in ("out", "inplace") for keyword in call.keywords):
            continue
        name = program.dotted(call.func) or ""
        family = program.family(call.func.value)
        of_torch = name in (f"torch.{method}", f"torch.nn.functional.{method}") and method in _PURE
        pure = _PURE if family == "tensor" else _FRAME_PURE if family == "frame" else ()
        if of_torch or method in pure:
            if of_torch and method in ("relu", "leaky_relu") and len(call.args) > 1:
                continue  # its second argument may be `inplace`
            if not any(isinstance(one, ast.Name) and program.dotted(one) is None for one in ast.walk(call)):
                continue  # of constants alone: it warms something up
            said = f"the result of {_short(program, call.func)}(...) is thrown away: "
            yield Remark(node, f"{said}{method} gives a new value and changes nothing")


def _not_called(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Expr):
        assert isinstance(node, ast.Expr)
        value = node.value
        if isinstance(value, ast.Attribute) and value.attr in _CALLED and not _in_try(program, node):
            said = f"{_short(program, value)} is named and not called: the parentheses are missing"
            yield Remark(node, said)


def _compared(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Expr):
        assert isinstance(node, ast.Expr)
        value = node.value
        equal = isinstance(value, ast.Compare) and [type(op) for op in value.ops] == [ast.Eq]
        if equal and not _in_try(program, node):
            said = f"{_short(program, value)} compares and changes nothing: an assignment has one ="
            yield Remark(node, said)


def _signed(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign):
        assert isinstance(node, ast.Assign)
        value = node.value
        if not isinstance(value, ast.UnaryOp) or not isinstance(value.op, (ast.UAdd, ast.USub)):
            continue
        if len(node.targets) != 1:
            continue
        target = node.targets[0]
        source = program.source_of[node]
        if value.lineno != target.end_lineno or target.end_col_offset is None:
            continue
        line = source.lines[value.lineno - 1].encode()
        sign = "+" if isinstance(value.op, ast.UAdd) else "-"
        between = line[target.end_col_offset : value.col_offset + 1].decode()
        after = line[value.col_offset + 1 : value.col_offset + 2].decode()
        if between.strip() == f"={sign}" and f"={sign}" in between and after == " ":
            name = _short(program, target)
            yield Remark(node, f"{name} ={sign} ... sets {name} anew: {sign}= was meant")


def _overwritten(program: Program) -> Iterator[Remark]:
    for block in blocks_of(program):
        for place, node in enumerate(block):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name):
                continue
            name = target.id
            if name.startswith("_") or program.family(node.value) != "tensor":
                continue
            for later in block[place + 1 :]:
                again = isinstance(later, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == name for target in later.targets
                )
                if again and isinstance(later, ast.Assign) and not reads(later.value, name):
                    said = f"{name} is computed in line {node.lineno} and overwritten in line {later.lineno}"
                    yield Remark(later, f"{said} before anything reads it")
                    break
                if again or reads(later, name) or _leaves(later):
                    break


def _leaves(node: ast.stmt) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.Global)):
        return True
    leaving = (ast.Return, ast.Continue, ast.Break, ast.Yield, ast.YieldFrom, ast.Raise)
    return any(isinstance(one, leaving) for one in ast.walk(node))


def blocks_of(program: Program) -> Iterator[list[ast.stmt]]:
    """The blocks of all files."""
    for source in program.sources:
        yield from blocks(source.tree)


def _short(program: Program, node: ast.AST) -> str:
    text = program.text(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


RULES: tuple[Rule, ...] = (
    Rule(
        "result-thrown-away", "effect",
        "the value goes on unchanged",
        "assign the result, or call the twin that ends in _", _thrown_away,
    ),
    Rule(
        "method-not-called", "effect",
        "what the method does is never done",
        "call it: add ()", _not_called,
    ),
    Rule(
        "compared-not-assigned", "effect",
        "the setting keeps its old value",
        "write = instead of ==", _compared,
    ),
    Rule(
        "sign-after-equals", "effect",
        "what was added up before is lost",
        "write += or -=", _signed,
    ),
    Rule(
        "overwritten-unread", "effect",
        "what was computed first has no effect, and no gradient if it was a term of the loss",
        "add both, or delete the first", _overwritten,
    ),
)
