"""References that hold a policy back: whether they are another network. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, constant, number, origins, same
from probe.diagnose.code.finders.sequences.preferences import is_estimate, pushed
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, last_word, short, text_of
from probe.diagnose.code.traits.backwards import has_gradient, layers_of
from probe.diagnose.code.traits.basic import losses, squared, terms
from probe.diagnose.code.traits.held import contents
from probe.diagnose.code.traits.likelihoods import alike
from probe.diagnose.code.traits.updates import is_optimizer, modules, optimizer_of, plain
from probe.diagnose.code.traits.weights import has_parameters, shared

FINDERS = Finders()
_OF_WORDS = ("gather", "log_prob", "cross_entropy", "nll_loss")
_CHANGES = frozenset({"load_state_dict", "copy", "lerp", "torch.nn.utils.vector_to_parameters", "torch.utils.swap_tensors", "deepcopy", "setattr"})
"""Operations that may give a network other weights."""
_MANAGERS = frozenset({
    "no_grad", "inference_mode", "enable_grad", "set_grad_enabled", "autocast", "open", "nullcontext", "suppress", "catch_warnings", "detect_anomaly",
    "set_detect_anomaly", "tqdm", "trange", "Progress", "SummaryWriter", "TemporaryDirectory", "profile", "record_function", "Live", "Pool", "sdpa_kernel",
})
"""What leaves the network that is called inside as it is."""
_FUNCTIONAL = ("torch.func.functional_call", "torch.nn.utils.stateless.functional_call")


@FINDERS.add("alias-for-a-copy")
def _reference_is_the_policy(program: Program) -> Iterator[Remark]:
    """What a policy says is compared with what a reference says of the same words, and the reference has the policy's
    own weights: it is the same network, or is called with its parameters."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for difference in _differences(loss):
            for policy, reference in (difference.args, difference.args[::-1]):
                if not has_gradient(policy) or has_gradient(reference):
                    continue
                if (taken := _live_weights(computation, policy, reference)) is not None:
                    yield Remark(taken.node, f"{short(taken.node)} gives the weights themselves, not a copy: the steps change those of the reference too, and {short(difference.node)} (line {difference.line}) stays 0")
                    return
                if (load := _just_loaded(computation, policy, reference, difference)) is not None:
                    yield Remark(load.node, f"{short(load.node)} gives the reference the policy's weights in each pass, before {short(difference.node)} (line {difference.line}): it is 0, whatever the policy has learned")
                    return
                if policy.where.loops == reference.where.loops and alike(policy, reference) and not _may_differ(computation, difference):
                    names = _names(computation, policy)
                    which = f" ({', '.join(names[:-1])} and {names[-1]} are one network)" if len(names) > 1 else ""
                    yield Remark(difference.node, f"{short(difference.node)} is the difference of a network from itself: the side without gradients is computed by the weights that the steps change{which}")
                    return


def _differences(loss: Value) -> Iterator[Value]:
    """The differences of log probabilities in a preference loss, and in a divergence of each word."""
    for inside, _, _ in pushed(loss):
        yield from _of_words(inside)
    for term, _ in terms(loss):
        at = term
        while at.args and at.op in ("mean", "sum", "neg"):
            at = at.args[0]
        base = at.args[0] if at.op == "relu" and at.args else squared(at)
        if base is not None:
            yield from _of_words(base)
    for one in origins(loss, stop=("run",)):
        if one.op in ("add", "sub") and is_estimate(one):
            yield from _of_words(one)


@FINDERS.add("alias-for-a-copy")
def _rewarded_by_itself(program: Program) -> Iterator[Remark]:
    """A reward is lowered by how far a policy has gone from a reference, all without gradients, and the reference is the policy
    under another name."""
    computation, flow = computation_of(program), flow_of(program)
    for _, loss in losses(computation):
        for difference in origins(loss):
            if difference.op not in ("sub", "kl_div") or len(difference.args) < 2 or not difference.where.loops:
                continue
            one, other = (each.args[0] if difference.op == "kl_div" and each.op == "exp" else each for each in difference.args[:2])
            if not all(any(each.op in (*_OF_WORDS, "log_softmax", "softmax") for each in origins(side, stop=("run",))) for side in (one, other)) or has_gradient(difference):
                continue
            calls = [_call_of(flow, node) for node in _sides(difference.node)]
            names = [_without_shared(flow, mine, its) for mine, its in zip(calls, calls[::-1], strict=True)]
            if len(names) == 2 and all(names) and one is not other and one.where.loops == other.where.loops and alike(one, other) and not _may_differ(computation, difference):
                yield Remark(difference.node, f"{short(difference.node)} is always 0: {names[0]} and {names[1]} are one network, and the steps that train the policy change the reference too")
                return


def _sides(node: ast.AST) -> list[ast.expr]:
    """The two expressions whose difference one is."""
    return [node.left, node.right] if isinstance(node, ast.BinOp) else node.args[:2] if isinstance(node, ast.Call) else []


def _call_of(flow: Flow, node: ast.AST) -> ast.Call | None:
    """The call that gives a value, through names, and through what is done on it."""
    for _ in range(8):
        found = flow.value(node)
        if not isinstance(found, ast.Call):
            return None
        if not isinstance(found.func, ast.Attribute) or found.func.attr not in ("detach", "exp", "sum", "float", "squeeze", "log_softmax", "softmax", "gather", "unsqueeze", "view", "log_prob"):
            return found
        node = found.func.value if flow.program.dotted(found.func) is None else found.args[0] if found.args else found.func
    return None


def _without_shared(flow: Flow, call: ast.Call | None, other: ast.Call | None) -> str:
    """What a call names, or is done on, that another call does not: what stands for the network. Empty if it is more than one."""
    if call is None or other is None:
        return ""
    mine, its = ({text_of(one) for one in (call.func, *call.args) if isinstance(one, (ast.Name, ast.Attribute))} for call in (call, other))
    found = mine - its
    return found.pop().removesuffix(f".{last_word(call.func)}" if isinstance(call.func, ast.Attribute) and last_word(call.func) == last_word(other.func) else "") if len(found) == 1 else ""


def _of_words(value: Value) -> Iterator[Value]:
    for one in origins(value, stop=("run", *_OF_WORDS)):
        if one.op == "sub" and len(one.args) == 2 and all(any(each.op in _OF_WORDS for each in origins(side, stop=("run",))) for side in one.args):
            yield one


# Another network, or the same one -----------------------------------------------------


def _live_weights(computation: Computation, policy: Value, reference: Value) -> Value | None:
    """Where the weights were taken, without a copy, that a reference is called with: they are those of the policy, and
    steps follow."""
    runs = {id(plain(one.args[0])) for one in origins(policy) if one.op == "run" and one.args}
    of_policy = {id(one) for one in origins(policy)}
    for call in origins(reference):
        if call.op not in _FUNCTIONAL or len(call.args) < 3:
            continue
        data = list(call.args[2].made_of()) or [call.args[2]]
        for taken in shared(call.args[1]):
            network = plain(taken.args[0])
            own = any(id(one) in runs for one in layers_of(network))
            outside = len(taken.where.loops) < len(call.where.loops) and call.where.loops[: len(taken.where.loops)] == taken.where.loops
            stepped = any(optimizer_of(one) is not None and call.where.loops[:1] == one.where.loops[:1] for one in computation.of("step"))
            if own and outside and stepped and any(id(one) in of_policy for one in data):
                return taken
    return None


def _just_loaded(computation: Computation, policy: Value, reference: Value, difference: Value) -> Value | None:
    """Where a reference takes over the policy's weights in the pass in which the two are compared, and no step is in between."""
    mine, theirs = ({id(plain(one.args[0])) for one in origins(side) if one.op == "run" and one.args} for side in (policy, reference))
    for load in computation.of("load_state_dict"):
        if len(load.args) < 2 or load.args[1].op != "state_dict" or not load.where.loops or load.where.loops != difference.where.loops or load.number > difference.number:
            continue
        into, source = ({id(one) for one in (plain(given.args[0]), *layers_of(plain(given.args[0])))} for given in (load, load.args[1]))
        stepped = any(one.op == "step" and optimizer_of(one) is not None for one in computation.values[load.number : difference.number])
        if into & theirs and source & mine and not into & mine and not stepped and set(load.where.under) <= set(difference.where.under):
            return load
    return None


def _may_differ(computation: Computation, difference: Value) -> bool:
    """Whether a network may have other weights, or other parts, on the two sides of a difference."""
    program = computation.program
    for node in program.everywhere(ast.With, ast.AsyncWith):
        for item in node.items if isinstance(node, (ast.With, ast.AsyncWith)) else ():
            made = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
            if last_word(made) not in _MANAGERS:
                return True
    for one in computation.of("set_attribute"):
        inside = one.where.functions[-1] if one.where.functions else None
        if isinstance(constant(one.args[1]), (bool, float)) and isinstance(inside, Function) and inside.name != "__init__":
            return True  # a part that is switched on and off
    runs = [one for one in origins(difference) if one.op == "run" and one.where.loops == difference.where.loops]
    first = min((one.number for one in runs), default=0)
    if any(one.op in _CHANGES or (one.op == "step" and one.args and is_optimizer(one.args[0])) for one in computation.values[first : difference.number]):
        return True
    networks = [plain(one.args[0]) for one in runs]
    return any(word in user.op.lower() for network in networks for user in computation.users(network) for word in ("adapter", "lora", "enable_", "disable_", "merge"))


def _names(computation: Computation, value: Value) -> list[str]:
    """The names of the network that computes a value, where it has several."""
    layers = {id(plain(one.args[0])) for one in origins(value) if one.op == "run" and one.args}
    found: dict[int, list[str]] = {}
    for name, values in computation.stored.items():
        for one in map(plain, values):
            if (isinstance(one, Instance) or one.op.startswith(("torch.nn.", "transformers."))) and any(id(each) in layers for each in layers_of(one)):
                found.setdefault(id(one), []).append(name.id)
    return max((list(dict.fromkeys(names)) for names in found.values()), key=len, default=[])


# References that move, or that are noisy ------------------------------------------------


@FINDERS.add("alias-for-a-copy")
def _trained_beside_the_adapter(program: Program) -> Iterator[Remark]:
    """A reference is the policy with its adapters switched off, and layers that are no part of an adapter are trained."""
    computation = computation_of(program)
    switches = [one for one in computation.of("set_attribute") if constant(one.args[1]) is False and isinstance(one.data, str) and one.data not in ("requires_grad", "training")]
    kinds = {of.of for one in switches for of in origins(one.args[0]) if isinstance(of, Instance)}
    classes = {last_word(one.args[1]) for one in program.everywhere(ast.Call) if isinstance(one, ast.Call) and last_word(one.func) == "isinstance" and len(one.args) > 1}
    for _, loss in losses(computation) if switches else ():
        for difference in _differences(loss):
            for policy, reference in (difference.args, difference.args[::-1]):
                if not has_gradient(policy) or has_gradient(reference) or not alike(policy, reference):
                    continue
                adapters = {name for name in classes if name in program.classes} | {one.name for one in kinds if one is not None}
                thawed = _thawed(computation, adapters)
                used = {id(plain(one.args[0])) for one in origins(reference) if one.op == "run" and one.args}
                if thawed is not None and id(owner_of(thawed)) in used and any(one.number < policy.number and one.number < thawed.number for one in _frozen(computation)):
                    yield Remark(thawed.node, f"{short(thawed.node)} lets layers be trained that are no adapter, and {short(difference.node)} (line {difference.line}) takes the same network with its adapters off for the reference: the reference changes with the steps")
                    return


def _frozen(computation: Computation) -> list[Value]:
    return [one for one in switched(computation) if constant(one.args[1]) is False]


def switched(computation: Computation) -> Iterator[Value]:
    """Where parameters are frozen or thawed."""
    for one in computation.of("requires_grad_", "set_attribute"):
        if len(one.args) > 1 and (one.op == "requires_grad_" or one.data == "requires_grad"):
            yield one


def owner_of(switch: Value) -> Value | None:
    """The layer or network all of whose parameters are frozen or thawed: itself, or one by one."""
    of = plain(switch.args[0])
    if switch.op == "requires_grad_" and (isinstance(of, Instance) or has_parameters(of)):
        return of
    if of.op == "part" and len(of.args) == 2 and constant(of.args[1]) == 1:
        of = of.args[0]
    taken = of.args[0] if of.op == "element" and of.args else of
    return plain(taken.args[0]) if taken.op in ("parameters", "named_parameters") and taken.args else None


def _thawed(computation: Computation, adapters: set[str]) -> Value | None:
    """Where all parameters of a layer that is no adapter are thawed, whatever they are called."""
    for one in switched(computation):
        layer = owner_of(one)
        if constant(one.args[1]) is not True or layer is None or one.where.under:
            continue
        inside = [each for each in layers_of(layer) if isinstance(each, Instance) and each.of is not None]
        if layer.op.startswith("torch.nn.") and has_parameters(layer) and not any(each.of is not None and each.of.name in adapters for each in inside):
            return one
    return None


def noisy_reference(program: Program) -> Iterator[Remark]:
    """What others are trained towards is computed, without gradients, by a network that was loaded or copied once, nothing
    trains and nothing sets to eval(), and that has dropout."""
    computation = computation_of(program)
    held = {id(layer) for one in computation.values if is_optimizer(one) for module in modules(one) for layer in layers_of(module)}
    still = {id(layer) for one in computation.of("eval", "train") if one.args for layer in layers_of(plain(one.args[0]))}
    aims = {id(plain(one.args[0])): one for _, loss in losses(computation) for one in origins(loss) if one.op == "run" and one.args and one.where.no_grad and one.where.loops}
    for network in computation.values if aims and held else ():
        if not isinstance(network, Instance) or id(network) in still or any(id(one) in held for one in layers_of(network)) or not _is_kept(computation, network):
            continue
        layers = layers_of(network)
        drops = next((one for one in layers if _drops(one)), None)
        used = max((aims[id(one)] for one in layers if id(one) in aims), key=lambda one: one.number, default=None)
        if drops is not None and used is not None and not any(id(one) in still for one in layers):
            yield Remark(used.node, f"{short(used.node)} is what others are trained towards, and its network, which line {network.line} makes, is never set to eval(): {short(drops.node)} (line {drops.line}) leaves out other units in each step")
            return


def reference_trained(program: Program) -> Iterator[Remark]:
    """What a policy says of words is compared with what a copy of it says of them, and an optimizer moves the copy too."""
    computation = computation_of(program)
    made = [one for one in computation.values if is_optimizer(one)]
    for _, loss in losses(computation) if made else ():
        squashed = [one.args[0] for one in origins(loss, stop=("run",)) if one.op in ("sigmoid", "logsigmoid", "softplus") and one.args]
        for difference in (*_differences(loss), *(each for one in squashed for each in _of_words(one))):
            sides = [[plain(one.args[0]) for one in origins(side) if one.op == "run" and one.args and not one.where.no_grad] for side in difference.args]
            for mine, theirs in (sides, sides[::-1]):
                copy = next((one for one in computation.values if _copied_from(computation, one) is not None and {*map(id, layers_of(one))} & {*map(id, theirs)}), None)
                source = None if copy is None else _copied_from(computation, copy)
                twins = [(one, other) for one in theirs for other in mine if one.op.endswith(".from_pretrained") and one.number > other.number and one.op == other.op and one.args and other.args and same(one.args[0], other.args[0])]
                copy, source = twins[0] if copy is None and twins else (copy, source)
                if copy is None or source is None or not {*map(id, layers_of(source))} & {*map(id, mine)} or not has_gradient(difference.args[0]) or not has_gradient(difference.args[1]):
                    continue
                holds = next((one for one in made if any(part is copy for held in modules(one) for part in contents(held, computation))), None)
                frozen = any(constant(one.args[1]) is not True and owner_of(one) in (copy, None) for one in switched(computation))
                if holds is not None and not frozen:
                    yield Remark(holds.node, f"{short(holds.node)} holds the parameters of {short(copy.node)} (line {copy.line}) too, the copy that {short(difference.node)} (line {difference.line}) measures the policy by: each step moves both")
                    return


def _copied_from(computation: Computation, value: Value) -> Value | None:
    """The network that a value is a copy of."""
    if id(value) in computation.copies:
        return computation.copies[id(value)]
    if value.op == "deepcopy" and value.args:
        return plain(value.args[0])
    return value.data if isinstance(value, Instance) and isinstance(value.data, Value) else None


def _drops(layer: Value) -> bool:
    """Whether a layer leaves out units at random in training."""
    if layer.op == "torch.nn.Dropout":
        return number(layer.argument("p", 0)) != 0
    return layer.op == "torch.nn.TransformerEncoderLayer" and number(layer.argument("dropout", 3)) != 0


def _is_kept(computation: Computation, network: Value) -> bool:
    """Whether the weights of a network were loaded once, and nothing moves them afterwards."""
    takes = [one for one in computation.of("parameters", "named_parameters", "state_dict", "apply", "requires_grad_") if one.args and plain(one.args[0]) is network]
    loads = [one for one in computation.of("load_state_dict") if one.args and plain(one.args[0]) is network]
    return bool(loads) and not any(one.where.loops for one in (*takes, *loads))
