"""Losses and their terms: what is added to a loss and what of it reaches backward. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import SETTINGS, Flow, flow_of
from probe.diagnose.code.loop.step_calls import events_of, goes_over
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    entry_of,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    is_read,
    is_true,
    last_word,
    names_of,
    number_in,
    operands,
    own,
    parameters,
    returned,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import gives_mean, is_loss

RULES = Rules("loop")
_STEPS = frozenset({"argmax", "argmin", "round", "floor", "ceil", "sign", "eq", "ne", "gt", "lt", "ge", "le", "long", "int", "bool"})
"""Methods and functions of torch whose gradient is zero or does not exist."""
CUT = _STEPS | {"item", "detach", "detach_", "tolist", "numpy"}
"""Methods after which no gradient flows back."""
_FACTORS = ("lam", "coef", "weight", "beta", "alpha", "scale")
"""Words in the names of numbers by which a term of a loss is multiplied."""
_OF_A_TENSOR = (
    "pow", "square", "sqrt", "abs", "norm", "mean", "sum", "add", "sub", "mul", "div", "view", "reshape", "flatten", "squeeze",
    "unsqueeze", "clamp", "clamp_min", "clip", "exp", "log", "relu", "max", "min", "float", "double", "to", "contiguous", "t",
)
"""Methods through which the gradient of their tensor flows."""
OF_TENSORS = frozenset({"tensor", "as_tensor", "from_numpy", "FloatTensor", "Tensor"})


class Gradients:
    """Which expressions of one function carry no gradient, and why."""

    def __init__(self, flow: Flow, function: ast.AST) -> None:
        self.flow = flow
        self.program = flow.program
        self.function = function

    def cut(self, node: ast.AST | None, depth: int = 10) -> str | None:
        """What ends the gradient of an expression that is made of tensors; None where it may carry one, where that
        is unknown, and where it is a plain number or input."""
        if node is None or depth == 0:
            return None
        if isinstance(node, ast.Call):
            return self._cut_of_call(node, depth)
        if is_attribute(node, "data"):
            return ".data" if self.learned(node.value) else None
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            found = [self.cut(one, depth - 1) for one in (node.left, node.right)]
            sides = zip(found, (node.left, node.right), strict=True)
            plain = all(one is not None or isinstance(side, ast.Constant) or self._number(side) for one, side in sides)
            return next((one for one in found if one), None) if plain else None
        if isinstance(node, ast.UnaryOp):
            return self.cut(node.operand, depth - 1)
        if isinstance(node, ast.Compare):
            return "a comparison" if self.learned(node.left) else None
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self.cut(node.elt, depth - 1)
        key = self.flow.key(node)
        added = self.flow.values(key) if key is not None and key[0] is self.function else []
        if len(added) > 1 and any(isinstance(self.program.parent.get(one), ast.AugAssign) for one in added if one is not None):
            found = [self.cut(one, depth - 1) for one in added if one is None or number_in(one) is None]
            return next((one for one in found if one), None) if all(found) else None
        value = self.flow.only(key) if key is not None and key[0] is self.function else None
        if value is None or self.program.loops(value)[:1] not in ([], self.program.loops(node)[:1]):
            return None
        if self.program.without_gradient(value) and self.learned(value) and not self.program.without_gradient(node):
            return f"computed under no_grad in line {value.lineno}"
        return self.cut(value, depth - 1)

    def _cut_of_call(self, node: ast.Call, depth: int) -> str | None:
        func = node.func
        name = self.program.dotted(func) or ""
        last = name.rpartition(".")[2]
        if isinstance(func, ast.Attribute) and not name:
            if func.attr in CUT:
                return f".{func.attr}()" if self.learned(func.value) else None
            if func.attr in ("mean", "sum", "abs", "pow", "sqrt", "log", "exp", "float", "to", "cuda", "clone", "view", "squeeze"):
                return self.cut(func.value, depth - 1)
            return None
        if is_name(func, "sum") and node.args:
            return self.cut(node.args[0], depth - 1)
        if is_name(func, "float") and len(node.args) == 1:
            return "float()" if self.learned(node.args[0]) else None
        if name.startswith("torch.") and last in OF_TENSORS and node.args:
            return f"{last}()" if self.learned(node.args[0]) else None
        if name.startswith("torch.") and name.count(".") == 1 and last in _STEPS and node.args:
            return f"torch.{last}" if self.learned(node.args[0]) else None
        if is_loss(self.program, node) and len(node.args) >= 2:
            return self.cut(node.args[0], depth - 1) if self.cut(node.args[1], depth - 1) or self._data(node.args[1]) else None
        local = self.program.local_function(node)
        if local is not None and not any(self.program.family(one) == "module" for one in node.args) and not _runs_something(self.program, local):
            given = [one for one in node.args if self.learned(one) or self.cut(one, depth - 1)]
            found = [self.cut(one, depth - 1) for one in given]
            return found[0] if found and all(found) else None
        return None

    def _data(self, node: ast.AST) -> bool:
        """Whether an expression is a variable of a batch: a loop over a loader gives it."""
        key = self.flow.key(node)
        return key is not None and self.flow.values(key) == [None] and bool(self.program.loops(node))

    def _number(self, node: ast.AST) -> bool:
        """Whether an expression is a number or a setting, not a tensor of the model."""
        if self.program.family(node) == "number" or self.flow.number(node) is not None:
            return True
        return isinstance(node, ast.Attribute) and is_name(node.value, *SETTINGS)

    def learned(self, node: ast.AST | None, depth: int = 7) -> bool:
        """Whether an expression is made of what a module or a loss gives."""
        if node is None or depth == 0:
            return False
        if is_parameter(self.program, node):
            return True
        if isinstance(node, ast.Call):
            if is_loss(self.program, node):
                return any(self.learned(one, depth - 1) or self.program.family(one) is None for one in node.args[:1])
            if self.program.family(node.func) == "module":
                return True
            if is_method(node) and self.program.dotted(node.func) is None:
                return node.func.attr not in CUT and self.learned(node.func.value, depth - 1)
            if self.program.called(node).startswith("torch."):
                return any(self.learned(one, depth - 1) for one in node.args)
            local = self.program.local_function(node) if depth > 2 else None
            return local is not None and any(self.learned(value, depth - 2) for value in returned(local))
        if isinstance(node, ast.BinOp):
            return self.learned(node.left, depth - 1) or self.learned(node.right, depth - 1)
        if isinstance(node, (ast.UnaryOp, ast.Subscript)):
            return self.learned(node.operand if isinstance(node, ast.UnaryOp) else node.value, depth - 1)
        if isinstance(node, (ast.List, ast.Tuple)):
            return any(self.learned(one, depth - 1) for one in node.elts)
        values = (self.flow.values(self.flow.key(node)) or self.flow.passed(node))[:3] if isinstance(node, ast.Name) else []
        return any(value is not node and self.learned(value, depth - 1) for value in values)


def _runs_something(program: Program, function: Function) -> bool:
    """Whether a function calls what it is given, an attribute of its object, or a network of the program."""
    given = {one.arg for one in parameters(function)}
    return any(isinstance(one, ast.Call) and (is_name(one.func, *given, "") or is_own(one.func) or program.family(one.func) == "module") for one in ast.walk(function))


def is_parameter(program: Program, node: ast.AST) -> bool:
    """Whether a variable goes through the parameters of a model, in a loop or a comprehension."""
    if not isinstance(node, ast.Name) or goes_over(program, node, "parameters", "named_parameters"):
        return isinstance(node, ast.Name)
    for around in program.parents(node):
        for one in around.generators if isinstance(around, (ast.GeneratorExp, ast.ListComp)) else ():
            names = [part.id for part in ast.walk(one.target) if isinstance(part, ast.Name)]
            if is_method(one.iter, "parameters", "named_parameters") and names[-1:] == [node.id]:
                return True
    return False


def backwards(program: Program) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Each backward, and the expression that it starts from."""
    for call in program.calls():
        if not is_method(call, "backward", "manual_backward"):
            continue
        of = call.func.value
        given = is_method(call, "manual_backward") or is_name(of, "accelerator", "fabric", "self") or is_attribute(of, "accelerator", "fabric")
        if is_method(of, "scale") and of.args:
            yield call, of.args[0]
        else:
            yield call, call.args[0] if given and call.args else of


def starts(program: Program) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The same, and what the `training_step` of a trainer of a library returns, which runs backward itself."""
    yield from backwards(program)
    for function in program.functions.get("training_step", []):
        for node in own(function, ast.Return):
            loss = entry_of(node.value, "loss") or node.value
            if loss is not None:
                yield node, loss


def _terms(flow: Flow, node: ast.AST | None, before: ast.AST, seen: frozenset[Key] = frozenset()) -> Iterator[ast.AST]:
    """The terms of a sum, through the variables of the function that a loss is added up in."""
    if is_binary(node, ast.Add, ast.Sub):
        yield from _terms(flow, node.left, before, seen)
        yield from _terms(flow, node.right, before, seen)
    elif isinstance(node, ast.BinOp) and isinstance(node.left, (ast.BinOp, ast.Name)) and (
        (isinstance(node.op, ast.Div) and isinstance(node.right, (ast.Constant, ast.Name)))
        or (isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant))
    ):
        yield from _terms(flow, node.left, before, seen)
    elif isinstance(node, ast.Name) and (key := flow.key(node)) is not None and key[0] is flow.program.scope(node):
        values = [one for one in flow.values(key) if one is not None]
        sums = [one for one in values if _leads(flow, key, one, before)]
        first = [one for one in values if one not in sums]
        if key in seen:
            return
        if len(values) == 1 and is_binary(values[0], ast.Add, ast.Sub, ast.Div):
            yield from _terms(flow, values[0], before, seen | {key})
        elif sums and len(first) <= 1:
            for value in first + sums:
                yield from _terms(flow, value, before, seen | {key})
        else:
            yield node
    elif node is not None:
        yield node


def _leads(flow: Flow, key: Key, value: ast.AST, before: ast.AST) -> bool:
    """Whether a value is added to a variable (`x += value`), or is a sum that reads it (`x = x + value`)."""
    parent = flow.program.parent.get(value)
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, (ast.Add, ast.Sub)):
        return getattr(value, "lineno", 0) <= getattr(before, "lineno", 0)
    return isinstance(value, ast.BinOp) and key[1] in names_of(value)


@RULES.add("term-without-gradient", "the model is not trained on this term", "add the tensor itself; take its number for the log alone")
def _terms_without_gradient(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    starts: list[tuple[ast.AST, ast.AST]] = list(backwards(program))
    for _, value in list(starts):
        starts += _returned(program, flow, value)
    for call, value in starts:
        gradients = Gradients(flow, program.scope(call))
        terms = list(dict.fromkeys(_terms(flow, value, call)))
        if len(terms) < 2:
            continue
        why = {term: gradients.cut(term) for term in terms}
        if all(why.values()) or not any(gradients.learned(term) for term in terms if not why[term]):
            continue
        for term, reason in why.items():
            if reason and term not in seen and not _cancels(term, terms):
                seen.add(term)
                yield Remark(term, f"{short(term)} is added to the loss without its gradient ({reason}): it changes the number and nothing else")


def _cancels(term: ast.AST, terms: list[ast.AST]) -> bool:
    """Whether a term is there for its value alone: `x - x.detach()` and the like."""
    return any(other is not term and text_of(other) in text_of(term) for other in terms)


def _returned(program: Program, flow: Flow, value: ast.AST) -> Iterator[tuple[ast.Return, ast.expr]]:
    """What a function of the program returns, where its call is what backward starts from."""
    given = flow.given(value) if isinstance(value, ast.Name) else None
    made = value if given is None else given.value
    if not isinstance(made, ast.Call):
        return
    of = program.classes.get(program.kind_name(made.func), [])
    local = program.local_function(made) or (program.method(of[0], "forward") if len(of) == 1 else None)
    place = given.place if given is not None else None
    for one in own(local, ast.Return) if local else ():
        if place is None and one.value is not None:
            yield one, one.value
        elif place is not None and isinstance(one.value, ast.Tuple) and place < len(one.value.elts):
            yield one, one.value.elts[place]


@RULES.add("only-the-last-counts", "the model is trained on the last part alone", "add the losses up: loss = loss + ..., and start from 0")
def _only_the_last(program: Program) -> Iterator[Remark]:
    """A loss that a loop computes for each of several parts, of which backward sees the last."""
    flow = flow_of(program)
    for call, value in backwards(program):
        if not isinstance(value, ast.Name):
            continue
        key = flow.key(value)
        values = flow.values(key)
        inside = [one for one in values if one is not None and is_loss(program, one) and isinstance(program.parent.get(one), ast.Assign)]
        if len(inside) != 1 or key is None:
            continue
        here = program.loops(call)
        around = program.loops(inside[0])
        if len(around) != len(here) + 1 or around[1:] != here or program.scope(inside[0]) is not program.scope(call):
            continue
        loop = around[0]
        if not isinstance(loop, ast.For) or _breaks(loop) or loop not in _block_of(program, call):
            continue
        inner = [one for one in ast.walk(loop) if is_name(one, value.id)]
        if len(inner) == 1 and not is_read(inner[0]) and names_of(inside[0]) & names_of(loop.target):
            yield Remark(inside[0], f"{value.id} is set anew in every pass of the loop of line {loop.lineno}, and {short(call)} comes after it: only the last pass counts")


def _breaks(loop: ast.For) -> bool:
    return any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(loop))


def _block_of(program: Program, node: ast.AST) -> list[ast.stmt]:
    for around in program.parents(node):
        if isinstance(around, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            return around.body
    return []


@RULES.add("total-not-used", "the model is trained on one of the terms alone", "call backward on the total")
def _total_not_used(program: Program) -> Iterator[Remark]:
    """A total of several losses that is only shown, while one of its terms goes backward."""
    flow = flow_of(program)
    all_backwards = list(backwards(program))
    for call, value in all_backwards:
        key = flow.key(value)
        if key is None or not isinstance(value, ast.Name):
            continue
        scope = program.scope(call)
        started = {flow.key(one) for _, one in all_backwards}
        for other, values in flow.assigned():
            total = values[0] if len(values) == 1 else None
            if other[0] is not scope or not is_binary(total, ast.Add) or other in started:
                continue
            if getattr(total, "lineno", 0) > call.lineno or program.loops(total) != program.loops(call):
                continue
            terms = list(_terms(flow, total, call))
            mine = [one for one in terms if isinstance(one, ast.Name) and flow.key(one) == key]
            gradients = Gradients(flow, scope)
            rest = [one for one in terms if one not in mine and gradients.learned(one) and not any(
                isinstance(name, ast.Name) and flow.key(name) in started for name in ast.walk(one)
            )]
            reads = list(flow.escapes(other))
            if mine and rest and not reads and not program.without_gradient(total) and _has_method_reads(flow, other):
                yield Remark(call, f"{short(call)} starts from {value.id}, a part of {other[1]}: {short(rest[0])} is added to {other[1]} (line {getattr(total, 'lineno', 0)}) and never gets a gradient")


def _has_method_reads(flow: Flow, key: Key) -> bool:
    called = flow.called_on(key)
    return bool(called) and called <= {"item", "detach", "cpu", "float"}


@RULES.add("averaged-twice", "the gradient is smaller by the size of the batch", 'divide once, or take reduction="sum"')
def _averaged_twice(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not isinstance(node.op, ast.Div):
            continue
        loss = node.left
        made = flow.made(flow.key(loss)) if isinstance(loss, ast.Name) else loss
        if not isinstance(made, ast.Call) or not gives_mean(flow, made) or not isinstance(loss, (ast.Name, ast.Call)):
            continue
        if made.args and _is_length_of(node.right, made.args):
            parent = program.parent.get(node)
            target = parent.targets[0] if isinstance(parent, ast.Assign) else None
            for call, value in backwards(program):
                if value is node or (target is not None and flow.key(value) is not None and flow.key(value) == flow.key(target) and program.scope(call) is program.scope(node)):
                    yield Remark(node, f"{short(made.func)} gives the mean over the batch, and it is divided by {short(node.right)} again")
                    break


def _is_length_of(node: ast.AST, of: list[ast.expr]) -> bool:
    """`len(x)`, `x.size(0)` or `x.shape[0]` of an argument."""
    text = text_of(node)
    names = [text_of(one) for one in of]
    return any(text in (f"len({name})", f"{name}.size(0)", f"{name}.shape[0]", f"{name}.size()[0]") for name in names)


@RULES.add("return-in-the-loop", "each epoch trains on one batch", "move the return out of the loop")
def _returns_in_the_loop(program: Program) -> Iterator[Remark]:
    """A function that gives the mean of a loop's losses after its first pass."""
    flow = flow_of(program)
    for node in program.everywhere(ast.For):
        last = node.body[-1]
        if not isinstance(last, ast.Return) or last.value is None or any(isinstance(one, (ast.Continue, ast.Yield)) for one in ast.walk(node)):
            continue
        added = {one.target.id for one in ast.walk(node) if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)}
        read = names_of(last.value)
        if added & read and any(event.what == "backward" for event in events_of(flow, node.body)):
            name = sorted(added & read)[0]
            yield Remark(last, f"the return stands inside the loop that adds up {name}: the function ends after its first batch")


@RULES.add("loss-maximized", "training makes the loss worse", "leave maximize out")
def _maximized(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call)
        wants = argument(call, "maximize")
        if not name.startswith("torch.optim.") or not is_true(wants):
            continue
        optimizers = [key for key in flow.bound if program.called(flow.made(key)).startswith("torch.optim.")]
        for backward, value in backwards(program):
            made = flow.made(flow.key(value)) if isinstance(value, ast.Name) else value
            if len(optimizers) == 1 and is_loss(program, made):
                yield Remark(call, f"maximize=True makes {short(backward.func.value if is_method(backward) else backward)} larger with each step, and it is a loss")
                break


@RULES.add("derivative-without-graph", "what is made of the derivative trains nothing", "autograd.grad(..., create_graph=True)")
def _derivative_without_graph(program: Program) -> Iterator[Remark]:
    """A derivative that is part of a loss (a penalty, the residual of an equation), taken without its own graph."""
    flow = flow_of(program)
    taken = [
        call for call in program.calls()
        if program.called(call) == "torch.autograd.grad" and len(call.args) <= 4
        and not any(word.arg in (None, "create_graph") for word in call.keywords)
        and not any(isinstance(around, ast.With) for around in program.parents(call))
    ]
    if taken:
        parts = {part: backward for backward, value in backwards(program) for part in _differentiated(flow, value)}
        for call in taken:
            if call in parts:
                yield Remark(call, f"autograd.grad is called without create_graph=True, and {short(parts[call])} (line {parts[call].lineno}) differentiates what is made of it: nothing flows back through the derivative")


def _differentiated(flow: Flow, loss: ast.AST) -> set[ast.AST]:
    """The parts of a loss through which gradients are meant to flow: sums, differences, norms and powers of what it is
    made of, also where functions of the program return them, and products with numbers. Not the inputs of modules."""
    program = flow.program
    waiting: list[ast.AST] = [loss]
    found: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        local = program.local_function(node) if isinstance(node, ast.Call) else None
        if local is not None:
            waiting += filter(None, returned(local))
        elif isinstance(node, ast.Call):
            name = last_word(node.func)
            known = program.called(node).startswith("torch.") or is_call(node, "sum", "abs", "max", "min")
            if name in CUT or program.family(node.func) == "module":
                continue
            if known or program.family(node.func) == "loss":
                waiting += node.args
            elif is_method(node, *_OF_A_TENSOR):
                waiting += [node.func.value, *node.args]
        elif is_binary(node, ast.Mult):
            for one, other in operands(node):
                if flow.number(other) is not None or (isinstance(other, (ast.Name, ast.Attribute)) and says(other, *_FACTORS)):
                    waiting.append(one)
        elif is_read(node) and (value := flow.given(node)) is not None and value.value is not None:
            waiting.append(value.value)
        elif isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Tuple, ast.List, ast.Starred, ast.Attribute)):
            waiting += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    return found


@RULES.add("own-similarity-kept", "each sample's similarity to itself is the largest of its row: it drowns the positive, and the loss cannot come near 0", "fill the diagonal with -inf before the softmax: logits.fill_diagonal_(float('-inf'))")
def _own_similarity(program: Program) -> Iterator[Remark]:
    """A contrastive loss over the similarities of a batch to itself, in which each sample is its own candidate."""
    flow = flow_of(program)
    for call in program.calls():
        if not call.args or program.called(call) not in ("torch.nn.functional.cross_entropy", "torch.nn.functional.log_softmax", "torch.logsumexp"):
            continue
        if any(_hides(one) for one in own(program.scope(call), ast.Call, ast.Assign)):
            continue
        origins = list(flow.origins(call.args[0]))
        product = next((one for one in origins if _with_itself(flow, one)), None)
        if product is None:
            continue
        changed = any(isinstance(one, ast.Call) and program.local_function(one) is not None and product in ast.walk(one) for one in origins)
        if not changed:
            yield Remark(call, f"{short(product)} (line {getattr(product, 'lineno', 0)}) holds the similarity of each row to itself, and {short(call)} leaves it among the candidates")


def _with_itself(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is `z @ z.T`, of rows that stand for the samples of a batch."""
    if is_binary(node, ast.MatMult):
        left, right = node.left, node.right
    elif is_method(node, "matmul", "mm") and node.args:
        left, right = (node.args[0], node.args[1]) if len(node.args) > 1 else (node.func.value, node.args[0])
    else:
        return False
    turned = right.func.value if is_method(right, "t", "transpose") else right.value if is_attribute(right, "T", "mT") else None
    if turned is None or text_of(turned) != text_of(left):
        return False
    alike = (one for one in own(flow.program.scope(node), ast.Compare) if is_method(one.left, "unsqueeze") or isinstance(one.left, ast.Subscript))
    return any(is_method(one, "cat", "concat", "vstack") for one in flow.origins(left)) or any(map(_of_each_pair, alike))


def _of_each_pair(node: ast.Compare) -> bool:
    """Whether a comparison asks for each two samples whether they have one label: `y[:, None] == y[None, :]`."""
    sides = [one.func.value if is_method(one, "unsqueeze") else one.value if isinstance(one, ast.Subscript) else one for one in (node.left, node.comparators[0])]
    return len(sides) == 2 and text_of(sides[0]) == text_of(sides[1]) and text_of(node.left) != text_of(node.comparators[0])


def _hides(node: ast.AST) -> bool:
    """Whether a statement may take the diagonal out of a matrix."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript) or says(node.value, "mask", "eye", "diag")
    return is_method(node, "fill_diagonal_", "masked_fill", "masked_fill_", "masked_select", "where", "eye", "diag", "diagonal", "triu", "tril")
