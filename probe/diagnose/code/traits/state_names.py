"""The names that weights go by in a state dict. Pure; standard library only."""

from __future__ import annotations

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Instance, Table, Value, constant, same
from probe.diagnose.code.traits.updates import plain

_WRAPPERS = {"torch.optim.swa_utils.AveragedModel": {"module", "n_averaged"}, "torch.nn.DataParallel": {"module"}, "torch.nn.parallel.DistributedDataParallel": {"module"}}


def first_names(computation: Computation, value: Value, depth: int = 8) -> set[str] | None:
    """The first words of the names in a state dict, also after it was saved and loaded; None where they are not known."""
    if depth == 0:
        return None
    if value.op == "state_dict" and value.args:
        return names_of_module(value.args[0])
    if value.op == "part" and len(value.args) == 2:
        saved = _saved_as(computation, value.args[0])
        entry = saved.entries.get(constant(value.args[1])) if isinstance(saved, Table) else None
        return None if entry is None else first_names(computation, entry, depth - 1)
    if value.op == "load":
        saved = _saved_as(computation, value)
        return None if saved is None else first_names(computation, saved, depth - 1)
    if isinstance(value, Table) and not value.entries and len(value.others) == 1:
        key = value.others[0][0]
        whole = key.args[0].args[0] if key.op == "part" and key.args[0].op == "element" and key.args[0].args else None
        if whole is not None and whole.op == "items" and constant(key.args[1]) == 0:
            return first_names(computation, whole.args[0], depth - 1)
    return None


def names_of_module(module: Value) -> set[str] | None:
    """The first words of the names of a module's weights; None where they are not known."""
    module = plain(module)
    if module.op in _WRAPPERS:
        return set(_WRAPPERS[module.op])
    if not isinstance(module, Instance) or module.of is None:
        return None
    return {name for name, value in module.attributes.items() if _has_weights(value)} or None


def _has_weights(value: Value) -> bool:
    if isinstance(value, Instance):
        return value.of is not None and any(_has_weights(one) for one in value.attributes.values())
    return value.op.startswith(("torch.nn.", "torchvision.models.")) or value.op in ("Parameter", "weight_norm", "spectral_norm")


def _saved_as(computation: Computation, load: Value) -> Value | None:
    """What was saved to where something is loaded from; None where there is more than one, or none."""
    if load.op != "load" or not load.args:
        return None
    found = [one.args[0] for one in computation.of("save") if len(one.args) > 1 and (one.args[1] is load.args[0] or same(one.args[1], load.args[0])) and one.number < load.number]
    return found[0] if len({one.node for one in found}) == 1 else None
