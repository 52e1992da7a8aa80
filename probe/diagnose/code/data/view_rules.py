"""Views of samples, mixtures and orders of batches that no longer belong together: pairs, flips, permutations. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import LOADER, is_model, loaders_of, sample_of
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    argument,
    compares,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_read,
    is_true,
    iterated,
    last_word,
    names_of,
    names_read,
    number_in,
    operands,
    own,
    own_nodes,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("data")
_NULL = re.compile(r"null|uncond|no_class|empty_class", re.I)
_FLIPS = ("flip", "fliplr", "flipud", "hflip", "vflip", "rot90")
_OF_WHOLE_IMAGES = frozenset({"Linear", "LazyLinear", "Flatten", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d"})


@RULES.add("zipped-apart", "each input meets the partner of another one: nothing that they share can be learned", "make one data set of both: TensorDataset(a, b)")
def _zipped_apart(program: Program) -> Iterator[Remark]:
    """Two loaders that each shuffle one half of the same pairs, walked side by side into one network."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        over = iterated(loop)
        target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) and is_call(loop.iter, "enumerate") else loop.target
        if not is_call(over, "zip") or len(over.args) != 2 or not isinstance(target, ast.Tuple):
            continue
        loaders = [found[0] for one in over.args if len(found := loaders_of(flow, one)) == 1]
        halves = [_tensor_of(flow, one) for one in loaders]
        if len(halves) != 2 or not all(is_true(argument(one, "shuffle", 2)) and argument(one, "generator") is None for one in loaders):
            continue
        first, second = (flow.given(one) if one is not None else None for one in halves)
        together = first is not None and second is not None and first.node is second.node and first.place is not None and first.place != second.place
        parts = [names_of(one) for one in target.elts]
        meets = any(
            isinstance(one, ast.Call) and is_model(flow, one.func) and all(names_read(one) & part for part in parts) for one in ast.walk(loop)
        )
        if together and meets and len(parts) == 2 and halves[0] is not None and halves[1] is not None:
            yield Remark(loop, f"{text_of(over)} walks two loaders that shuffle apart: {text_of(halves[0])} and {text_of(halves[1])}, which belong together, come in two orders")


def _tensor_of(flow: Flow, loader: ast.Call) -> ast.expr | None:
    """The one tensor that a loader takes samples from."""
    made = flow.value(argument(loader, "dataset", 0))
    if isinstance(made, ast.Call) and last_word(made.func) == "TensorDataset":
        return made.args[0] if len(made.args) == 1 and isinstance(made.args[0], ast.Name) else None
    return made if isinstance(made, ast.Name) else None


@RULES.add("predictions-in-another-order", "the score compares each prediction with the label of another sample", "keep the labels of the batches beside the predictions, or do not shuffle")
def _another_order(program: Program) -> Iterator[Remark]:
    """Predictions collected from a loader that shuffles, compared with the labels as the data set keeps them."""
    flow = flow_of(program)
    every = [call for call in program.calls() if program.called(call) == LOADER]
    for scope in program.scopes():
        for node in own(scope, ast.Attribute):
            inner = node.value
            if not is_attribute(inner, "dataset") or not re.fullmatch(r"targets|labels|y|ys", node.attr) or not isinstance(inner.value, ast.Name):
                continue
            loaders = loaders_of(flow, inner.value) or every
            mixed = bool(loaders) and all(is_true(argument(one, "shuffle", 2)) for one in loaders)
            collected = next((one for one in own(scope, ast.Call) if _collects(program, one, inner.value.id)), None)
            if mixed and collected is not None and isinstance(program.parent.get(node), (ast.Assign, ast.Call, ast.Compare)):
                yield Remark(node, f"{short(collected)} gives predictions in the order in which {inner.value.id} shuffles, and {text_of(node)} are in that of the data set")


def _collects(program: Program, call: ast.Call, loader: str) -> bool:
    """Whether a function of the program joins what it computes for each batch of a loader that it is given."""
    local = program.local_function(call)
    given = program.arguments(local, call) if local is not None else {}
    name = next((word for word, one in given.items() if is_name(one, loader)), None)
    if local is None or name is None:
        return False
    loops = [one for one in own(local, ast.For) if is_name(iterated(one), name)]
    grows = any(is_method(one, "append", "extend") for loop in loops for one in ast.walk(loop))
    return grows and all(isinstance(one, ast.Call) and last_word(one.func) in ("cat", "concatenate", "stack", "vstack", "hstack") for one in returned(local))


@RULES.add("flips-not-undone", "the average is blurred: it adds up what the model says of different places", "flip each output back before the average")
def _not_undone(program: Program) -> Iterator[Remark]:
    """Outputs for each pixel of flipped images, averaged with those of the image as it is."""
    layers = {program.called(call).rpartition(".")[2] for call in program.calls()}
    if "Conv2d" not in layers or layers & _OF_WHOLE_IMAGES or any(name.startswith("torchvision.models") and "segmentation" not in name for name in map(program.called, program.calls())):
        return
    flow = flow_of(program)
    for call in program.calls():
        given = flow.value(call.args[0]) if len(call.args) == 1 else None
        either = given if isinstance(given, ast.IfExp) else None  # torch.flip(x, axis) if axis else x
        given = either.body if either is not None else given
        if not is_method(given, *_FLIPS) or not isinstance(given, ast.Call) or not is_model(flow, call.func):
            continue
        scope = program.scope(call)
        plain = program.operand(given)
        if plain is None:
            continue
        as_it_is = (either is not None and text_of(either.orelse) == text_of(plain)) or any(
            isinstance(one, ast.Call) and one.args and text_of(one.func) == text_of(call.func) and text_of(one.args[0]) == text_of(plain) for one in own_nodes(scope)
        )
        averaged = any(is_method(one, "mean") or (is_binary(one, ast.Div, ast.Mult) and any(number_in(side) in (0.5, 2, 3, 4) for side in (one.left, one.right))) for one in own_nodes(scope))
        flips = [one for one in own_nodes(scope) if is_method(one, *_FLIPS)]
        inputs = [one for one in flips if one is given or any(is_model(flow, around.func) for around in program.calls_around(one))]
        if as_it_is and averaged and len(flips) == len(inputs):
            yield Remark(call, f"{short(call)} is averaged as it is with that of {text_of(plain) if plain is not None else ''}: nothing flips it back")


@RULES.add("dropped-to-a-class", "the model without a label is the model of class 0, and class 0 is trained on all samples", "give the dropped labels the number that is kept for them")
def _dropped(program: Program) -> Iterator[Remark]:
    """Labels that are dropped at random for a guidance, and set to 0, where another number is kept for no label."""
    flow = flow_of(program)
    kept = next((one for one in program.everywhere(ast.Assign) if _NULL.search(last_word(one.targets[0])) and _is_number_of_none(one.value)), None)
    if kept is None:
        return
    for call in program.calls():
        zero = len(call.args) > 1 and (number_in(call.args[1]) == 0 or is_method(call.args[1], "zeros_like"))
        drop = call.args[0] if zero and is_method(call, "masked_fill", "masked_fill_", "where") else None
        drawn = drop is not None and any(compares(one, *ORDERS) and any(is_method(side, "rand", "rand_like") for side in flow.origins(one)) for one in flow.origins(drop))
        parent = program.parent.get(call)
        name = parent.targets[0] if isinstance(parent, ast.Assign) else None
        if drawn and isinstance(name, ast.Name):
            given = [one for one in own(program.scope(call), ast.Call) if is_model(flow, one.func) and any(is_read(word, name.id) for word in one.args)]
            if given and given[0].lineno >= call.lineno:
                yield Remark(call, f"{short(call)} makes 0, the first class, of dropped labels, and {short(kept)} (line {kept.lineno}) keeps another number for them")


def _is_number_of_none(node: ast.AST) -> bool:
    """Whether a value may be the number of a class beyond the others: a count, or a tensor filled with one."""
    if is_method(node, "full_like", "full") and isinstance(node, ast.Call) and len(node.args) > 1:
        node = node.args[1]
    words = last_word(node).lower()
    return ("class" in words or "label" in words) and ("n" in words or "num" in words) and not isinstance(node, ast.Call)


@RULES.add("adversary-of-another-range", "the judge tells real from generated by their range alone: real values are never below 0", "put both on one scale: x * 2 - 1, or a Sigmoid at the end of the generator")
def _another_range(program: Program) -> Iterator[Remark]:
    """Real samples from 0 to 1 and generated ones from -1 to 1, judged by one network."""
    flow = flow_of(program)
    bounded = {of.name for of in program.everywhere(ast.ClassDef) if _ends_in_tanh(program, of)}
    if not bounded:
        return
    for loop in program.everywhere(ast.For):
        loaders = loaders_of(flow, iterated(loop))
        scaled = _from_zero_to_one(flow, loaders[0]) if len(loaders) == 1 else None
        names = names_of(loop.target)
        if scaled is None:
            continue
        judged: dict[str, set[str]] = {}
        for call in ast.walk(loop):
            if isinstance(call, ast.Call) and len(call.args) == 1 and is_model(flow, call.func):
                value = flow.value(call.args[0])
                while is_method(value, "detach"):
                    value = flow.value(value.func.value)
                made = program.kind_name(value.func) if isinstance(value, ast.Call) else ""
                what = "generated" if made in bounded else "real" if is_name(call.args[0], *names) and len(flow.bindings(call.args[0])) == 1 else ""
                judged.setdefault(text_of(call.func), set()).add(what)
        judge = next((name for name, found in judged.items() if {"real", "generated"} <= found), None)
        if judge is not None:
            yield Remark(scaled, f"{short(scaled)} is from 0 to 1, and {judge} compares it with samples of a network that ends in tanh: from -1 to 1")


def _ends_in_tanh(program: Program, of: ast.ClassDef) -> bool:
    """Whether the last thing that a module computes is a tanh."""
    forward = program.method(of, "forward")
    values = [] if forward is None else [one for one in returned(forward) if one is not None]
    if len(values) != 1 or not isinstance(values[0], ast.Call):
        return False
    value: ast.AST = values[0]
    while is_method(value, "view", "reshape", "squeeze"):
        value = value.func.value
    if is_method(value, "tanh"):
        return True
    made = flow_of(program).value(value.func) if isinstance(value, ast.Call) else None
    last = made.args[-1] if isinstance(made, ast.Call) and last_word(made.func) == "Sequential" and made.args else made
    return isinstance(last, ast.Call) and last_word(last.func) == "Tanh"


def _from_zero_to_one(flow: Flow, loader: ast.Call) -> ast.expr | None:
    """What a data set of the program returns, where that is bytes divided by 255."""
    value = sample_of(flow, loader)
    if isinstance(value, ast.Tuple):
        value = value.elts[0]
    found = flow.value(value)
    return found if is_binary(found, ast.Div) and number_in(found.right) == 255 else None


# Mixtures of two samples ----------------------------------------------------------


@RULES.add("targets-not-mixed", "the loss asks for the wrong share of each target", "lam * loss(out, y) + (1 - lam) * loss(out, y[order])")
def _not_mixed(program: Program) -> Iterator[Remark]:
    """Inputs that are mixed with a permutation of themselves, and targets that are not, or the other way round."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        mixture = _mixture(flow, node.value)
        loops = program.loops(node)
        if mixture is None or not loops:
            continue
        share, order = mixture
        losses = [one for one in ast.walk(loops[0]) if isinstance(one, ast.Call) and is_loss(program, one) and len(one.args) > 1 and one.lineno > node.lineno]
        batches = names_of(loops[0].target) if isinstance(loops[0], ast.For) else set()
        plain = [one for one in losses if isinstance(one.args[1], ast.Name) and one.args[1].id in batches]
        ordered = any(isinstance(one, ast.Subscript) and text_of(one.slice) == order and names_of(one.value) & batches and not names_of(one.value) & names_of(node.value) for one in ast.walk(loops[0]))
        if plain and not ordered and order not in " ".join(text_of(one.args[1]) for one in losses):
            yield Remark(plain[0], f"{short(plain[0])} knows one target of each input, and {short(node)} mixes two")
        for one in ast.walk(loops[0]):
            if plain and ordered and is_binary(one, ast.Add) and (turned := _turned(flow, one, share, order)) is not None:
                yield Remark(one, f"{short(turned)} is the share of the sample that {short(node.value)} weights by 1 - {share}")


def _mixture(flow: Flow, node: ast.AST) -> tuple[str, str] | None:
    """The share and the order of `lam * x + (1 - lam) * x[order]`."""
    for first, second in operands(node) if is_binary(node, ast.Add) else ():
        if not is_binary(first, ast.Mult) or not is_binary(second, ast.Mult):
            continue
        for share, one in operands(first):
            for rest, other in operands(second):
                whole = is_binary(rest, ast.Sub) and number_in(rest.left) == 1 and text_of(rest.right) == text_of(share)
                if whole and isinstance(other, ast.Subscript) and text_of(other.value) == text_of(one) and isinstance(other.slice, ast.Name):
                    drawn = flow.program.called(flow.value(other.slice))
                    if drawn in ("torch.randperm", "numpy.random.permutation"):
                        return text_of(share), text_of(other.slice)
    return None


def _turned(flow: Flow, node: ast.BinOp, share: str, order: str) -> ast.AST | None:
    """The term of a loss that gives the first sample's share to the target of the second."""
    for term in (node.left, node.right):
        for factor, loss in operands(term) if is_binary(term, ast.Mult) else ():
            wanted = loss.args[1] if isinstance(loss, ast.Call) and is_loss(flow.program, loss) and len(loss.args) > 1 else None
            target = flow.value(wanted)
            if text_of(factor) == share and isinstance(target, ast.Subscript) and text_of(target.slice) == order:
                return term
    return None


@RULES.add("mixed-apart", "half of the loss asks for the labels of other samples than those that were mixed in", "draw one permutation, and take inputs and targets by it")
def _mixed_apart(program: Program) -> Iterator[Remark]:
    """Inputs that are mixed by one permutation, and targets that are taken by another."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.BinOp):
            mixed = _mixed_with_itself(flow, node)
            if mixed is None:
                continue
            taken = [
                one for one in own(scope, ast.Subscript)
                if one is not mixed and program.loops(one)[:1] == program.loops(node)[:1] and text_of(one.value) != text_of(mixed.value) and _drawn(flow, one.slice) is not None and is_name(one.value) and is_name(mixed.value)
            ]
            together = [one for one in taken if _belong(flow, one.value, mixed.value)]
            same = [one for one in taken if _drawn(flow, one.slice) is _drawn(flow, mixed.slice)]
            if together and not same:
                yield Remark(together[0], f"{short(together[0])} is in another random order than {short(mixed)}, which {short(node)} mixes in")


def _mixed_with_itself(flow: Flow, node: ast.BinOp) -> ast.Subscript | None:
    """x[order] of `lam * x + (1 - lam) * x[order]`."""
    for first, second in operands(node) if is_binary(node, ast.Add) else ():
        if is_binary(first, ast.Mult) and is_binary(second, ast.Mult):
            plain = {text_of(side) for side in (first.left, first.right)}
            for other in (second.left, second.right):
                if isinstance(other, ast.Subscript) and text_of(other.value) in plain and _drawn(flow, other.slice) is not None:
                    return other
    return None


def _drawn(flow: Flow, order: ast.AST) -> ast.AST | None:
    """The call that draws a permutation which an index is."""
    value = flow.value(order)
    return value if flow.program.called(value) in ("torch.randperm", "numpy.random.permutation") else None


def _belong(flow: Flow, one: ast.AST, other: ast.AST) -> bool:
    """Whether two variables come as parameters of one function, or from one batch."""
    first, second = (flow.bindings(side)[:1] for side in (one, other))
    together = [(a, b) for a in first for b in second if a.how == b.how]
    return any((a.how == "parameter" and flow.program.scope(a.node) is flow.program.scope(b.node)) or (a.how == "for" and a.node is b.node) for a, b in together)


@RULES.add("changed-by-two-draws", "the input is turned where its target is not, and the other way round", "draw once, and change both by it")
def _two_draws(program: Program) -> Iterator[Remark]:
    """An input and its target that are flipped in one way, each by a draw of its own."""
    for function in program.everywhere(ast.FunctionDef):
        given_back = [set(map(text_of, one.elts)) for one in returned(function) if isinstance(one, ast.Tuple)]
        found: list[tuple[ast.If, str, str, str]] = []
        for node in own(function, ast.If):
            drawn = any(is_method(one, "random", "rand", "uniform", "randint") or is_call(one, "random", "randint") for one in ast.walk(node.test) if isinstance(one, ast.Call))
            if drawn and len(node.body) == 1 and not node.orelse and isinstance(node.body[0], ast.Assign) and is_name(node.body[0].targets[0]):
                name, value = node.body[0].targets[0].id, node.body[0].value
                flips = isinstance(value, ast.Call) and last_word(value.func).lower() in (*_FLIPS, "horizontal_flip", "vertical_flip", "rotate", "transpose")
                if flips and name in names_read(value):
                    found.append((node, name, re.sub(rf"\b{re.escape(name)}\b", "x", text_of(value)), text_of(node.test)))
        for one, first, change, test in found:
            for other, second, same, again in found:
                pair = one.lineno < other.lineno and first != second and change == same and test == again and any({first, second} <= back for back in given_back)
                if pair and _from_two(program, function, first, second):
                    yield Remark(other, f"{first} and {second} are changed alike ({short(other.body[0])}), each by a draw of its own (lines {one.lineno} and {other.lineno})")


def _from_two(program: Program, function: ast.FunctionDef, first: str, second: str) -> bool:
    """Whether two variables begin as items of two stores: `self.images[i]` and `self.masks[i]`."""
    begun = []
    for name in (first, second):
        values = [one.value for one in program.bound.get((function, name), []) if one.whole is not None]
        stores = {part.attr for part in ast.walk(values[0]) if is_attribute(part) and is_name(part.value, "self")} if values and values[0] is not None else set()
        begun.append(stores)
    return bool(begun[0]) and bool(begun[1]) and not begun[0] & begun[1]
