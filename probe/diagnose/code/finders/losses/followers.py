"""Networks that follow others: copies, averages of weights, and the replicas of several ranks. Pure; standard library
only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, Where, bare, constant, number, origins
from probe.diagnose.code.finders.losses.bootstraps import backups, compared, networks_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import last_word, says, short, text_of
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.courses import course_by_steps
from probe.diagnose.code.traits.updates import conditions, optimizer_of, plain
from probe.diagnose.code.traits.weights import bits_of, has_statistics, in_place

FINDERS = Finders()
_WEIGHTS = ("parameters", "named_parameters", "state_dict", "buffers", "named_buffers")
_SAME = ("data", "detach", "clone", "to", "float", "double", "half", "bfloat16", "cpu", "values", "items", "list", "dict", "tuple", "copy", "deepcopy")
_RANKS = ("rank", "main", "master", "chief", "primary", "leader", "distributed", "is_root", "local", "gpu", "node", "writer", "proc", "worker", "world")
"""Words in tests that ask which rank runs."""
_HARMLESS = ("eval", "train", "to", "cuda", "requires_grad_", "set_attribute", "load_state_dict", "zip", "list", "tuple", "no_grad", "share_memory", *_WEIGHTS)


class Part(NamedTuple):
    """A weight of a network in a mixture of weights, and its share."""

    leaf: Value
    network: Value
    share: float


class Mixture(NamedTuple):
    """New weights of a network."""

    value: Value
    into: Value
    parts: list[Part]

    def share_of(self, network: Value) -> float:
        """How much of a network's weights there is in it."""
        return sum(one.share for one in self.parts if one.network is network)

    def others(self) -> list[Value]:
        """The networks that it takes weights of, but for the one that they are written into; once for each part."""
        return [part.network for part in self.parts if part.network is not self.into]


def owner(value: Value, where: Where | None = None) -> tuple[Value, Value] | None:
    """The network that a value is a weight of, and where its weights are read. A copy that was kept before, at another place
    than `where`, is no weight of the network any more: it counts as what its weights were read by."""
    at, taken, kept, here = value, False, False, where or value.where
    for _ in range(12):
        if at.op in _WEIGHTS and at.args:
            return (at if kept else plain(at.args[0]), at) if taken else None
        taken = taken or at.op in ("element", "part")
        if at.op not in (*_SAME, "element", "part") or not at.args:
            return None
        kept = kept or ((at.op in ("clone", "deepcopy", "copy") or bits_of(at) is not None) and (at.where.functions, at.where.loops) != (here.functions, here.loops))
        at = at.args[0]
    return None


def parts_of(value: Value, where: Where, share: float = 1.0) -> list[Part] | None:
    """The weights that a value is a sum of multiples of; None where that is not known."""
    found = owner(value, where)
    if found is not None:
        return [Part(found[1], found[0], share)]
    args = value.args
    if value.op in ("data", "detach", "clone", "to", "float", "double", "half", "bfloat16") and args:
        return parts_of(args[0], where, share)
    if value.op in ("mul", "div") and len(args) == 2:
        for one, other in (args, args[::-1]):
            known = settled(one)
            if known is not None and (value.op == "mul" or one is args[1]) and known != 0:
                return parts_of(other, where, share * known if value.op == "mul" else share / known)
            if known == 0 and value.op == "mul":
                return parts_of(other, where, 0.0)
        return None
    if value.op == "lerp" and len(args) > 1:
        weight = value.argument("weight", 2)
        known = None if weight is None else settled(weight)
        return None if known is None else _joined(parts_of(args[0], where, share * (1 - known)), parts_of(args[1], where, share * known))
    if value.op in ("add", "sub") and len(args) == 2:
        alpha = settled(value.named["alpha"]) if "alpha" in value.named else 1.0
        sign = 1 if value.op == "add" else -1
        return None if alpha is None else _joined(parts_of(args[0], where, share), parts_of(args[1], where, share * alpha * sign))
    return None


def settled(value: Value) -> float | None:
    """The number that a share is, or comes to as the steps are counted: `min(0.999, (1 + n) / (10 + n))`."""
    known = number(value)
    if known is not None or any(one.op in ("@input", "part", "element") for one in origins(value)):
        return known
    course = course_by_steps(value)
    return None if course is None else course[1]


def _joined(one: list[Part] | None, other: list[Part] | None) -> list[Part] | None:
    return None if one is None or other is None else [*one, *other]


def mixtures(computation: Computation) -> Iterator[Mixture]:
    """The weights that are written into networks, each as a mixture of those of networks."""
    for value in computation.of("add", "sub", "lerp", "copy", "set_attribute"):
        written = value.node.func.attr if isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) else ""
        if not value.args or (value.op == "set_attribute" and (value.data != "data" or in_place(value.args[1]))):
            continue
        if value.op != "set_attribute" and written != f"{value.op}_":
            continue
        target = value.args[0]
        while target.op in ("mul", "add") and target.args:
            target = target.args[0]
        found = owner(target, value.where)
        made = parts_of(value if value.op in ("add", "sub", "lerp") else value.args[1], value.where) if found is not None else None
        if found is not None and made:
            yield Mixture(value, found[0], _after_scaling(computation, value, made))


def _after_scaling(computation: Computation, value: Value, made: list[Part]) -> list[Part]:
    """The parts, where a statement before has scaled what is added to: `d.mul_(rho)`, then `d.add_(...)`."""
    root = value.args[0]
    while root.op == "data" and root.args:
        root = root.args[0]
    if value.op != "add" or made[0].share != 1:
        return made
    for one in computation.of("mul"):
        base = one.args[0]
        while base.op == "data" and base.args:
            base = base.args[0]
        scale = number(one.args[1]) if len(one.args) > 1 else None
        if base is root and one.number < value.number and in_place(one) and scale is not None:
            return [made[0]._replace(share=scale), *made[1:]]
    return made


def runs_of(computation: Computation, network: Value) -> list[Value]:
    """Where a network, or a layer of it, is called."""
    layers = {id(plain(one)) for one in layers_of(network)}
    return [one for one in computation.of("run") if one.args and id(plain(one.args[0])) in layers]


@FINDERS.add("average-forgets")
def _average_forgets(program: Program) -> Iterator[Remark]:
    """An average of weights keeps next to nothing of itself, and takes nearly all of the other network."""
    for one in mixtures(computation_of(program)):
        kept = one.share_of(one.into)
        taken = sum(part.share for part in one.parts if part.network is not one.into)
        if 0 < kept < 0.1 and abs(kept + taken - 1) < 1e-6:
            yield Remark(one.value.node, f"{short(one.value.node)} keeps only {kept:.3g} of the old average: decay and share of the new weights are the wrong way round")


@FINDERS.add("average-without-buffers")
def _average_without_buffers(program: Program) -> Iterator[Remark]:
    """The parameters of an average follow, its running statistics do not, and it is judged in eval mode."""
    computation = computation_of(program)
    if any(True for _ in computation.of("buffers", "named_buffers", "update_bn", "torch.optim.swa_utils.update_bn", "running_mean", "running_var")):
        return
    for one in mixtures(computation):
        leaves = {part.leaf.op for part in one.parts}
        loaded = [each for each in computation.of("load_state_dict") if each.where.loops and each.args and plain(each.args[0]) is one.into]
        modes = {each.op: each for each in computation.of("eval", "train") if each.args and plain(each.args[0]) is one.into}
        source = next(iter(one.others()), None)
        learns = {each.op for each in computation.of("eval", "train") if each.args and plain(each.args[0]) is source} != {"eval"}
        follows = 0.5 < one.share_of(one.into) < 1 and source is not None and learns
        if follows and leaves <= {"parameters", "named_parameters"} and not loaded and modes.keys() == {"eval"} and has_statistics(one.into):
            yield Remark(one.value.node, f"{short(one.value.node)} averages parameters alone: the running means and variances of the average stay those that it was made with, and it is judged in eval mode (line {modes['eval'].line})")


@FINDERS.add("copy-of-itself")
def _copy_of_itself(program: Program) -> Iterator[Remark]:
    """A network's weights are mixed with its own."""
    for one in mixtures(computation_of(program)):
        own = all(part.network is one.into for part in one.parts) and abs(sum(part.share for part in one.parts) - 1) < 1e-6
        if own and len(one.parts) == 2:
            yield Remark(one.value.node, f"{short(one.value.node)} mixes a network's weights with its own: both are read from {short(one.parts[0].leaf.args[0].node)}")
        elif own and one.value.op == "copy" and _is_the_same_weight(*one.value.args[:2]):
            yield Remark(one.value.node, f"{short(one.value.node)} writes a network's weights over themselves: both are read from {short(one.parts[0].leaf.args[0].node)}")


def _is_the_same_weight(into: Value, source: Value) -> bool:
    """Whether a weight is the one of the same name, or at the same place of two lists that are gone through together."""
    into, source = bare(into), bare(source)
    if source.op == "part" and into.op == "part" and len(source.args) == 2:
        name = source.args[1]
        return name.op == "part" and name.args[0] is into.args[0] and number(name.args[1]) == 0
    return source.op == into.op == "element" and source.where.loops == into.where.loops


@FINDERS.add("trained-network-pulled-to-the-copy")
def _trained_network_pulled_to_the_copy(program: Program) -> Iterator[Remark]:
    """The network that gradients train is moved towards one that is only called without gradients."""
    computation = computation_of(program)
    for one in mixtures(computation):
        others = one.others()
        if len(others) != 1 or one.share_of(one.into) <= 0.5 or abs(sum(part.share for part in one.parts) - 1) > 1e-6:
            continue
        trained, steady = runs_of(computation, one.into), runs_of(computation, others[0])
        if steady and all(each.where.no_grad for each in steady) and any(not each.where.no_grad for each in trained):
            yield Remark(one.value.node, f"{short(one.value.node)} moves the network in training towards the copy, which is only called without gradients (line {steady[0].line})")


@FINDERS.add("copied-after-each-step")
def _copied_after_each_step(program: Program) -> Iterator[Remark]:
    """The copy that targets are made with takes over the trained network whole after each step."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    targets = {each for one in backups(computation) for each in networks_of(one.future)}
    for value, into, source in _whole_copies(computation):
        layers = {id(plain(one)) for one in layers_of(into)}
        if into is source or not layers & targets or layers & {id(plain(one)) for one in layers_of(source)}:
            continue
        for step in steps:
            around = step.where.loops
            inner = value.where.loops[len(around):]
            follows = value.where.loops[: len(around)] == around and len(inner) <= 1 and all(isinstance(one, ast.For) for one in inner)
            if around and follows and step.number < value.number and conditions(value) == conditions(step) and value.where.maybe == step.where.maybe:
                yield Remark(value.node, f"{short(value.node)} follows each {short(step.node)} (line {step.line}): the copy that the targets are made with is always the trained network as it is")
                break


def _whole_copies(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Where a network takes over all weights of another one: the call, and the two."""
    for value in computation.of("load_state_dict"):
        if len(value.args) > 1 and value.args[1].op == "state_dict" and value.args[1].args:
            yield value, plain(value.args[0]), plain(value.args[1].args[0])
    for one in mixtures(computation):
        whole = [part for part in one.parts if part.share == 1]
        if len(whole) == 1 and all(part.share == 0 for part in one.parts if part is not whole[0]):
            yield one.value, one.into, whole[0].network


@FINDERS.add("copy-never-called")
def _copy_never_called(program: Program) -> Iterator[Remark]:
    """A copy follows the trained network, and nothing but its weights is ever used."""
    computation = computation_of(program)
    followed = {id(one.into): one for one in mixtures(computation) if one.others()}
    judged = {each for _, prediction, _, one in compared(computation) for each in networks_of(prediction) & networks_of(one.future)}
    for one in followed.values():
        source = one.others()[0]
        if runs_of(computation, one.into) or not one.value.where.loops or not _is_hidden(computation, one.into):
            continue
        held = any(any(each is one.into for each in owner_.attributes.values()) for owner_ in computation.of("@object") if isinstance(owner_, Instance))
        given = any(each is one.into for results in computation.returned.values() for result in results for each in origins(result))
        if not held and one.into.where.functions and not given and isinstance(one.into.node, ast.Call) and says(one.into.node.func, "deepcopy") and runs_of(computation, source):
            yield Remark(one.into.node, f"{short(one.into.node)} is kept up to date (line {one.value.line}) and never called")
        elif held and judged & {id(plain(each)) for each in layers_of(source)}:
            yield Remark(one.into.node, f"{short(one.into.node)} is kept up to date (line {one.value.line}) and never called: the targets are made with the trained network")


def _is_hidden(computation: Computation, network: Value) -> bool:
    """Whether a network is given to nothing that may call or save it."""
    waiting, seen = [network], {id(network)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if id(user) in seen:
                continue
            seen.add(id(user))
            if user.op not in (*_HARMLESS, "element", "part", "values", "items", "mul", "add", "lerp", "copy", "data", "is_floating_point", "dtype", "detach", "clone", "sub", "div"):
                return False
            if user.op in ("state_dict", "eval", "train", "to", "requires_grad_", "values", "cuda"):
                waiting.append(user)
    return True


# Replicas of several ranks --------------------------------------------------------------------------


def _samplers(computation: Computation) -> list[Value]:
    """The samplers that give each rank its own part of the data."""
    return list(computation.of("torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"))


def _loaders(computation: Computation) -> list[tuple[Value, Value | None]]:
    """The loaders, each with the DistributedSampler that it is given; of a batch sampler, what that is made of."""
    found: list[tuple[Value, Value | None]] = []
    ranked = {id(one): one for one in _samplers(computation)}
    for value in computation.of("torch.utils.data.DataLoader"):
        given = [value.argument("sampler", 4), value.argument("batch_sampler", 5)]
        inside = [ranked[id(one)] for each in given if each is not None for one in origins(each) if id(one) in ranked]
        found.append((value, inside[0] if inside else None))
    return found


def _is_given(computation: Computation, sampler: Value) -> bool:
    """Whether anything but its epoch is made of a sampler."""
    waiting, seen = [sampler], {id(sampler)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if user.op not in ("set_epoch", "tuple", "list", "len", "set_attribute", "named", "either", "dict"):
                return True
            if id(user) not in seen and user.op in ("tuple", "list", "named", "either", "dict"):
                seen.add(id(user))
                waiting.append(user)
    return False


@FINDERS.add("sampler-not-used")
def _sampler_not_used(program: Program) -> Iterator[Remark]:
    """A sampler shares the data among the ranks, and the loader of that data is made without it."""
    computation = computation_of(program)
    loaders = _loaders(computation)
    for sampler in _samplers(computation):
        data = sampler.argument("dataset", 0)
        of_data = [(one, used) for one, used in loaders if data is not None and one.argument("dataset", 0) is data]
        bare_ones = [one for one, used in of_data if used is None and not {"sampler", "batch_sampler"} & one.named.keys() and len(one.args) < 4]
        if bare_ones and len(bare_ones) == len(of_data) and not _is_given(computation, sampler):
            yield Remark(sampler.node, f"{short(sampler.node)} is given to no loader: {short(bare_ones[0].node)} (line {bare_ones[0].line}) draws from all of the data on every rank")


@FINDERS.add("set-epoch-on-another-sampler")
def _set_epoch_on_another_sampler(program: Program) -> Iterator[Remark]:
    """set_epoch is called on a sampler that no loader has, and not on the one that the loader has."""
    computation = computation_of(program)
    told = [(one, one.args[0]) for one in computation.of("set_epoch") if one.args]
    used = [sampler for _, sampler in _loaders(computation) if sampler is not None]
    for call, sampler in told:
        if not any(sampler is one for one in _samplers(computation)) or any(sampler is one for one in used) or _is_given(computation, sampler):
            continue
        for other in used:
            if other.argument("dataset", 0) is sampler.argument("dataset", 0) and other.node is sampler.node and not any(one is other for _, one in told):
                yield Remark(call.node, f"{short(call.node)} makes another sampler (line {sampler.line}) and sets the epoch of that one: the loader keeps its own")
                break


@FINDERS.add("ranks-differ")
def _rates_differ(program: Program) -> Iterator[Remark]:
    """The rate of an optimizer is computed from the number of the rank."""
    for value in computation_of(program).values:
        rate = value.named.get("lr") if value.op.startswith("torch.optim.") else None
        if rate is not None and any(one.op == "torch.distributed.get_rank" for one in origins(rate)):
            yield Remark(rate.node, f"{short(rate.node)} is another rate on each rank (line {value.line}): the replicas part")


@FINDERS.add("gradients-summed")
def _gradients_summed(program: Program) -> Iterator[Remark]:
    """Gradients are added up over the ranks, and nothing is divided by their number."""
    computation = computation_of(program)
    if any(_divides_by_ranks(one) for one in computation.of("div", "mul")) or any(one.op.endswith("DistributedDataParallel") for one in computation.values):
        return
    for value in computation.of("torch.distributed.all_reduce"):
        how = value.argument("op", 1)
        if value.args and _is_of_gradients(value.args[0]) and (how is None or str(how.data).endswith(".SUM")):
            yield Remark(value.node, f"{short(value.node)} sums the gradients of all ranks and nothing divides them by their number")


def _is_of_gradients(value: Value) -> bool:
    """Whether a value is a gradient, or gradients laid out in a row."""
    for _ in range(8):
        if value.op == "grad":
            return True
        inner = list(value.made_of())
        if value.op not in ("data", "cat", "flatten", "view", "list", "contiguous", "torch._utils._flatten_dense_tensors", "element", "reshape") or not inner:
            return False
        value = inner[0]
    return False


def _divides_by_ranks(value: Value) -> bool:
    """Whether a value is divided by, or multiplied by what may be, the number of ranks."""
    return "world" in text_of(value.node).lower() or any(number(one) is None and any(each.op in ("torch.distributed.get_world_size", "@input", "unknown") or "environ" in each.op for each in origins(one, stop=("run", "grad"))) for one in value.args[1:])


@FINDERS.add("score-of-one-rank")
def _score_of_one_rank(program: Program) -> Iterator[Remark]:
    """A network is judged on this rank's part of the held-out data, and nothing is exchanged between the ranks."""
    exchanged = ("reduce", "gather", "broadcast", "accelerat", "torchmetrics", "synchronize", "join", "fabric")
    if any(word in source.text.lower() for source in program.sources for word in exchanged):
        return
    computation = computation_of(program)
    for loader, sampler in _loaders(computation):
        if sampler is None or constant(sampler.argument("shuffle", 3)) is not False:
            continue
        rows = [one for one in computation.values if one.named.get("loader") is loader]
        judged = [one for one in computation.of("run") if any(each in rows for each in origins(one))]
        totals = [one for one in computation.of("append", "add") if any(each in judged for each in origins(one)) and one.where.loops and not one.where.under]
        if judged and totals and all(one.where.no_grad for one in judged):
            yield Remark(totals[0].node, f"{short(totals[0].node)} collects what this rank sees alone: {short(sampler.node)} (line {sampler.line}) gives each rank its own part, and nothing joins them")


@FINDERS.add("saved-by-every-rank")
def _saved_by_every_rank(program: Program) -> Iterator[Remark]:
    """After the ranks have joined, a file whose name is the same on all of them is written, and nothing asks for the rank."""
    computation = computation_of(program)
    joined = [one for one in computation.of("torch.distributed.init_process_group") if not one.where.maybe]
    for value in computation.of("save"):
        if not isinstance(value.node, ast.Call) or program.called(value.node) != "torch.save" or len(value.args) < 2:
            continue
        together = [one for one in joined if one.number < value.number and one.where.functions[:1] == value.where.functions[:1] and one.where.functions == value.where.functions[: len(one.where.functions)]]
        marked = any(getattr(one, "decorator_list", ()) for one in value.where.functions)
        asked = [part for test, _ in value.where.under for part in origins(test)]
        if together and not marked and not _asks_for_rank(program, value) and not any(_may_differ(one) for one in (*asked, *origins(value.args[1]))):
            yield Remark(value.node, f"{short(value.node)} is run by every rank that joins in line {together[0].line}: all write the same file at once")
            return


def _asks_for_rank(program: Program, value: Value) -> bool:
    """Whether a test of ranks stands around a call, or around a call of a function that runs it, or leaves one of these:
    also where the number of the rank is known, as a default."""
    names = {getattr(one, "name", "") for one in value.where.functions}
    tests: list[ast.If | ast.IfExp] = [*program.everywhere(ast.If), *program.everywhere(ast.IfExp)]
    for test in tests:
        if "__name__" in text_of(test.test) or not says(test.test, *_RANKS):
            continue
        within = any(one is value.node or last_word(one.func) in names for one in ast.walk(test) if isinstance(one, ast.Call))
        if within or any(one in value.where.functions for one in program.parents(test) if isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return)):
            return True
    return False


def _may_differ(value: Value) -> bool:
    """Whether a value may be another one on each rank, or a place in memory."""
    return value.op in ("@input", "unknown", "run", "part", "element", "@object", "carried") or any(
        word in value.op.lower() for word in ("rank", "environ", "getenv", "bytesio", "temp", "uuid", "host", "pid", "main", "distributed")
    )
