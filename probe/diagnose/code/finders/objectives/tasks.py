"""Labels that only some tasks have, and models that are adapted to one task after another. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Instance,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.losses.bootstraps import errors
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_method, last_word, number_in, short, text_of
from probe.diagnose.code.traits.backwards import NUMBERS, flows, has_gradient, layers_of
from probe.diagnose.code.traits.basic import LOSSES, losses, reduction_of
from probe.diagnose.code.traits.updates import backwards, is_optimizer, modules, optimizer_of, plain

FINDERS = Finders()
_ABSENT, _PRESENT = ("isnan", "isna", "isnull"), ("isfinite", "notna", "notnull")
_MASKING = ("part", "where", "masked_fill", "masked_select", "mul", "div", "index_select", "gather", "compress")

_COUNTS = ("len", "size", "shape", "max")


# Missing labels --------------------------------------------------------------


def missing_labels_counted(program: Program) -> Iterator[Remark]:
    """A number is put where labels are missing, and the loss counts it as a label like all others."""
    computation = computation_of(program)
    in_losses = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    told = {id(one.node) for one in in_losses.values()}
    for loss, target in _targets(computation):
        if id(loss) not in in_losses or _is_masked(computation, loss):
            continue
        filled = next((one for one in _data(target) if _source(one) is not None), None)
        if filled is not None and (value := _source(filled)) is not None and _may_be_missing(computation, filled, value, in_losses) and not _is_left_out(loss, filled):
            yield Remark(loss.node, f"{short(loss.node)} counts what {short(filled.node)} (line {filled.line}) puts where labels are missing as if they were labels")
            return
        call = next((one for one in _defaults(program, target) if not any(id(node) in told for node in _asks(program, one))), None)
        if call is not None and _asks(program, call):
            yield Remark(loss.node, f"{short(loss.node)} counts what {short(call)} (line {call.lineno}) gives where a label is missing as if it were one, and leaves {short(_asks(program, call)[0])} aside")
            return


def _targets(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Each comparison of a prediction with a target, and its target."""
    for value in computation.of(*LOSSES):
        if len(value.args) > 1 and not value.named.keys() & {"weight", "mask"} and len(value.args) == 2:
            yield value, value.args[1]
    yield from ((value, target) for value, prediction, target in errors(computation) if value.op == "sub" and any(one.op == "run" for one in origins(prediction, stop=("run",))))


def _is_masked(computation: Computation, loss: Value) -> bool:
    """Whether some elements of a loss are left out, or weigh less, before it is averaged over samples."""
    if loss.op in LOSSES and reduction_of(loss) in ("mean", "sum"):
        return False
    waiting, seen = [loss], {id(loss)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            others = [one for one in user.args if one is not at and number(one) is None]
            if user.op in _MASKING and others and not (user.op == "mul" and all(one is at for one in user.args)):
                return True
            over = user.argument("dim", 1)
            ends = user.op in ("mean", "sum", "backward", "item") and (over is None or number(over) == 0)
            if not ends and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False


def _data(target: Value) -> Iterator[Value]:
    """A target, and what it was before a data set gave it, row by row."""
    for _ in range(16):
        yield target
        takes = target.op == "part" and len(target.args) == 2 and target.args[1].op == "index"
        if not target.args or target.op in ("either", "stack", "set_item") or not (takes or target.op in KEPT or target.op in SHAPED or target.op == "rows"):
            return
        target = target.args[0]


def _source(value: Value) -> Value | None:
    """x of a value that is x, and a number where x is missing."""
    if value.op == "nan_to_num" and value.args:
        return value.args[0]
    if value.op in ("masked_fill", "set_item") and len(value.args) == 3 and _is_number(value.args[2]) and _absent(value.args[1], value.args[0]):
        return value.args[0]
    if value.op == "where" and len(value.args) == 3:
        test, first, second = value.args
        if _is_number(first) and _absent(test, second):
            return second
        return first if _is_number(second) and _present(test, first) else None
    return None


def _is_number(value: Value) -> bool:
    return number(value) is not None or bare(value).op in ("zeros_like", "zeros")


def _absent(test: Value, of: Value) -> bool:
    """Whether a condition is that a value is missing."""
    test = bare(test)
    inverted = test.op in ("invert", "not") and bool(test.args)
    return (test.op in _ABSENT and bool(test.args) and same(bare(test.args[0]), bare(of))) or (inverted and _present(test.args[0], of))


def _present(test: Value, of: Value) -> bool:
    test = bare(test)
    inverted = test.op in ("invert", "not") and bool(test.args)
    return (test.op in _PRESENT and bool(test.args) and same(bare(test.args[0]), bare(of))) or (inverted and _absent(test.args[0], of))


def _may_be_missing(computation: Computation, filled: Value, source: Value, in_losses: dict[int, Value]) -> bool:
    """Whether the program says that labels are missing: it sets them so, or asks elsewhere which ones are, and in no loss."""
    made = any(one.op == "set_item" and _is_missing(one.args[2]) for one in origins(source) if len(one.args) == 3)
    asked = [one for one in computation.of(*_ABSENT, *_PRESENT) if not any(one is part for part in origins(filled))]
    return (made or any(_asked_for_rows(computation, one) for one in asked)) and not any(id(one) in in_losses for one in asked)


def _asked_for_rows(computation: Computation, value: Value) -> bool:
    """Whether what is there is chosen by a condition: it is an index, or a factor."""
    for user in computation.users(value):
        if user.op in ("invert", "float", "part", "tuple", "to") and user.args[:1] == (value,):
            return _asked_for_rows(computation, user) or user.op == "float"
        if user.op in ("part", "mul", "masked_select", "sum", "and"):
            return True
    return False


def _is_missing(value: Value) -> bool:
    if value.op == "@library":
        return str(value.data).endswith((".nan", ".NaN"))
    return value.op == "float" and bool(value.args) and str(constant(value.args[0])).lower() == "nan"


def _is_left_out(loss: Value, filled: Value) -> bool:
    """Whether a loss ignores the number that is put where labels are missing."""
    put = filled.named.get("nan") or (filled.args[1] if filled.op == "nan_to_num" and len(filled.args) > 1 else next((one for one in filled.args if number(one) is not None), None))
    ignored = loss.named.get("ignore_index")
    left_out = number(ignored) if ignored is not None else -100.0
    return loss.op in ("cross_entropy", "nll_loss") and left_out is not None and (number(put) if put is not None else 0.0) == left_out


def _defaults(program: Program, target: Value) -> Iterator[ast.Call]:
    """The calls `labels.get(name, 0.0)` whose number a target may hold."""
    for one in origins(target, stop=("run",)):
        call = one.node if isinstance(one.node, ast.Call) else program.parent.get(one.node)
        if not isinstance(call, ast.Call) or not is_method(call, "get") or len(call.args) != 2 or one.node not in (call, call.args[1]):
            continue
        default = call.args[1]
        if number_in(default.operand if isinstance(default, ast.UnaryOp) else default) is not None:
            yield call


def _asks(program: Program, call: ast.Call) -> list[ast.Compare]:
    """The places where a program asks whether a label that `call` gets is there."""
    assert isinstance(call.func, ast.Attribute)
    of, key, scope = text_of(call.func.value), text_of(call.args[0]), program.scope(call)
    return [
        one for one in ast.walk(scope)
        if isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.In, ast.NotIn)) and text_of(one.comparators[0]) == of and text_of(one.left) == key
    ]


# Items that were seen ---------------------------------------------------------


def seen_items_ranked(program: Program) -> Iterator[Remark]:
    """The best of all items are looked up among those held out, and those that the model was trained on, or is shown, are
    ranked with them."""
    computation = computation_of(program)
    tops = [one for one in computation.of("topk", "argsort", "argpartition") if one.args]
    if not tops or any(isinstance(one, ast.NotIn) for top in tops for function in top.where.functions for node in ast.walk(function) if isinstance(node, ast.Compare) for one in node.ops):
        return
    learned = {id(one): one for _, loss in losses(computation) for one in origins(loss, stop=_COUNTS)}
    for top in tops:
        scores = _scores(top.args[0])
        why = None if id(top) in learned else _learns_pairs(scores, learned) or _rebuilds(computation, scores, learned)
        held = _looked_up(computation, top) if why is not None else None
        if why is not None and held is not None and id(held) not in learned and not any(one is held for one in origins(scores, stop=_COUNTS)):
            yield Remark(top.node, f"{short(top.node)} ranks all items, those {why} among them: they take the places of those that {short(held.node)} (line {held.line}) holds")
            return


def _scores(value: Value) -> Value:
    """What is ranked, without what leaves the order as it is, and without what is added for each item."""
    for _ in range(12):
        value = bare(value, "neg", "sigmoid", "softmax", "log_softmax")
        main = [one for one in value.args if bare(one).op in ("matmul", "einsum", "run")] if value.op == "add" else []
        if len(main) != 1:
            return value
        value = main[0]
    return value


def _learns_pairs(scores: Value, learned: dict[int, Value]) -> str | None:
    """Whether scores are products of the vectors of users and of all items, and both were trained by pairs."""
    if scores.op != "matmul" or len(scores.args) != 2:
        return None
    tables = [_table(one) for one in scores.args]
    whole = bare(scores.args[1], "t", "T", "transpose").op == "weight"
    asked = {id(one.args[0]) for one in learned.values() if one.op == "run" and len(one.args) > 1}
    if None in tables or tables[0] is tables[1] or not whole or not all(id(one) in asked for one in tables):
        return None
    return "of the pairs that the model was trained on"


def _table(value: Value) -> Value | None:
    """The embedding whose rows a value is."""
    value = bare(value, "t", "T", "transpose")
    if value.op == "part" and value.args:
        value = bare(value.args[0])
    of = value.args[0] if value.op in ("run", "weight") and value.args else None
    return of if of is not None and of.op == "torch.nn.Embedding" and (value.op == "weight" or bare(value.args[1]).op != "run") else None


def _rebuilds(computation: Computation, scores: Value, learned: dict[int, Value]) -> str | None:
    """Whether scores are what a network makes of items, and its loss asks it to give back those that it gets."""
    if scores.op != "run":
        return None
    trained = [one for one in learned.values() if one.op == "run" and one is not scores and one.args[0] is scores.args[0]]
    for one in trained:
        inside = {id(each) for each in origins(one)}
        for value in computation.of("mul", "binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss"):
            sides = [bare(each, "log_softmax", "softmax", "sigmoid") for each in value.args[:2]]
            if id(value) in learned and any(each is one for each in sides) and any(id(each) in inside and each is not one for each in sides):
                return "that the model is shown"
    return None


def _looked_up(computation: Computation, top: Value) -> Value | None:
    """What the ranked items are looked up in; None where something else is done with them before."""
    waiting, seen = [top], {id(top)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            others = [one for one in user.args if one is not at]
            if user.op in ("intersection", "gather", "isin", "in", "and", "eq", "take_along_dim") and others:
                return next((one for one in others if number(one) is None), None)
            if user.op in ("sub", "difference", "set_item", "masked_fill", "where"):
                return None
            takes = user.op == "part" and user.args[:1] == (at,)
            if user.op == "part" and not takes and not any(one.op == "slice" for one in user.args):
                return user.args[0]
            if id(user) not in seen and (takes or user.op in KEPT or user.op in SHAPED or user.op in ("indices", "set", "tuple", "element", "numpy")):
                seen.add(id(user))
                waiting.append(user)
    return None


# Models that are adapted -----------------------------------------------------------


@FINDERS.add("cut-off-from-the-loss")
def _adapted_apart(program: Program) -> Iterator[Remark]:
    """An optimizer steps a network, and each loss is one of a copy of it, or of copies of its parameters without their graph."""
    computation = computation_of(program)
    found = list(backwards(computation))
    stepped = {id(made): made for one in computation.of("step") if (made := optimizer_of(one)) is not None}
    if not found or any(one.data == "grad" for one in computation.of("set_attribute")) or any(True for one in computation.of("grad") if len(one.args) == 1):
        return
    for optimizer in stepped.values():
        held = modules(optimizer)
        if len(held) != 1 or any(plain(one.args[0]) is held[0] for one in computation.of("load_state_dict")):
            continue
        of, begins = held[0], _starts(held[0])
        if any(flows(part, begins) for call, loss in found for part in (loss, *call.args)) or not any(has_gradient(loss) or any(one.op == "requires_grad_" for one in origins(loss)) for _, loss in found):
            continue
        for call, loss in found:
            copied = next((one for one in _parents(loss, computation) if _is_copy(one, of)), None)
            cut = next((one for one in origins(loss) if one.op in NUMBERS and one.args and any(begins(part) for part in origins(one.args[0]))), None)
            if copied is not None:
                yield Remark(call.node, f"{short(call.node)} gives gradients to {short(copied.node)} (line {copied.line}) alone, and the optimizer of line {optimizer.line} steps the network that it is a copy of: it gets none")
                return
            if cut is not None:
                yield Remark(cut.node, f"{short(cut.node)} is cut off from what the optimizer of line {optimizer.line} steps, and {short(call.node)} (line {call.line}) gives no gradient to it on another way")
                return


def _starts(network: Value) -> Callable[[Value], bool]:
    """Whether a value is a parameter of a network, or what one of its layers gives."""
    inside = {id(one) for one in layers_of(network)}
    return lambda one: (one.op == "torch.nn.Parameter" and id(one) in inside) or (one.op in _OF_LAYERS and bool(one.args) and id(plain(one.args[0])) in inside)


_OF_LAYERS = ("parameters", "named_parameters", "run", "weight", "bias")


def _parents(loss: Value, computation: Computation) -> Iterator[Value]:
    """The networks whose layers a loss is computed by."""
    layers = {id(plain(one.args[0])) for one in origins(loss) if one.op == "run" and one.args}
    for one in computation.values:
        if (isinstance(one, Instance) or one.op == "torch.nn.Sequential") and any(id(each) in layers for each in layers_of(one)):
            yield one


def _is_copy(value: Value, of: Value) -> bool:
    """Whether a network is a copy of another one."""
    if isinstance(value, Instance):
        return value.data is of
    return isinstance(value.node, ast.Call) and last_word(value.node.func) == "deepcopy" and value.op == of.op and len(value.args) == len(of.args)


def adapted_from_task_to_task(program: Program) -> Iterator[Remark]:
    """A trained model is adapted to each task by an optimizer of its own, scored on it, and goes into the next task as it is."""
    computation = computation_of(program)
    made = [one for one in computation.values if is_optimizer(one)]
    for optimizer in made:
        held = modules(optimizer)
        loop = optimizer.where.loops[-1] if optimizer.where.loops else None
        if len(held) != 1 or loop is None or optimizer.where.maybe or loop in held[0].where.loops or held[0].op == "@input":
            continue
        steps = [one for one in computation.of("step") if optimizer_of(one) is optimizer]
        begins = _starts(held[0])
        scored = next((one for one in computation.of("run") if begins(one) and one.where.no_grad and loop in one.where.loops and steps and one.number > steps[-1].number), None)
        losses_here = [loss for call, loss in backwards(computation) if loop in call.where.loops and flows(loss, begins)]
        if scored is None or not losses_here or not _drawn_for_each(losses_here[0], loop) or not _drawn_for_each(scored, loop):
            continue
        inside = {id(one) for one in layers_of(held[0])}
        if not _averaged(computation, scored, loop) or _restored(computation, loop, inside) or not _trained_before(computation, optimizer, loop, inside, made):
            continue
        yield Remark(optimizer.node, f"{short(optimizer.node)} adapts the model itself to each task of the loop of line {getattr(loop, 'lineno', 0)}, and {short(scored.node)} (line {scored.line}) scores it: nothing brings its weights back before the next task")
        return


def _averaged(computation: Computation, scored: Value, loop: ast.AST) -> bool:
    """Whether what a loop scores is averaged over its passes."""
    after = [one for one in computation.of("mean", "nanmean", "median", "div") if one.number > scored.number and loop not in one.where.loops]
    return any(any(part is scored for part in origins(one)) for one in after)


def _drawn_for_each(value: Value, loop: ast.AST) -> bool:
    """Whether a value is made of data that each pass of a loop gets anew, at its own level."""
    return any(one.where.loops[-1:] == (loop,) and one.op not in ("run", "@object") and one.op not in _MADE_HERE for one in origins(value, stop=("parameters",)) if not one.op.startswith("torch."))


_MADE_HERE = frozenset({"zeros", "ones", "range", "index", "count", "len", "tuple", "list", "slice", "add", "mul", "div", "sub", "relu", "tanh", "no_grad"})


def _restored(computation: Computation, loop: ast.AST, inside: set[int]) -> bool:
    """Whether the weights of a network are set in a loop, by what is not an optimizer."""
    for one in computation.of("load_state_dict", "copy", "set_attribute", "lerp", "set_item", "load", "restore", "reset", "reset_parameters"):
        if loop in one.where.loops and one.args and (one.op not in ("copy", "set_attribute", "lerp", "set_item", "load") or one.data == "data" or one.op in ("copy", "lerp")):
            return True
        if loop in one.where.loops and one.args and id(plain(one.args[0])) in inside:
            return True
    return False


def _trained_before(computation: Computation, optimizer: Value, loop: ast.AST, inside: set[int], made: list[Value]) -> bool:
    """Whether a network was trained, or its weights were read, before a loop."""
    for other in made:
        if other is not optimizer and other.number < optimizer.number and loop not in other.where.loops and any(id(one) in inside for held in modules(other) for one in layers_of(held)):
            return True
    for one in computation.of("load_state_dict", "parameters", "named_parameters"):
        if one.number < optimizer.number and loop not in one.where.loops and one.args and id(plain(one.args[0])) in inside:
            changed = one.op == "load_state_dict" or any(each.op in ("add", "sub", "copy", "lerp") and each.where.no_grad and any(part is one for part in origins(each)) for each in computation.of("add", "sub", "copy", "lerp"))
            if changed:
                return True
    return False
