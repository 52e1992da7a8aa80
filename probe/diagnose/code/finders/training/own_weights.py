"""Weights that are kept, loaded, averaged, replaced and thawed. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Code, Instance, Table, Value, bare, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_method, last_word, mentions, returned, short
from probe.diagnose.code.traits.backwards import CUTS, layers_of
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.held import contents
from probe.diagnose.code.traits.updates import backwards, is_optimizer, modules, optimizer_of, plain, runs
from probe.diagnose.code.traits.weights import (
    dict_of,
    first_names,
    has_parameters,
    has_statistics,
    in_place,
    names_of_module,
    shared,
    weights_of,
)

FINDERS = Finders()


def _trains(computation: Computation, module: Value) -> list[Value]:
    """The steps of optimizers that hold a network."""
    return [
        one for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None and any(held is module for held in modules(optimizer))
    ]


def _in(value: Value, loops: tuple[ast.AST, ...]) -> bool:
    return value.where.loops[: len(loops)] == loops


@FINDERS.add("kept-without-a-copy")
def _kept_without_a_copy(program: Program) -> Iterator[Remark]:
    """A network's own weights are kept while it is trained further, and loaded into it later, or, where they are those
    of a chosen epoch, into another one."""
    computation = computation_of(program)
    for load in computation.of("load_state_dict"):
        if len(load.args) < 2:
            continue
        module = plain(load.args[0])
        for taken in shared(load.args[1]):
            of = plain(taken.args[0])
            if (of is not module and not taken.where.maybe) or taken.number > load.number or runs(taken) != runs(load):
                continue
            looped = len(taken.where.loops) > len(load.where.loops) and _in(taken, load.where.loops)
            steps = _trains(computation, of)
            after = any(taken.number < one.number < load.number for one in steps) or any(looped and _in(one, taken.where.loops) for one in steps)
            if after and not any(one.op in ("update", "set_item") for one in computation.users(taken)):
                yield Remark(taken.node, f"{short(taken.node)} gives the weights themselves, not a copy: the steps after it change them too, before line {load.line} loads them")


@FINDERS.add("kept-without-a-copy")
def _saved_without_a_copy(program: Program) -> Iterator[Remark]:
    """A network's own weights are kept in a loop that trains it further, and saved after the loop as those of then."""
    computation = computation_of(program)
    for save in computation.of("save"):
        for taken in shared(save.args[0]) if save.args else ():
            loops = taken.where.loops
            kept = taken.where.maybe and len(loops) > len(save.where.loops) and _in(taken, save.where.loops)
            if kept and taken.where.functions[: len(save.where.functions)] == save.where.functions and any(_in(one, loops) for one in _trains(computation, plain(taken.args[0]))):
                yield Remark(taken.node, f"{short(taken.node)} gives the weights themselves, not a copy: the steps after it change them too, before line {save.line} saves them")


@FINDERS.add("snapshots-alike")
def _snapshots_alike(program: Program) -> Iterator[Remark]:
    """The weights of one network are kept in a list in each pass of the loop that trains it, without a copy."""
    computation = computation_of(program)
    for value in computation.of("append"):
        if len(value.args) != 2 or not value.where.loops or value.args[0].where.loops == value.where.loops:
            continue
        for taken in shared(value.args[1]):
            module = plain(taken.args[0])
            loops = value.where.loops
            outside = len(module.where.loops) < len(loops) and module.op in ("@input", "@object", "torch.nn.Sequential", "run")
            kept = taken.op != "parameters" or bare(value.args[1]).op in ("list", "tuple", "dict_of", "dict")
            if outside and kept and taken.where.loops == loops and any(_in(one, loops) for one in _trains(computation, module)):
                yield Remark(value.node, f"{short(value.node)} keeps the weights themselves in each pass, and the steps change all of them")
                break


@FINDERS.add("average-shares-the-weights")
def _average_shares_the_weights(program: Program) -> Iterator[Remark]:
    """An average is changed in place, and holds the parameters of the network that it averages."""
    seen: set[ast.AST] = set()
    computation = computation_of(program)
    for value in computation.of("mul", "lerp", "add"):
        if not in_place(value) or not value.args or value.node in seen:
            continue
        target = value.args[0]
        later = [one for other in computation.users(value) if in_place(other) for one in other.args[1:]]
        given = [one for part in (*value.args[1:], *later) for inside in origins(part, ("parameters", "named_parameters")) for one in shared(inside)]
        for one in shared(target):
            own = any(other is not one and plain(other.args[0]) is plain(one.args[0]) for other in given)
            if own and any(each.op in ("data", "detach") for each in origins(target)):
                seen.add(value.node)
                yield Remark(value.node, f"{short(value.node)} changes the parameters themselves: what {short(target.node)} holds (line {one.line}) is no copy")
                break


@FINDERS.add("alias-for-a-copy")
def _alias_for_a_copy(program: Program) -> Iterator[Remark]:
    """A network is given its own weights, under two names."""
    computation = computation_of(program)
    for load in computation.of("load_state_dict"):
        state = load.args[1] if len(load.args) > 1 else None
        if state is None or state.op != "state_dict" or not state.args or state.where.loops != load.where.loops:
            continue
        one, other = plain(load.args[0]), plain(state.args[0])
        many = not _in(load, one.where.loops)  # made once per pass of another loop, as the members of a population are
        if one is other and not many and one.op != "either" and len(computation.users(state)) == 1 and _has_two_names(load, state):
            yield Remark(load.node, f"{short(load.node)} loads a network into itself: both names hold one network")


@FINDERS.add("alias-for-a-copy")
def _shallow_copy(program: Program) -> Iterator[Remark]:
    """A network that an optimizer trains is copied without its weights, and the copy is used."""
    computation = computation_of(program)
    for copy in computation.of("copy.copy"):
        if _trains(computation, plain(copy.args[0])):
            yield Remark(copy.node, f"{short(copy.node)} copies the object and not its weights: the steps that train the one change the other")


@FINDERS.add("alias-for-a-copy")
def _called_with_the_same_weights(program: Program) -> Iterator[Remark]:
    """A network that stands for an earlier one is called without gradients, with the weights that the steps change."""
    computation = computation_of(program)
    for call in computation.of("torch.func.functional_call", "torch.nn.utils.stateless.functional_call"):
        for taken in shared(call.args[1]) if len(call.args) > 1 and call.where.no_grad else ():
            of = plain(taken.args[0])
            outside = len(taken.where.loops) < len(call.where.loops) and _in(call, taken.where.loops)
            another = of is not plain(call.args[0]) or any(one is call for _, loss in losses(computation) for one in origins(loss))
            if outside and another and any(_in(one, call.where.loops) for one in _trains(computation, of)):
                yield Remark(taken.node, f"{short(taken.node)} gives the weights themselves, not a copy: the steps change those that {short(call.node, 50)} (line {call.line}) is to call the earlier network with")


def _has_two_names(load: Value, state: Value) -> bool:
    """Whether the network that is loaded and the one whose state is taken are written in two ways: where they were made, or
    in the two calls (a network without its wrapper is no other name)."""
    if short(load.args[0].node) != short(state.args[0].node):
        return True
    calls = [one.node.func.value for one in (load, state) if is_method(one.node, "load_state_dict", "state_dict")]
    return len({ast.unparse(one).removesuffix(".module") for one in calls}) == 2


@FINDERS.add("alias-for-a-copy")
def _moved_towards_itself(program: Program) -> Iterator[Remark]:
    """The parameters of a network are moved in place towards its own, under two names."""
    computation = computation_of(program)
    for value in computation.of("mul", "lerp", "copy"):
        if not in_place(value) or value.args[0].op != "element" or value.args[0].args[0].op != "parameters":
            continue
        own = value.args[0].args[0]
        chain = (value, *(one for one in computation.users(value) if in_place(one)))
        for one in (bare(each) for other in chain for each in other.args[1:]):
            twin = one.args[0] if one.op == "element" and one.args[0].op == "parameters" and one.args[0] is not own else None
            if twin is not None and plain(twin.args[0]) is plain(own.args[0]) and _in(value, plain(own.args[0]).where.loops) and plain(own.args[0]).op != "either" and short(own.node) != short(twin.node):
                yield Remark(value.node, f"{short(value.node)} moves a network towards itself: {short(own.node)} and {short(twin.node)} are of one network")
                break


@FINDERS.add("averaged-without-statistics")
def _averaged_without_statistics(program: Program) -> Iterator[Remark]:
    """The parameters of a network with batch normalization are averaged, and its running statistics are not."""
    computation = computation_of(program)
    if any(one.op.endswith(("update_bn", "buffers", "bn_update", "reset_running_stats")) for one in computation.values):
        return
    for value in computation.values:
        if value.op == "torch.optim.swa_utils.AveragedModel" and value.args and constant(value.argument("use_buffers", 4)) is not True:
            used = [one for one in computation.of("run") if plain(one.args[0]) is value]
            if used and has_statistics(value.args[0]) and not _computed_anew(computation, value):
                yield Remark(value.node, f"{short(value.node)} averages the parameters alone, and line {used[0].line} runs it with statistics of batch normalization that are not its own")
    for value in computation.of("lerp", "mul", "copy"):
        target = value.args[0] if value.args else None
        if target is None or not in_place(value) or target.op != "element":
            continue
        given = [bare(one) for one in value.args[1:]] + [bare(one) for other in computation.users(value) if in_place(other) for one in other.args[1:]]
        for copy in weights_of(target):
            of = copy.args[0] if copy.op == "deepcopy" else copy.data if isinstance(copy, Instance) and isinstance(copy.data, Value) else None
            if of is None or not has_statistics(of) or not any(plain(of) is each for one in given for each in weights_of(one)):
                continue
            used = [one for one in computation.of("run") if plain(one.args[0]) is copy]
            loaded = [one for one in computation.of("load_state_dict") if plain(one.args[0]) is copy]
            if used and not loaded and not _computed_anew(computation, copy):
                yield Remark(value.node, f"{short(value.node)} averages the parameters alone, and line {used[0].line} runs the average with statistics of batch normalization that are not its own")


def _computed_anew(computation: Computation, average: Value) -> bool:
    """Whether samples go through an average in train mode without gradients, for its statistics."""
    modes = [one.number for one in computation.of("train") if plain(one.args[0]) is average and constant(one.argument("mode", 1)) is not False]
    return any(one.where.no_grad and plain(one.args[0]) is average and min(modes) < one.number for one in computation.of("run") if modes)


@FINDERS.add("replaced-after-the-optimizer")
def _replaced_after_the_optimizer(program: Program) -> Iterator[Remark]:
    """A layer is put into a network after the optimizer took its parameters, and no optimizer gets the new ones."""
    computation = computation_of(program)
    made = [one for one in computation.values if is_optimizer(one)]
    for value in computation.of("set_attribute", "append", "set_item", "setattr") if made else ():
        layer, home = value.args[-1], plain(value.args[0])
        while home.op == "set_item":
            home = plain(home.args[0])
        if value.op != "set_attribute" and (home.op not in _HOMES if value.op != "setattr" else not isinstance(layer, Instance)):
            continue
        before = [one for one in made if one.number < layer.number and runs(one) == runs(value) and any(_within(home, held) for held in modules(one))]
        after = any(one.number > value.number for one in made) or any(True for _ in computation.of("add_param_group"))
        steps = [one for one in computation.of("step") if one.number > value.number and any(part is each for part in one.args for each in before)]
        if not before or after or not steps or not isinstance(value.node, (ast.Attribute, ast.Call, ast.Subscript)):
            continue
        if has_parameters(layer) and home.number < before[0].number and value.op != "setattr":
            done = "is made anew" if value.op == "set_attribute" else "gets a new layer" if value.op == "set_item" else "adds a layer"
            yield Remark(value.node, f"{short(value.node)} {done} after the optimizer of line {before[0].line} took the parameters: no optimizer holds the new ones")
        elif (new := _new_parameters(computation, layer, before[0])) is not None:
            yield Remark(value.node, f"{short(value.node)} puts new parameters into the network (line {new.line}) after the optimizer of line {before[0].line} took those that were there: no optimizer holds the new ones")


_HOMES = ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict")


def _new_parameters(computation: Computation, layer: Value, optimizer: Value) -> Value | None:
    """A parameter or layer that an object of the program has made after an optimizer, beside the layer whose place it takes, or
    that a loss is computed with."""
    if not isinstance(layer, Instance) or layer.of is None or layer.number < optimizer.number:
        return None
    inside = list(contents(layer, computation))
    new = [one for one in inside if one.number > optimizer.number and (has_parameters(one) or one.op == "torch.nn.Parameter")]
    frozen = any(_set_to(one) is False and any(plain(one.args[0]) is each for each in (layer, *new)) for one in computation.of("requires_grad_"))
    if not new or frozen or any(constant(one.argument("requires_grad", 1)) is False for one in new):
        return None
    known = {id(part) for held in modules(optimizer) for part in contents(held, computation)}
    around = any(id(one) in known and one is not layer and one not in new and has_parameters(one) and one.number < optimizer.number for one in inside) or any(
        each.op in ("named_modules", "named_children", "modules", "children", "get_submodule") for one in layer.attributes.values() for each in origins(one, ("run",))
    )
    return new[0] if around or any(each is one for _, loss in backwards(computation) for each in origins(loss, CUTS) for one in new) else None


def _within(home: Value, held: Value) -> bool:
    """Whether an object is a network that an optimizer holds, or a part of it."""
    if any(home is one for one in layers_of(held)) or (home.op in ("get_submodule", "part", "element", "builtins.getattr") and isinstance(held, Instance) and any(held is one for one in origins(home, ("run",)))):
        return True
    return held.op == "@input" and home.op not in ("@object", "@input") and any(held is one for one in origins(home)) and not any(one.op == "run" for one in origins(home))


@FINDERS.add("thawed-after-the-optimizer")
def _thawed_after_the_optimizer(program: Program) -> Iterator[Remark]:
    """An optimizer is given the parameters that had a gradient, and others get one after that."""
    computation = computation_of(program)
    made = [one for one in computation.values if is_optimizer(one)]
    changes = [one for one in computation.of("requires_grad_", "set_attribute") if one.op == "requires_grad_" or one.data == "requires_grad"]
    for optimizer in made:
        held = modules(optimizer)
        if not _takes_those_with_gradient(optimizer) or any(one.number > optimizer.number for one in made) or any(True for _ in computation.of("add_param_group")):
            continue
        own = [one for one in changes if runs(one) == runs(optimizer) and _touches(one, held)]
        frozen = [one for one in own if one.number < optimizer.number and _set_to(one) is False]
        thawed = [one for one in own if one.number > optimizer.number and _set_to(one) is True]
        steps = [one for one in computation.of("step") if any(part is optimizer for part in one.args)]
        if frozen and thawed and steps and not any(_set_to(one) is False and one.number > thawed[0].number for one in changes):
            yield Remark(thawed[0].node, f"{short(thawed[0].node)} gets a gradient here, and the optimizer of line {optimizer.line} holds only the parameters that had one before")


def _set_to(value: Value) -> bool | None:
    """What a change of requires_grad sets it to."""
    given = value.args[1] if len(value.args) > 1 else value.named.get("requires_grad")
    known = True if given is None else constant(given)
    return known if isinstance(known, bool) else None


def _touches(change: Value, held: list[Value]) -> bool:
    """Whether a change of requires_grad is of a network that is held, or of a part of it."""
    inside = {id(part) for one in held for part in layers_of(one)}
    for one in held:
        inside |= {id(part) for part in one.attributes.values() if part.op != "@constant"} if isinstance(one, Instance) else set()
    of = list(origins(change.args[0]))
    return any(id(one) in inside for one in of) and not any(one.op == "run" for one in of)  # else it is what a layer has given


def _takes_those_with_gradient(optimizer: Value) -> bool:
    """Whether an optimizer is given the parameters that require a gradient, and no others."""
    given = optimizer.argument("params", 0)
    for one in origins(given, ("parameters", "named_parameters")) if given is not None else ():
        node = one.node
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and any(mentions(test, "requires_grad") for each in node.generators for test in each.ifs):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "filter" and mentions(node, "requires_grad"):
            return True
    return False


@FINDERS.add("state-not-loaded")
def _state_not_loaded(program: Program) -> Iterator[Remark]:
    """Entries of what state_dict() gives are set, and it is never loaded, saved or returned."""
    computation = computation_of(program)
    for state in computation.of("state_dict"):
        if not state.args or is_optimizer(plain(state.args[0])):
            continue
        sets = [one for one in computation.users(state) if one.op in ("set_item", "update") and one.args[0] is state and not _is_in_place(program, one)]
        inside = state.where.functions[-1] if state.where.functions else None
        if sets and _is_only_looked_at(computation, state) and all(_is_only_looked_at(computation, one) for one in sets) and not _is_returned(sets[0], inside):
            yield Remark(sets[0].node, f"{short(sets[0].node)} changes the dict of line {state.line}, and not the network: nothing loads it")


_LOOKS = ("set_item", "update", "part", "in", "not_in", "items", "keys", "len", "print", "element", "values", "list", "sorted")


def _is_in_place(program: Program, change: Value) -> bool:
    """Whether an entry is changed as the tensor that it is, which the network has too: `state[name] *= decay`."""
    if isinstance(program.parent.get(change.node), ast.AugAssign):
        return True
    value = change.args[2] if change.op == "set_item" and len(change.args) > 2 else change
    return any(
        isinstance(one.node, ast.Call) and isinstance(one.node.func, ast.Attribute) and one.node.func.attr.endswith("_") and not one.node.func.attr.endswith("__")
        for one in origins(value, stop=("run", "state_dict"))
    )


def _is_only_looked_at(computation: Computation, value: Value) -> bool:
    """Whether a dict is read and set, and given to nothing."""
    return all(one.op in _LOOKS or (one.op == "either" and not computation.users(one)) or _is_taken_apart(computation, one) for one in computation.users(value))


def _is_taken_apart(computation: Computation, value: Value) -> bool:
    """Whether a tuple is what `a, b = c, d` gives to names, and no more."""
    around = computation.program.parent.get(value.node)
    return value.op == "tuple" and isinstance(around, ast.Assign) and isinstance(around.targets[0], ast.Tuple) and not computation.users(value)


def _is_returned(change: Value, function: ast.AST | None) -> bool:
    """Whether a function gives the changed dict back."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    node = change.node.value if isinstance(change.node, ast.Subscript) else change.node.func.value if isinstance(change.node, ast.Call) and isinstance(change.node.func, ast.Attribute) else None
    name = node.id if isinstance(node, ast.Name) else None
    return name is not None and any(isinstance(one, ast.Name) and one.id == name for result in returned(function) if result is not None for one in ast.walk(result))


@FINDERS.add("model-kept-across-folds")
def _model_kept_across_folds(program: Program) -> Iterator[Remark]:
    """A network is made before the loop over folds, and trained in each of them from where the last one ended."""
    computation = computation_of(program)
    folds = {id(one.node) for one in computation.of("split") if one.args and one.args[0].op.startswith("sklearn.model_selection.")}
    for step in computation.of("step") if folds else ():
        optimizer = optimizer_of(step)
        around = [one for one in step.where.loops if isinstance(one, ast.For) and any(id(each) in folds for each in ast.walk(one.iter))]
        for module in modules(optimizer) if optimizer is not None and around else ():
            if around[0] in module.where.loops or module.op not in ("@input", "@object", "torch.nn.Sequential"):
                continue
            inside = {id(one) for one in layers_of(module)}
            if not any(one.args and around[0] in one.where.loops and id(plain(one.args[0])) in inside for one in computation.of("run", "forward")):
                continue  # each fold makes one of its own
            if not any(one.op in _RESETS and around[0] in one.where.loops for one in computation.values):
                yield Remark(around[0], f"{short(module.node)} is one network for all folds: each one trains it further (line {step.line})")
                return


_RESETS = ("load_state_dict", "reset_parameters", "apply", "deepcopy", "copy", "reset", "init_weights")


@FINDERS.add("resumed-in-part")
def _resumed_in_part(program: Program) -> Iterator[Remark]:
    """A run goes on at the epoch that was saved, and the state of its optimizer was never saved."""
    computation = computation_of(program)
    saved = [one.args[0] for one in computation.of("save") if one.args and isinstance(one.args[0], Table)]
    if not any(each.op == "state_dict" for table in saved for each in table.made_of()):
        return
    starts = [one for one in computation.of("range") if len(one.args) > 1 and any(each.op == "load" for each in origins(one.args[0]))]
    for step in computation.of("step") if starts else ():
        optimizer = optimizer_of(step)
        around = {each for loop in step.where.loops if isinstance(loop, ast.For) for each in ast.walk(loop.iter)}
        if optimizer is None or not _has_state(optimizer) or starts[0].node not in around:
            continue
        if not any(any(part is optimizer for part in origins(one)) for one in computation.of("state_dict", "save")):
            yield Remark(optimizer.node, f"line {starts[0].line} goes on at the epoch that was saved, and the state of {short(optimizer.node)} is never saved")
            return


def _has_state(optimizer: Value) -> bool:
    """Whether an optimizer keeps more than its parameters."""
    return not optimizer.op.endswith(".SGD") or (constant(optimizer.argument("momentum", 2)) or 0) != 0


@FINDERS.add("loaded-and-written-over")
def _made_anew_after_loading(program: Program) -> Iterator[Remark]:
    """The state of an optimizer is loaded, and another one for the same network is made before it steps."""
    computation = computation_of(program)
    loads = [one for one in computation.of("load_state_dict") if one.args and is_optimizer(one.args[0])]
    steps = [(one, optimizer) for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None]
    for load in loads:
        old = load.args[0]
        used = any(optimizer is old and one.number > load.number for one, optimizer in steps)
        for step, new in steps if not used else ():
            again = new.node is old.node and old.number < load.number < new.number < step.number and runs(step) == runs(load)
            loaded = any(one.args[0] is new for one in loads)
            if again and not loaded and not new.where.loops:
                yield Remark(new.node, f"{short(new.node)} is made anew after the state of line {load.line} was loaded into the one before: what was loaded is lost")
                return


@FINDERS.add("loaded-and-written-over")
def _initialised_after_loading(program: Program) -> Iterator[Remark]:
    """A part of a network is loaded, and all layers of the network are given first values after that."""
    computation = computation_of(program)
    loads = [one for one in computation.of("load_state_dict") if one.args and not is_optimizer(plain(one.args[0])) and has_parameters(plain(one.args[0]))]
    for value in (one for one in computation.of(*_FIRST_VALUES) if one.args and loads):
        whole = [plain(one.args[0]) for one in origins(value.args[0]) if one.op == "modules" and one.args]
        for load in loads:
            part = plain(load.args[0])
            inside = any(any(part is each for each in layers_of(one)) for one in whole)
            if inside and load.number < value.number and runs(load) == runs(value) and not any(one.number > value.number for one in loads):
                yield Remark(value.node, f"{short(value.node)} gives first values to all layers, and line {load.line} has loaded {short(part.node)} before: what was loaded is lost")
                return


@FINDERS.add("loaded-and-written-over")
def _applied_after_loading(program: Program) -> Iterator[Remark]:
    """A part of a network is loaded, and a function that gives layers of its kind first values is applied to the whole."""
    computation = computation_of(program)
    loads = [one for one in computation.of("load_state_dict") if one.args and not is_optimizer(plain(one.args[0]))]
    for value in computation.of("apply") if loads else ():
        function = value.args[1].function if len(value.args) > 1 and isinstance(value.args[1], Code) else None
        words = {last_word(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)} if function is not None else set()
        if function is None or not words & {*_FIRST_VALUES, "reset_parameters"}:
            continue
        asked = [last_word(each) for one in ast.walk(function) if isinstance(one, ast.Call) and last_word(one.func) == "isinstance" and len(one.args) > 1 for each in (one.args[1].elts if isinstance(one.args[1], ast.Tuple) else one.args[1:])]
        for load in loads:
            part, whole = plain(load.args[0]), layers_of(plain(value.args[0]))
            kinds = [one.op.rpartition(".")[2] for one in layers_of(part) if has_parameters(one)]
            inside = any(part is one for one in whole) and load.number < value.number and runs(load) == runs(value)
            if inside and set(asked) & set(kinds) and not any(one.number > value.number for one in loads):
                yield Remark(value.node, f"{short(value.node)} gives first values to all layers, and line {load.line} has loaded {short(part.node)} before: what was loaded is lost")
                return


_FIRST_VALUES = (
    "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "trunc_normal_", "normal_", "uniform_", "normal", "uniform",
    "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "orthogonal", "trunc_normal",
)


@FINDERS.add("saved-under-other-names")
def _other_names(program: Program) -> Iterator[Remark]:
    """Weights are loaded with strict=False into a network none of whose parts has a name that they were saved under."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for load in computation.of("load_state_dict"):
        if len(load.args) < 2 or constant(load.argument("strict", 2)) is not False or computation.users(load) or load.node in said:
            continue
        ours, theirs = names_of_module(load.args[0]), first_names(computation, load.args[1])
        if ours and theirs and not ours & theirs:
            said.add(load.node)
            yield Remark(load.node, f"{short(load.node)} loads nothing: the weights were saved as {_listed(theirs)}, and the network has {_listed(ours)}")


@FINDERS.add("saved-under-other-names")
def _none_is_chosen(program: Program) -> Iterator[Remark]:
    """Of the weights that were saved, those are taken whose names the network has: it has none of them."""
    computation = computation_of(program)
    for asked in computation.of("in"):
        saved = dict_of(asked.args[0]) if len(asked.args) == 2 else None
        ours, theirs = first_names(computation, asked.args[-1]), first_names(computation, saved) if saved is not None else None
        if saved is not None and saved.op != "state_dict" and ours and theirs and not ours & theirs:
            yield Remark(asked.node, f"{short(asked.node)} holds for none of the weights: they were saved as {_listed(theirs)}, and the network has {_listed(ours)}: nothing is loaded")
            return


def _listed(names: set[str]) -> str:
    return ", ".join(f"{one}.*" for one in sorted(names)[:3])


@FINDERS.add("alias-for-a-copy")
def _alias_in_place_of_a_copy(program: Program) -> Iterator[Remark]:
    """An object has two networks, and one of its methods puts the one under the name of the other."""
    computation = computation_of(program)
    before: dict[tuple[int, str], Value] = {}
    for value in computation.of("set_attribute"):
        home, given = value.args[0], plain(value.args[1])
        if not isinstance(home, Instance) or not isinstance(value.data, str) or not (given.op.startswith("torch.nn.") or isinstance(given, Instance)):
            continue
        old = before.get((id(home), value.data))
        other = next((name for (of, name), one in before.items() if of == id(home) and name != value.data and one is given), None)
        if old is not None and old is not given and other is not None and any(has_parameters(one) for one in layers_of(given)) and isinstance(value.node, ast.Attribute):
            yield Remark(value.node, f"{short(value.node)} is now {other} under another name, and no copy of it: what trains the one changes the other")
            return
        before.setdefault((id(home), value.data), given)
