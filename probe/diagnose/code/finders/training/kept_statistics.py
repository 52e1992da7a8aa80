"""Running statistics of batch normalizations, in networks that are given parameters alone. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Table, Value, constant, origins, same
from probe.diagnose.code.finders.losses.followers import owner
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.held import contents, is_unsteady
from probe.diagnose.code.traits.updates import backwards, is_optimizer, modules, optimizer_of, plain, runs

FINDERS = Finders()
_PARAMETERS = ("parameters", "named_parameters")
_BUFFERS = ("buffers", "named_buffers", "running_mean", "running_var", "torch.optim.swa_utils.update_bn", "modules", "named_modules", "children")
_NORMALIZED = ("resnet", "resnext", "wide_resnet", "mobilenet", "efficientnet", "densenet", "regnet", "shufflenet", "mnasnet", "inception", "googlenet")
"""Beginnings of the names of networks of torchvision that have batch normalizations."""
_WRITES = ("copy", "add", "lerp", "mul")
_SUMS = ("_foreach_add_", "_foreach_lerp_", "_foreach_copy_")
_PICKS = ("values", "items", "element", "part", "keys")


def normalizations(network: Value, computation: Computation) -> bool:
    """Whether a network has batch normalizations that keep running statistics."""
    source = network.args[0] if network.op == "deepcopy" and network.args else network
    for one in contents(source, computation):
        word = one.op.rpartition(".")[2]
        if "BatchNorm" in word and constant(one.named.get("track_running_stats")) is not False:
            return one.op.startswith("torch.nn.")
        if one.op.startswith("torchvision.models.") and word.startswith(_NORMALIZED) and "norm_layer" not in one.named:
            return True
    return False


def _of(computation: Computation, network: Value, *ops: str) -> list[Value]:
    """The values of these operations on a network."""
    return [one for one in computation.of(*ops) if one.args and plain(one.args[0]) is network]


def _stays_in_eval(computation: Computation, network: Value) -> bool:
    """Whether a network is put into eval mode, and neither it nor what holds it is put back into training mode."""
    holders = {id(one.args[0]) for one in computation.of("set_attribute") if one.args[1] is network and isinstance(one.args[0], Instance)}
    back = [one for one in computation.of("train") if one.args and (plain(one.args[0]) is network or id(plain(one.args[0])) in holders)]
    rests = _of(computation, network, "eval")
    return bool(rests) and all(_keeps_eval(one, network, rests) for one in back)


def _keeps_eval(train: Value, network: Value, rests: list[Value]) -> bool:
    """Whether a call of `train` leaves a network in eval mode, or gives it back the eval mode that it was in."""
    mode = train.argument("mode", 1)
    given_back = mode is not None and mode.op == "training" and plain(mode.args[0]) is network
    return constant(mode) is False or (given_back and any(one.number < train.number and one.where.functions != train.where.functions for one in rests))


def _network(computation: Computation, value: Value) -> Value:
    """The network that a value is: an attribute of an unknown object is the one that the program gives it."""
    if len(value.args) == 1 and value.args[0].op == "@input":
        given = [one.args[1] for one in computation.of("set_attribute") if one.data == value.op]
        if len({id(one) for one in given}) == 1:
            return plain(given[0])
    return value


def _lists(value: Value) -> list[Value]:
    """The networks whose parameters a list holds."""
    return [plain(one.args[0]) for one in origins(value, _PARAMETERS) if one.op in _PARAMETERS and one.args]


def _followers(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Each place where the parameters of a network are moved towards those of another: it, the first and the second."""
    for value in computation.of(*_WRITES, "set_attribute", *_SUMS):
        if value.op in _SUMS:
            into = _lists(value.args[0])
            if len(into) == 1:
                yield from ((value, into[0], one) for each in value.args[1:] for one in _lists(each) if one is not into[0])
            continue
        if len(value.args) < 2 or (value.op == "set_attribute" and value.data != "data"):
            continue
        target = value.args[0]
        while target.op in ("mul", "data", "detach") and target.args:
            target = target.args[0]
        written = owner(target)
        if written is None or written[1].op not in _PARAMETERS or not _is_written(value):
            continue
        for one in (each for part in (*value.args[1:], *value.named.values()) for each in origins(part, _PARAMETERS)):
            if one.op in _PARAMETERS and one.args and plain(one.args[0]) is not written[0]:
                yield value, written[0], plain(one.args[0])


def _trained(computation: Computation) -> set[int]:
    """The networks that optimizers hold."""
    return {id(one) for each in computation.values if is_optimizer(each) for one in modules(each)}


def _is_written(value: Value) -> bool:
    """Whether a value is written back into what it is made of."""
    return value.op == "set_attribute" or short(value.node, 200).replace(" ", "").find(f".{value.op}_(") >= 0


@FINDERS.add("average-without-buffers")
def _average_without_buffers(program: Program) -> Iterator[Remark]:
    """A copy follows a network by its parameters alone, and is used with running statistics that never change."""
    computation = computation_of(program)
    if any(True for _ in computation.of(*_BUFFERS)):
        return
    said: set[int] = set()
    trained = _trained(computation)
    for value, into, other in _followers(computation):
        average = _network(computation, into)
        if id(average) in said or id(average) in trained or average is _network(computation, other) or not normalizations(average, computation):
            continue
        read = any(user.op in _PICKS for one in _of(computation, average, "state_dict") for user in computation.users(one))
        loaded = [one for one in _of(computation, average, "load_state_dict") if not _begins(one, value)]
        if not read and not loaded and _stays_in_eval(computation, average) and not _stays_in_eval(computation, _network(computation, other)):
            said.add(id(average))
            yield Remark(value.node, f"{short(value.node)} moves the parameters alone: the running statistics of the batch normalizations in {short(into.node)} stay as they were when it was made (line {average.line})")


def _begins(load: Value, follow: Value) -> bool:
    """Whether a network gets the weights of another one once, before a loop in which it follows."""
    whole = len(load.args) > 1 and load.args[1].op == "state_dict"
    outer, inner = load.where.loops, follow.where.loops
    return whole and (runs(load) == runs(follow) or not load.where.functions) and load.number < follow.number and len(outer) < len(inner) and inner[: len(outer)] == outer


@FINDERS.add("released-without-buffers")
def _released_without_buffers(program: Program) -> Iterator[Remark]:
    """A new network with batch normalizations is given parameters alone, and used in eval mode."""
    computation = computation_of(program)
    if any(True for _ in computation.of(*_BUFFERS)):
        return
    trained = _trained(computation)
    for value in computation.of("load_state_dict"):
        if len(value.args) < 2 or constant(value.argument("strict", 2)) is not False:
            continue
        network, listed = plain(value.args[0]), _parameters_alone(computation, value.args[1])
        others = [one for one in _of(computation, network, "load_state_dict") if one is not value and not _begins(one, value)]
        if listed is None or id(network) in trained or others or (isinstance(network.data, Value) and not _is_copied_before(computation, network, value)):
            continue
        if normalizations(network, computation) and _stays_in_eval(computation, network):
            yield Remark(value.node, f"{short(value.node)} gives {short(network.node, 40)} what {short(listed.node)} (line {listed.line}) lists alone, without the running statistics of its batch normalizations")


def _is_copied_before(computation: Computation, network: Value, load: Value) -> bool:
    """Whether a copy is made before the training in which it gets other parameters again and again: its buffers are those of the
    start."""
    here = len(network.where.loops)
    around = load.where.loops[: here + 1]
    return len(around) > here and any(one.where.loops[: here + 1] == around for one, _ in backwards(computation))


def _parameters_alone(computation: Computation, state: Value) -> Value | None:
    """Where the entries of a dict are listed, if they are the parameters of a network and nothing else."""
    if state.op == "part" and len(state.args) == 2 and state.args[0].op == "load":
        key = constant(state.args[1])
        kept = [one.args[0] for one in computation.of("save") if one.args]
        found = [one.entries[key] for one in kept if isinstance(one, Table) and key in one.entries]
        listed = [_parameters_alone(computation, one) for one in found]
        return listed[0] if listed and None not in listed else None
    if state.op == "load" and state.args:
        found = [one.args[0] for one in computation.of("save") if len(one.args) > 1 and same(one.args[1], state.args[0])]
        listed = [_parameters_alone(computation, one) for one in found]
        return listed[0] if listed and None not in listed else None
    if not isinstance(state, Table) or state.entries or not state.others:
        return None
    listed = [_list_of(key) for key, _ in state.others]
    return listed[0] if None not in listed else None


def _list_of(key: Value) -> Value | None:
    """The list of named parameters that a key is a name of."""
    if key.op == "part" and constant(key.args[1]) == 0 and key.args[0].op == "element":
        over = key.args[0].args[0]
        while over.op in ("list", "dict", "items", "iter") and over.args and not isinstance(over, Table):
            over = over.args[0]
        if isinstance(over, Table) and not over.entries:  # a dict of what such a list names
            inner = [_list_of(one) for one, _ in over.others]
            return inner[0] if inner and None not in inner else None
        return over if over.op == "named_parameters" else None
    return None


@FINDERS.add("part-back-in-train-mode")
def _frozen_in_train_mode(program: Program) -> Iterator[Remark]:
    """The parameters of a part with batch normalizations are frozen, and a later training puts all of it into train mode."""
    computation = computation_of(program)
    if any(program.class_of(one) is not None for one in program.functions.get("train", [])):
        return  # a class may leave a part in eval mode itself
    said: set[int] = set()
    for frozen, part in _set_gradients(computation, False):
        if id(part) in said or any(again is part or any(one is part for one in contents(again, computation)) for thawed, again in _set_gradients(computation, True, now_and_then=True) if thawed.number > frozen.number):
            continue
        inside = [one for one in contents(part, computation) if "BatchNorm" in one.op and constant(one.named.get("track_running_stats")) is not False]
        trained = next((one for one in computation.of("train") if one.number > frozen.number and len(one.args) == 1 and _holds(computation, one.args[0], part)), None)
        if not inside or trained is None or not trained.where.loops:
            continue
        later = [one for one in computation.of("backward") if one.number > trained.number and one.where.loops[: len(trained.where.loops)] == trained.where.loops]
        used = any(run.op == "run" and run.args[0] is layer and not run.where.no_grad for one in later[:1] for run in origins(one.args[0]) if run.args for layer in inside)
        rested = any(one.number > trained.number and later and one.number < later[0].number for one in computation.of("eval"))
        if used and not rested:
            said.add(id(part))
            yield Remark(trained.node, f"{short(trained.node)} puts the frozen part into train mode too ({short(frozen.node)}, line {frozen.line}): its batch normalizations use each batch's statistics and go on moving theirs")


def _set_gradients(computation: Computation, to: bool, now_and_then: bool = False) -> Iterator[tuple[Value, Value]]:
    """Where the parameters of a network are frozen, or thawed: each with the network; `now_and_then`: under a condition too."""
    for value in computation.of("set_attribute", "requires_grad_"):
        if value.op == "set_attribute":
            told = constant(value.args[1]) if value.data == "requires_grad" else None
        else:
            given = value.argument("requires_grad", 1)
            told = True if given is None else constant(given)
        at = value.args[0]
        while at.op in ("element", "part", "parameters", "named_parameters", "items", "values") and at.args:
            at = at.args[0]
        if told is to and (now_and_then or not any(bool(test.args) for test, _ in value.where.under)):
            yield value, plain(at)


def _holds(computation: Computation, whole: Value, part: Value) -> bool:
    whole = plain(whole)
    return whole is part or any(one is part for one in contents(whole, computation))


@FINDERS.add("part-back-in-train-mode")
def _teacher_in_train_mode(program: Program) -> Iterator[Remark]:
    """A network that was trained or loaded before gives the targets of another training, and is in train mode."""
    computation = computation_of(program)
    if any(program.class_of(one) is not None for one in program.functions.get("train", [])):
        return
    said: set[int] = set()
    modes = list(computation.of("train", "eval"))
    for _, loss in backwards(computation):
        learned = {id(layer) for run in origins(loss) if run.op == "run" and run.args and not run.where.no_grad for layer in [run.args[0]]}
        for run in origins(loss):
            if run.op != "run" or not run.args or not run.where.no_grad or not run.where.loops or id(run.args[0]) in learned:
                continue
            teacher = next((one for one in _fitted_before(computation, run) if any(each is run.args[0] for each in contents(one, computation))), None)
            if teacher is None or id(teacher) in said or not any(is_unsteady(one) for one in contents(teacher, computation)):
                continue
            last = next((one for one in reversed(modes) if one.number < run.number and one.args and _holds(computation, one.args[0], run.args[0])), None)
            if last is not None and last.op == "train" and len(last.args) == 1 and not last.named:
                said.add(id(teacher))
                read = any(one.op == "run" and id(one.args[0]) in learned and any(each is run for each in origins(one)) for one in origins(loss) if one.args)
                yield Remark(run.node, f"{short(run.node)} gives {'features' if read else 'targets'}, and its network is in train mode ({short(last.node)}, line {last.line}): they are those of a network with dropout, or with the statistics of the batch")


def _fitted_before(computation: Computation, run: Value) -> Iterator[Value]:
    """The networks that an optimizer had trained, or that weights were loaded into, before another training."""
    last: dict[int, tuple[Value, int]] = {}
    for step in computation.of("step"):
        if (optimizer := optimizer_of(step)) is not None:
            last[id(optimizer)] = (optimizer, step.number)
    going_on = {id(plain(one)) for optimizer, number in last.values() if number > run.number for one in modules(optimizer)}
    for optimizer, number in last.values():
        if number < run.number:
            yield from (plain(one) for one in modules(optimizer) if id(plain(one)) not in going_on)
    for load in computation.of("load_state_dict"):
        if load.number < run.number and len(load.args) > 1 and id(plain(load.args[0])) not in going_on and any(one.op == "load" for one in origins(load.args[1])):
            yield plain(load.args[0])
