"""Statements that do nothing: results that are thrown away, methods that are named and not called. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    blocks,
    compares,
    is_attribute,
    is_call,
    is_method,
    is_name,
    is_self,
    is_string,
    is_true,
    last_word,
    own_nodes,
    reads,
    short,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("effect")

_PURE: dict[str, frozenset[str]] = {
    "tensor": frozenset({
        "abs", "add", "argmax", "argsort", "bfloat16", "bool", "cat", "chunk", "clamp", "clip", "clone",
        "contiguous", "cos", "cpu", "cuda", "cumsum", "detach", "div", "double", "dropout", "exp", "expand",
        "flatten", "flip", "flipud", "float", "gather", "gelu", "half", "index_add", "index_copy",
        "index_fill", "index_select", "int", "leaky_relu", "log", "log_softmax", "long", "masked_fill",
        "masked_scatter", "mean", "mul", "nan_to_num", "neg", "norm", "normalize", "numpy", "one_hot",
        "pad", "permute", "pow", "relu", "repeat", "reshape", "roll", "round", "rsqrt", "scatter",
        "scatter_add", "sigmoid", "softmax", "sort", "sqrt", "squeeze", "stack", "sub", "sum", "tanh",
        "tile", "to", "transpose", "tril", "triu", "type", "unsqueeze", "view", "where",
    }),
    "array": frozenset({
        "astype", "clip", "copy", "cumsum", "flatten", "mean", "ravel", "reshape", "round", "std", "sum",
        "transpose",
    }),
    "frame": frozenset({
        "astype", "clip", "drop", "dropna", "fillna", "merge", "rename", "replace", "reset_index", "sample",
        "set_index", "sort_index", "sort_values",
    }),
    "string": frozenset({
        "format", "join", "lower", "lstrip", "replace", "rstrip", "split", "strip", "title", "upper",
    }),
    "scaler": frozenset({"scale"}),
}
"""Methods that give something new and change nothing, by the family of what they are called on. Many
methods of a tensor have a twin that changes it, and is written with `_` at its end. No products: they are run
to be timed."""
_PURE_CALLS: dict[str, str] = {
    "torch.compile": "the model itself is not compiled",
    "torch.nn.DataParallel": "the model itself runs on one device",
    "torch.nn.parallel.DistributedDataParallel": "the model itself exchanges no gradients",
    "torch.utils.data.random_split": "the data are not split", "sorted": "the list keeps its order",
    "numpy.clip": "the array is not clipped", "numpy.concatenate": "nothing is appended",
    "numpy.append": "nothing is appended", "numpy.nan_to_num": "the array keeps its values",
    "numpy.random.permutation": "nothing is shuffled",
}
"""Functions and classes that leave what they are given as it is, with what follows from that."""
_LAYERS = frozenset({
    "AvgPool2d", "Conv1d", "Conv2d", "Conv3d", "Embedding", "GELU", "LayerNorm", "Linear", "LogSoftmax",
    "MaxPool2d", "Sigmoid", "Softmax", "Tanh",
})
"""Layers that have no state and do not work in place: a call whose output is not taken does nothing."""
_CALLED = frozenset({
    "backward", "barrier", "close", "cpu", "cuda", "detach_", "eval", "flush", "reset", "step",
    "synchronize", "train", "unscale_", "update", "zero_grad",
})
"""Methods that do something when they are called, and nothing when they are only named."""
_CALLED_OF_TORCH = frozenset({
    "torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.cuda.empty_cache",
    "torch.set_grad_enabled", "torch.use_deterministic_algorithms", "numpy.random.seed", "random.seed",
})
_MANAGERS = frozenset({
    "torch.no_grad", "torch.enable_grad", "torch.inference_mode", "torch.autocast", "torch.amp.autocast",
    "torch.cuda.amp.autocast", "torch.autograd.no_grad",
})
"""Context managers that do nothing before they are entered."""
_GROUP_KEYS = frozenset({"lr", "learning_rate", "weight_decay", "momentum", "betas", "eps"})


def _in_try(program: Program, node: ast.AST) -> bool:
    """Whether a statement may stand there to see whether it raises, or to be timed or warmed up."""
    for one in program.parents(node):
        if isinstance(one, (ast.Try, ast.AsyncWith)):
            return True
        if isinstance(one, ast.For) and isinstance(one.target, ast.Name) and one.target.id.startswith("_"):
            return True
        if isinstance(one, ast.With):
            for item in one.items:
                entered = item.context_expr
                called = entered.func if isinstance(entered, ast.Call) else entered
                if program.dotted(called) not in {*_MANAGERS, "torch.set_grad_enabled", "torch.device"}:
                    return True
    return False


def _statements(program: Program) -> Iterator[tuple[ast.Expr, ast.expr]]:
    """Statements that are an expression, with it."""
    for node in program.everywhere(ast.Expr):
        nothing = isinstance(node.value, (ast.Constant, ast.Await, ast.Yield, ast.YieldFrom))
        if not nothing and not _in_try(program, node):
            yield node, node.value


@RULES.add(
    "result-thrown-away", "what was given goes on unchanged",
    "assign the result, or call the twin that ends in _ where there is one",
)
def _thrown_away(program: Program) -> Iterator[Remark]:
    for node, call in _statements(program):
        if not isinstance(call, ast.Call):
            continue
        if any(one.arg in ("out", "inplace", "copy") for one in call.keywords):
            continue
        name = program.dotted(call.func) or (call.func.id if isinstance(call.func, ast.Name) else "")
        said = f"the result of {short(call.func)}(...) is thrown away"
        if name in _PURE_CALLS and name.rpartition(".")[2] not in program.functions:
            if name == "torch.compile" and not call.args:
                continue
            yield Remark(node, f"{said}: {_PURE_CALLS[name]}")
        elif is_method(call):
            method = call.func.attr
            free = name in (f"torch.{method}", f"torch.nn.functional.{method}") and method in _PURE["tensor"]
            if free and any(is_true(one) for one in call.args):
                continue  # it may be `inplace`
            if not free and method not in _PURE.get(program.family(call.func.value) or "", ()):
                layer = program.kind_name(call.func)
                of_torch = layer.startswith("torch.nn.") and layer.rpartition(".")[2] in _LAYERS
                if of_torch and program.function_name(node) == "forward":
                    yield Remark(node, f"{said}: the layer has no effect")
                continue
            if any(isinstance(one, ast.Name) and program.dotted(one) is None for one in ast.walk(call)):
                yield Remark(node, f"{said}: {method} gives a new value and changes nothing")


@RULES.add("method-not-called", "what it does is never done", "call it: add ()")
def _not_called(program: Program) -> Iterator[Remark]:
    for node, value in _statements(program):
        named = is_attribute(value, *_CALLED)
        name = program.dotted(value)
        named = named or name in _CALLED_OF_TORCH
        if isinstance(value, ast.Attribute) and is_self(value.value):
            of = program.class_of(value)
            method = None if of is None else program.method(of, value.attr)
            named = named or (method is not None and not method.decorator_list)
        elif isinstance(value, ast.Name) and name == value.id:
            found = program.functions.get(name, [])
            named = len(found) == 1 and not found[0].decorator_list and name not in program.classes
        if named:
            yield Remark(node, f"{short(value)} is named and not called: the parentheses are missing")


@RULES.add(
    "manager-not-entered", "the lines after it run as they would without it",
    "write `with` before it and indent the lines that it is meant for",
)
def _not_entered(program: Program) -> Iterator[Remark]:
    for node, value in _statements(program):
        called = value.func if isinstance(value, ast.Call) else value
        if program.dotted(called) in _MANAGERS:
            yield Remark(node, f"{short(value)} stands alone: it is made and never entered")


@RULES.add("iterator-not-run", "what it would do for each element is never done", "write a for loop over it")
def _not_run(program: Program) -> Iterator[Remark]:
    for node, value in _statements(program):
        generated = ast.walk(value.elt) if isinstance(value, ast.GeneratorExp) else ()
        if any(isinstance(one, ast.Call) for one in generated):
            yield Remark(node, f"the generator {short(value)} is made and nothing iterates over it")
        if not isinstance(value, ast.Call) or not isinstance(value.func, (ast.Name, ast.Attribute)):
            continue
        if is_call(value, "map", "filter") and program.dotted(value.func) is None:
            yield Remark(node, f"{short(value)} is made and nothing iterates over it: the function is never called")
            continue
        function = program.local_function(value)
        if function is None or function.decorator_list or not is_call(value):
            continue
        if isinstance(function, ast.AsyncFunctionDef):
            yield Remark(node, f"{function.name}(...) is not awaited: no line of it runs")
        elif any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in own_nodes(function)):
            said = f"{function.name} is a generator, and nothing iterates over {function.name}(...)"
            yield Remark(node, f"{said}: no line of it runs")


@RULES.add(
    "attribute-of-nothing", "nothing of the training changes by it",
    "call the method, or set the value where it is read: in param_groups, in each parameter, by train() or "
    "eval()",
)
def _attribute_of_nothing(program: Program) -> Iterator[Remark]:
    """Attributes that are set and that nobody looks at, and methods that are replaced by a value."""
    settings = [one for one in program.everywhere(ast.Attribute) if one.attr in _GROUP_KEYS]
    read = {ast.unparse(one) for one in settings if isinstance(one.ctx, ast.Load)}
    for node in program.everywhere(ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Attribute) or is_self(target.value):
                continue
            if said := _of_nothing(program, target, node.value, read):
                yield Remark(node, f"{short(target)} = ... {said}")


def _of_nothing(program: Program, target: ast.Attribute, value: ast.expr, read: set[str]) -> str | None:
    attribute, family = target.attr, program.family(target.value)
    of_torch = program.kind_name(target.value).startswith("torch.")
    if attribute == "requires_grad_":
        return "replaces a method by a value and calls nothing"
    if program.dotted(target) in _CALLED_OF_TORCH:
        return "replaces a function of the library by a value and calls nothing"
    if family == "optimizer" and of_torch and attribute in _GROUP_KEYS and ast.unparse(target) not in read:
        return "sets an attribute that the optimizer does not read: its settings are in param_groups"
    if family == "loader" and of_torch and attribute == "shuffle":
        return "comes too late: a DataLoader chooses its sampler when it is made"
    if _is_module(program, target.value):
        if attribute == "requires_grad" and isinstance(value, ast.Constant):
            return "sets an attribute of a module that nobody reads: its parameters keep theirs"
        if attribute in ("train", "eval") and isinstance(value, ast.Constant):
            return "replaces a method by a value and calls nothing"
        if attribute == "training" and isinstance(value, ast.Constant) and family == "module":
            return "reaches that module alone: the modules inside it keep their mode"
    return None


def _is_module(program: Program, node: ast.expr) -> bool:
    """Whether an expression is a module, or the variable of a loop over modules."""
    kind = program.kind(node)
    if kind is not None:
        made = program.classes.get(kind.name, [])
        return kind.family == "module" and not any(program.method(one, "requires_grad") for one in made)
    for loop in program.loops(node):
        if isinstance(loop, ast.For) and is_name(loop.target, last_word(node)) and is_name(node):
            return is_method(loop.iter, "modules", "children")
    return False


@RULES.add("compared-not-assigned", "the setting keeps its old value", "write = instead of ==")
def _compared(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Expr):
        value = node.value
        if compares(value, ast.Eq) and not _in_try(program, node):
            yield Remark(node, f"{short(value)} compares and changes nothing: an assignment has one =")


@RULES.add("never-equal", "the branch that was meant for one case is never taken, or always", "compare with the member: split == Split.TRAIN, or its value: split.value")
def _never_equal(program: Program) -> Iterator[Remark]:
    """A member of an Enum that is compared with a string: they are never equal."""
    flow = flow_of(program)
    enums = {name for name, classes in program.classes.items() for of in classes if [program.dotted(base) for base in of.bases] == ["enum.Enum"]}
    for node in program.everywhere(ast.Compare) if enums else ():
        if not compares(node, ast.Eq, ast.NotEq):
            continue
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            given = [one] if is_attribute(one) else flow.passed(one)
            of = {one.value.id if is_attribute(one) and is_name(one.value) else "" for one in given}
            if is_string(other) and len(of) == 1 and of <= enums and flow.default(one) is None:
                yield Remark(node, f"{short(node)} is never true: {short(one)} is a member of {of.pop()}, and no member equals a string" if compares(node, ast.Eq) else f"{short(node)} is always true: no member of {of.pop()} equals a string")


@RULES.add("sign-after-equals", "what was added up before is lost", "write += or -=")
def _signed(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign):
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
            name = short(target)
            yield Remark(node, f"{name} ={sign} ... sets {name} anew: {sign}= was meant")


@RULES.add(
    "overwritten-unread",
    "what was computed first has no effect, and what it depends on gets no gradient from it",
    "add both, read the first in the second, or delete the first",
)
def _overwritten(program: Program) -> Iterator[Remark]:
    for block in (block for source in program.sources for block in blocks(source.tree)):
        for place, node in enumerate(block):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            name = target.id if isinstance(target, ast.Name) else "_"
            if not isinstance(node, ast.Assign) or name.startswith("_") or not _learns(program, node.value):
                continue
            for later in block[place + 1 :]:
                value = later.value if isinstance(later, ast.Assign) else None
                again = isinstance(later, ast.Assign) and any(is_name(one, name) for one in later.targets)
                if again and value is not None and not reads(value, name):
                    if ast.dump(value) != ast.dump(node.value):
                        lines = f"in line {node.lineno} and overwritten in line {later.lineno}"
                        yield Remark(later, f"{name} is computed {lines} before anything reads it")
                    break
                if again or reads(later, name) or _leaves(later):
                    break


def _learns(program: Program, value: ast.expr) -> bool:
    """Whether a value is a loss, or what a layer with parameters gives in a forward: to lose it is a mistake.
    Much else is computed once more by people who try things, and harms nothing."""
    in_forward = isinstance(value, ast.Call) and program.function_name(value) == "forward"
    if in_forward and isinstance(value, ast.Call) and program.family(value.func) == "module":
        return True
    return any(is_loss(program, one) for one in ast.walk(value))


def _leaves(node: ast.stmt) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.Global)):
        return True
    leaving = (ast.Return, ast.Continue, ast.Break, ast.Yield, ast.YieldFrom, ast.Raise)
    return any(isinstance(one, leaving) for one in ast.walk(node))
