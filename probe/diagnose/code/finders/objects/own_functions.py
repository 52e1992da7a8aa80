"""Functions and layers written by hand: gradients that are not passed on, rounding that ends them, dropout, running
statistics. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_own, last_word, returned, short
from probe.diagnose.code.traits.backwards import CUTS
from probe.diagnose.code.traits.held import contents, optimizers, sources
from probe.diagnose.code.traits.updates import plain
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()
_HARD = frozenset({"sign", "round", "floor", "ceil", "heaviside", "argmax", "argmin", "gt", "lt", "ge", "le", "trunc"})
"""Operations that have no gradient anywhere, and that stand in a network by mistake where nothing passes one round them."""


_NUMBERS = frozenset({"item", "numpy", "tolist", "data", "detach", "tensor", "torch.autograd.Variable"})
"""Operations that give the numbers of a tensor without its gradient."""


def gradient_not_passed_on(program: Program) -> Iterator[Remark]:
    """The backward of a function of the program computes a gradient, and never reads the one that it is given."""
    for function in program.everywhere(ast.FunctionDef):
        of = program.class_of(function)
        if function.name != "backward" or of is None or not any(last_word(base) == "Function" for base in of.bases):
            continue
        given = [one.arg for one in function.args.args[1:]]
        if not given or function.args.vararg is not None or any(isinstance(one, ast.Name) and one.id in given for one in ast.walk(function) if isinstance(getattr(one, "ctx", None), ast.Load)):
            continue
        forward = next((one for one in of.body if isinstance(one, ast.FunctionDef) and one.name == "forward"), None)
        if forward is None or any(one is not None and _is_one_number(forward, one) for one in returned(forward)):
            continue  # a loss, which backward mostly starts from
        parts = [part for one in returned(function) if one is not None for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        made = next((one for one in parts if isinstance(_written(function, one), (ast.BinOp, ast.UnaryOp, ast.Call)) and not _is_nothing(_written(function, one))), None)
        if made is not None:
            yield Remark(made, f"{of.name}.backward gives {short(made)}, and never reads {given[0]}: the gradient of what comes after it is not multiplied in")


def _written(function: ast.FunctionDef, node: ast.expr) -> ast.expr:
    """What a name has been given in a function, if that is one thing; else the expression itself."""
    if not isinstance(node, ast.Name):
        return node
    found = [one.value for one in ast.walk(function) if isinstance(one, ast.Assign) and any(isinstance(each, ast.Name) and each.id == node.id for each in one.targets)]
    return found[0] if len(found) == 1 else node


def _is_one_number(function: ast.FunctionDef, node: ast.expr, depth: int = 3) -> bool:
    """Whether an expression is made of a mean or sum over all of a tensor."""
    for one in ast.walk(_written(function, node)):
        if isinstance(one, ast.Call) and last_word(one.func) in ("mean", "sum") and not one.keywords:
            own = isinstance(one.func, ast.Attribute) and not isinstance(one.func.value, ast.Name)
            if len(one.args) == (0 if own or not one.args else 1) and not any(isinstance(each, (ast.Constant, ast.UnaryOp, ast.Tuple)) for each in one.args):
                return True
        if depth and isinstance(one, ast.Name) and one is not node and _is_one_number(function, one, depth - 1):
            return True
    return False


def _is_nothing(node: ast.expr) -> bool:
    """Whether a gradient is zero, or was computed elsewhere: in forward, or by a function of another library."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, (ast.Constant, ast.Attribute, ast.Name, ast.Subscript)):
        return True
    if not isinstance(inner, ast.Call):
        return False
    root = inner.func.value if isinstance(inner.func, ast.Attribute) else None
    return "zeros" in last_word(inner.func) or (isinstance(root, ast.Attribute) and isinstance(root.value, ast.Name) and root.value.id == "ctx") or not isinstance(inner.func, ast.Attribute) or last_word(inner.func) in ("apply", "clone", "to", "contiguous", "backward", "cpu", "cuda", "view", "reshape")


@FINDERS.add("cut-off-from-the-loss")
def _rounded_off(program: Program) -> Iterator[Remark]:
    """A layer that an optimizer holds is only used behind an operation without gradient, or, where the optimizer is given
    its part by name, without gradients."""
    computation = computation_of(program)
    starts = [one for one in computation.of("backward") if one.args and not one.where.no_grad]
    if not starts or any("backward" in one.op and one.op != "backward" for one in computation.values) or any(True for _ in computation.of("torch.autograd.grad", "grad", "add_param_group")):
        return
    whole = {id(one): one for start in starts for loss in start.args for one in origins(loss)}
    reached = {
        id(plain(one.args[0]) if one.op == "run" else one) for start in starts for loss in start.args for one in origins(loss, CUTS)
        if one.op in ("run", "torch.nn.Parameter") and not one.where.no_grad
    }
    frozen = any(one.op == "requires_grad_" or one.data == "requires_grad" for one in computation.of("requires_grad_", "set_attribute"))
    for optimizer in optimizers(computation):
        held = sources(optimizer.argument("params", 0)) or []
        for source in held:
            layers = [one for one in contents(source.of, computation) if has_parameters(one)]
            lost = [one for one in whole.values() if one.op == "run" and any(plain(one.args[0]) is each for each in layers) and id(plain(one.args[0])) not in reached]
            lost += [one for one in contents(source.of, computation) if one.op == "torch.nn.Parameter" and id(one) in whole and id(one) not in reached and "requires_grad" not in one.named]
            own = {id(one) for one in contents(source.of, computation)}
            given = [part for one in whole.values() if not one.op.startswith("torch.nn.") for part in (one.args[1:] if one.op == "run" else one.args)]
            if any(id(part) in own and part.op != "torch.nn.Parameter" for part in given):
                continue  # it is given to a function that is not seen
            by_name = len(held) > 1 and not source.chosen and not any(id(one) in reached for one in layers)
            for run in () if frozen else lost:
                cut = next((one for one in whole.values() if one.op in _HARD and any(part is run for part in origins(one, CUTS - {one.op}))), None)
                if cut is not None and not _gives_labels(computation, cut, whole):
                    yield Remark(cut.node, f"{short(cut.node)} has no gradient, and stands between {short(run.node)} (line {run.line}) and every loss: the optimizer of line {optimizer.line} has nothing to step that layer with")
                    return
                if not run.where.no_grad and (cut := _number_between(computation, run, whole)) is not None:
                    yield Remark(cut.node, f"{short(cut.node)} keeps only the numbers of what {short(run.node)} (line {run.line}) gives, and stands between that layer and every loss: the optimizer of line {optimizer.line} has nothing to step it with")
                    return
                if by_name and run.where.no_grad:
                    yield Remark(run.node, f"{short(run.node)} runs without gradients, and the optimizer of line {optimizer.line} is given its parameters as a part of their own")
                    return


def _number_between(computation: Computation, run: Value, whole: dict[int, Value]) -> Value | None:
    """What cuts the gradient off between a layer and the next one that computes with its output; None where the layer was
    loaded or pretrained, or is changed by other hands than the optimizer's."""
    layer = plain(run.args[0])
    if any(True for _ in computation.of("load_state_dict", "zip", "pretrained", "lerp_", "copy_")) or any(one.op in ("weight", "bias", "data") and plain(one.args[0]) is layer for one in computation.users(layer)):
        return None
    for one in whole.values():
        if one.op in _NUMBERS and not one.where.no_grad and one.args and any(part is run for part in origins(one, CUTS - {one.op})) and not _gives_labels(computation, one, whole):
            return one
    return None


def _gives_labels(computation: Computation, cut: Value, whole: dict[int, Value]) -> bool:
    """Whether what has no gradient is a target, or an index, and not what the next layer computes with."""
    waiting, seen = [cut], {id(cut)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if id(user) not in whole or id(user) in seen:
                continue
            seen.add(id(user))
            if user.op == "run" and has_parameters(plain(user.args[0])) and "Embedding" not in user.args[0].op:
                return False
            if user.op not in ("part", "gather", "index_select", "item", "step", "cross_entropy", "nll_loss", "log_prob"):
                waiting.append(user)
    return True


def dropped_without_scaling(program: Program) -> Iterator[Remark]:
    """In training a share of the hidden units is set to 0, the others stay as they are, and in evaluation all do."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("mul", "where", "masked_fill"):
        found = _dropped(value)
        if found is None or value.node in said:
            continue
        hidden = any(one.op == "run" and one.args[0].op.startswith("torch.nn.") for one in origins(found))
        users = computation.users(value)
        both = [one for one in users if one.op == "either" and any(part is found for part in one.args)]
        scaled = any(one.op in ("mul", "div") for one in (*users, *(each for part in both for each in computation.users(part) if _is_number(each))))
        asked = any(any(part.op == "training" for part in origins(test)) for test, _ in value.where.under)
        if hidden and both and asked and not scaled:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} sets units to 0 in training and does not divide the others by the share that is kept: in evaluation their sum is larger than what the next layer was trained with")


def _is_number(value: Value) -> bool:
    return any(number(one) is not None for one in value.args)


def _dropped(value: Value) -> Value | None:
    """What a random mask of its own shape is multiplied with, where the mask is 0 and 1."""
    if value.op == "mul" and len(value.args) == 2:
        pairs = ((value.args[0], value.args[1]), (value.args[1], value.args[0]))
    elif value.op == "where" and len(value.args) == 3 and (number(value.args[2]) == 0 or value.args[2].op == "zeros_like"):
        pairs = ((value.args[1], value.args[0]),) * 2
    elif value.op == "masked_fill" and len(value.args) == 3 and number(value.args[2]) == 0:
        pairs = ((value.args[0], value.args[1]),) * 2
    else:
        return None
    for units, mask in pairs:
        mask = bare(mask, shapes=False)
        filled = mask.args[0] if mask.op == "bernoulli" and mask.args else mask
        filled = next((one for one in filled.args if one.op.endswith("_like")), mask) if filled.op == "mul" else filled
        if filled is not mask and filled.op in ("full_like", "empty_like", "ones_like") and filled.args[0] is units:
            return units
        drawn = mask.args[0] if mask.op in ("gt", "lt", "ge", "le") and mask.args else None
        if drawn is not None and number(mask.args[1]) not in (0, 1) and (
            (drawn.op == "rand_like" and drawn.args[0] is units)
            or (drawn.op == "rand" and len(drawn.args) == 1 and drawn.args[0].op in ("shape", "size") and len(drawn.args[0].args) == 1 and drawn.args[0].args[0] is units)
        ):
            return units
    return None


def statistics_never_read(program: Program) -> Iterator[Remark]:
    """A layer that normalizes by the statistics of the batch keeps running ones, and nothing reads them."""
    computation = computation_of(program)
    for change in computation.of("register_buffer"):
        name, home = constant(change.args[1]) if len(change.args) > 1 else None, change.args[0]
        of = getattr(home, "of", None)
        if not isinstance(name, str) or not isinstance(of, ast.ClassDef) or any(last_word(one.func) == "getattr" for one in program.calls()):
            continue
        called = {id(call.func) for call in program.calls() if not is_own(call.func)}
        reads = [one for one in program.everywhere(ast.Attribute) if isinstance(one, ast.Attribute) and one.attr == name and id(one) not in called]
        inside = {id(one) for one in ast.walk(of)}
        own = [one for one in reads if is_own(one) and id(one) in inside]
        if not own or len(own) != len(reads) or not all(_in_its_update(program, one, name) for one in own):
            continue
        kept = [one.args[1] for one in computation.of("set_attribute") if one.data == name and one.args[0] is home]
        kept += [part for one in computation.of("lerp", "mul", "add", "copy") if isinstance(one.node, ast.Call) and any(each in own for each in ast.walk(one.node)) for part in one.args[1:]]
        taken = [one for part in kept for one in origins(part, ("mean", "var", "std")) if one.op in ("mean", "var", "std")]
        used = next((one for one in taken if any(user.op in ("sub", "add", "sqrt", "rsqrt") or (user.op == "div" and user.args[1] is one) for user in computation.users(one)) and _normalizes(computation, one)), None)
        if used is not None:
            yield Remark(change.node, f"{short(change.node)} keeps running statistics that nothing reads: in evaluation, too, the layer normalizes by {short(used.node)} (line {used.line}) of the batch")
            return


def _in_its_update(program: Program, node: ast.Attribute, name: str) -> bool:
    """Whether an attribute is read or written only to change it: in an assignment to it, or a method that ends in _."""
    for around in program.parents(node):
        if isinstance(around, (ast.Assign, ast.AugAssign)):
            targets = around.targets if isinstance(around, ast.Assign) else [around.target]
            return all(any(isinstance(one, ast.Attribute) and one.attr == name for one in ast.walk(target)) for target in targets)
        if isinstance(around, ast.Expr):
            call = around.value
            while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                if not call.func.attr.endswith("_") and call.func.attr not in ("data",):
                    return False
                call = call.func.value
            return node in ast.walk(call)
        if isinstance(around, ast.stmt):
            return False
    return False


def _normalizes(computation: Computation, statistic: Value) -> bool:
    """Whether what a statistic was taken of is divided by a root, in which it or its partner stands."""
    return any(
        one.op == "div" and len(one.args) == 2 and any(part.op in ("sqrt", "std") for part in origins(one.args[1])) and any(same(part, statistic.args[0]) for part in origins(one.args[0]))
        for one in computation.of("div")
    )
