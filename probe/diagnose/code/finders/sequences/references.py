"""References that hold a policy back: whether they are another network. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, constant, origins
from probe.diagnose.code.finders.sequences.preferences import is_estimate, pushed
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, last_word, short
from probe.diagnose.code.traits.backwards import has_gradient, layers_of
from probe.diagnose.code.traits.basic import losses, squared, terms
from probe.diagnose.code.traits.likelihoods import alike
from probe.diagnose.code.traits.updates import is_optimizer, optimizer_of, plain
from probe.diagnose.code.traits.weights import shared

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
