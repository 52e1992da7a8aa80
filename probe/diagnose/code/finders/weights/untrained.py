"""Networks that are judged and were never trained, where another one of the same kind was. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_method, last_word, short
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.basic import losses

_GIVES_WEIGHTS = frozenset({"load_state_dict", "load", "load_model", "load_checkpoint", "load_weights", "copy_", "vector_to_parameters", "load_file", "restore", "from_pretrained", "apply", "deepcopy", "resume", "load_best"})


def judged_untrained(program: Program) -> Iterator[Remark]:
    """After the training a network is made anew and judged, the weights of the trained one were saved, and nothing in the program
    loads or copies any."""
    computation = computation_of(program)
    if any(last_word(one.func) in _GIVES_WEIGHTS or last_word(one.func).startswith("load") for one in program.calls()):
        return
    if not any(is_method(one, "state_dict") for one in program.calls()) or any(one.data == "data" for one in computation.of("set_attribute")):
        return
    backward = [one.number for one, _ in losses(computation)]
    learned = {id(one.args[0]) for _, loss in losses(computation) for one in origins(loss) if one.op == "run" and one.args}
    made = [(one, {id(each) for each in layers_of(one)}) for one in computation.values if (isinstance(one, Instance) and one.of is not None and program.is_module_class(one.of)) or one.op == "torch.nn.Sequential"]
    trained = [one for one, layers in made if layers & learned]
    for net, layers in made if trained and backward else ():
        if layers & learned or net.number < max(backward) or net.where.loops or not any(_are_alike(net, one) for one in trained):
            continue
        judged = next((one for one in computation.of("run") if one.where.no_grad and id(one.args[0]) in layers), None)
        if judged is not None and not _gets_weights(computation, net):
            of = next(one for one in trained if _are_alike(net, one))
            yield Remark(net.node, f"{short(net.node)} is a new network that nothing trains or loads, and it is judged in place of the one that was trained ({short(of.node)}, line {of.line})")
            return


def _are_alike(one: Value, other: Value) -> bool:
    """Whether two networks are of one class, or made by the same lines."""
    if isinstance(one, Instance) or isinstance(other, Instance):
        return isinstance(one, Instance) and isinstance(other, Instance) and one.of is other.of
    return one.node is other.node


def _gets_weights(computation: Computation, net: Value) -> bool:
    """Whether a network is given weights in another way, or trained by what is not seen."""
    return any(user.op not in ("run", "parameters", "set_attribute", "train", "eval", "to", "list", "tuple") for user in computation.users(net)) or any(
        one.op in ("step", "unknown") and one.number > net.number for one in computation.values
    )
