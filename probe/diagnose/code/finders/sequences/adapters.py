"""Adapters beside frozen layers: whether they are trained, and whether they are merged as they were trained. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Instance, Value, bare, constant, origins
from probe.diagnose.code.finders.sequences.references import owner_of, switched
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_method, last_word, short
from probe.diagnose.code.traits.arithmetic import TURNED, Product, product
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.courses import STEPS, number_at
from probe.diagnose.code.traits.updates import is_optimizer, plain
from probe.diagnose.code.traits.weights import has_parameters


def merged_without_its_scale(program: Program) -> Iterator[Remark]:
    """The product of two matrices is added to the weights of a layer as it is, and the training multiplies it by a number."""
    computation = computation_of(program)
    scaled: dict[frozenset[int], tuple[Value, float]] = {}
    for _, loss in losses(computation):
        for value in origins(loss):
            factors = product(value) if value.op == "mul" else None
            for one in factors.above if factors is not None else ():
                pair = _applied(one)
                by = _times(factors, one) if pair is not None and factors is not None else None
                if pair is not None and by is not None and by != 1:
                    scaled.setdefault(pair, (value, by))
    for merged in computation.of("add", "add_") if scaled else ():
        for weight, change in (merged.args[:2], merged.args[1::-1]) if len(merged.args) == 2 and not merged.named else ():
            factors = product(change)
            for one in factors.above if bare(weight).op == "weight" else ():
                pair, times = _multiplied(one), _times(factors, one)
                if pair is None or pair not in scaled or times is None:
                    continue
                trained, by = scaled[pair]
                if abs(by - times) < 1e-6 * abs(by):
                    continue
                how = "as it is" if bare(change, *TURNED) is bare(one, *TURNED) else f"times {times:g}"
                yield Remark(merged.node, f"{short(merged.node)} adds {short(one.node)} {how} to the weights, and in the training it is multiplied by {by:g}: {short(trained.node)} (line {trained.line})")
                return


def _times(factors: Product, one: Value) -> float | None:
    """The number that one factor of a product is multiplied by; None if it is not known."""
    known = float(factors.sign)
    for other in factors.above:
        by = 1.0 if other is one else number_at(other, 1.0)
        if by is None or any(each.op in STEPS for each in origins(other, stop=("run",)) if other is not one):
            return None
        known *= by
    for other in factors.below:
        by = number_at(other, 1.0)
        if not by or any(each.op in STEPS for each in origins(other, stop=("run",))):
            return None
        known /= by
    return known


def _multiplied(value: Value) -> frozenset[int] | None:
    """The two parameters that a value is the product of."""
    value = bare(value, *TURNED)
    if value.op != "matmul" or len(value.args) != 2:
        return None
    sides = [_parameter(one) for one in value.args]
    return frozenset(id(one) for one in sides if one is not None) if None not in sides else None


def _parameter(value: Value) -> Value | None:
    """The parameter that a value is, or the layer whose weight it is."""
    value = bare(value, *TURNED)
    return value if value.op == "torch.nn.Parameter" else plain(value.args[0]) if value.op == "weight" and value.args else None


def _applied(value: Value) -> frozenset[int] | None:
    """The two parameters, or layers, that an input is multiplied by, one after the other."""
    found: list[int] = []
    for _ in range(8):
        value = bare(value, "dropout")
        if value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Linear":
            found.append(id(plain(value.args[0])))
            value = value.args[1]
        elif value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Dropout":
            value = value.args[1]
        elif value.op in ("matmul", "linear") and len(value.args) >= 2:
            side = _parameter(value.args[1])
            if side is None:
                both = _multiplied(value.args[1])
                return both if both is not None and not found else None
            found.append(id(side))
            value = value.args[0]
        else:
            break
    return frozenset(found) if len(found) == 2 else None


def adapters_frozen(program: Program) -> Iterator[Remark]:
    """Layers are put round those of a network, and then all of its parameters are frozen, the new ones too."""
    computation = computation_of(program)
    changes = list(switched(computation))
    made = [one for one in computation.values if is_optimizer(one)]
    used = {id(plain(one.args[0])) for _, loss in losses(computation) for one in origins(loss) if one.op == "run" and one.args}
    for put in computation.of("set_attribute", "setattr"):
        adapter, home = plain(put.args[-1]), plain(put.args[0])
        if not isinstance(adapter, Instance) or not isinstance(home, Instance):
            continue
        wrapped = [one for one in adapter.attributes.values() if one.op.startswith("torch.nn.") and has_parameters(one) and one.number < adapter.number]
        new = [one for one in adapter.attributes.values() if one.number > adapter.number and (has_parameters(one) or one.op == "torch.nn.Parameter")]
        frozen = [one for one in changes if constant(one.args[1]) is False and one.number > put.number and (of := owner_of(one)) is not None and any(home is each for each in layers_of(of)) and not one.where.under]
        if not wrapped or not new or not frozen or any(constant(one.args[1]) is not False and _may_touch(one, adapter, new) for one in changes if one.number > frozen[0].number):
            continue
        if made and made[-1].number > frozen[0].number and any(id(one) in used for one in (*wrapped, *new)):
            yield Remark(frozen[0].node, f"{short(frozen[0].node)} freezes all parameters of the network, also those of {short(new[0].node)} (line {new[0].line}), which {short(put.node)} (line {put.line}) has put into it before")
            return


def _may_touch(switch: Value, adapter: Value, new: list[Value]) -> bool:
    """Whether parameters that are thawed may be those of an adapter."""
    owner = owner_of(switch)
    if owner is None or switch.where.under:
        return True  # chosen one by one, by their names or by what they are part of
    return any(one is adapter or any(one is each for each in new) for one in layers_of(owner))


# Merged again and again ----------------------------------------------------------------------


def merged_in_each_pass(program: Program) -> Iterator[Remark]:
    """The product of two matrices is added to the weights of a layer in a loop that also trains, and nothing takes it out."""
    parameters: set[str | None] = {last_word(target) for node in program.everywhere(ast.Assign) if any(program.called(one) == "torch.nn.Parameter" for one in ast.walk(node.value) if isinstance(one, ast.Call)) for target in _stored(node)}
    if not parameters or _is_taken_out(program, parameters):
        return
    for node in program.everywhere(ast.AugAssign, ast.Call):
        changed = _added_to_weights(node)
        if changed is None or not isinstance(node, (ast.AugAssign, ast.Call)):
            continue
        function = next((one for one in program.parents(node) if isinstance(one, ast.FunctionDef)), None)
        given = [changed, *(one.value for one in program.everywhere(ast.Assign) if isinstance(changed, ast.Name) and program.scope(one) is program.scope(node) and changed.id in {last_word(each) for each in one.targets})]
        inside = [each for one in given for each in ast.walk(one)]
        multiplies = any((isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)) or (isinstance(one, ast.Call) and last_word(one.func) in ("matmul", "mm")) for one in inside)
        if not multiplies or len({last_word(one) for one in inside if isinstance(one, (ast.Name, ast.Attribute))} & parameters) < 2:
            continue
        places: list[ast.AST] = [one for one in program.calls() if function is not None and last_word(one.func) == function.name]
        for place in places or [node]:
            loop = next((one for one in program.loops(place) if any(is_method(each, "backward") for each in ast.walk(one))), None)
            between = [one for one in program.parents(place) if isinstance(one, ast.If) and any(each is loop for each in program.parents(one))]
            if loop is not None and all(isinstance(one.test, ast.Call) and last_word(one.test.func) in ("isinstance", "hasattr") for one in between):
                yield Remark(node, f"{short(node)} is done once more in each pass of the loop of line {getattr(loop, 'lineno', 0)}, which goes on training, and nothing takes out what was added before")
                return


def _stored(node: ast.Assign) -> list[ast.expr]:
    return [each for target in node.targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _is_weight(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and (node.attr == "weight" or (node.attr == "data" and isinstance(node.value, ast.Attribute) and node.value.attr == "weight"))


def _added_to_weights(node: ast.AST) -> ast.expr | None:
    """What is added in place to the weights of a layer."""
    if isinstance(node, ast.AugAssign):
        return node.value if isinstance(node.op, ast.Add) and _is_weight(node.target) else None
    return node.args[0] if is_method(node, "add_") and node.args and _is_weight(node.func.value) else None


def _is_taken_out(program: Program, parameters: set[str | None]) -> bool:
    """Whether weights get back what they were, or the matrices begin anew after they were added."""
    for node in program.everywhere(ast.AugAssign, ast.Assign, ast.Call):
        if isinstance(node, ast.AugAssign):
            if isinstance(node.op, ast.Sub) and _is_weight(node.target):
                return True
        elif isinstance(node, ast.Assign):
            if any(_is_weight(one) for one in _stored(node)):
                return True
        elif isinstance(node, ast.Call):
            word = last_word(node.func)
            if word in ("load_state_dict", "deepcopy", "reset_parameters") or (word == "sub_" and is_method(node, "sub_") and _is_weight(node.func.value)):
                return True
            around = next((one for one in program.parents(node) if isinstance(one, ast.FunctionDef)), None)
            named = {last_word(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))} & (parameters | {"weight"})
            if word in ("zero_", "zeros_", "copy_", "fill_", "normal_", "uniform_", "kaiming_uniform_") and named and ((around is not None and around.name != "__init__") or program.loops(node)):
                return True
    return False
