"""Sharded models as they are on one rank: read, and filled, without asking them for their state.

FSDP2, inside a step, in a job that hangs, or after an evaluation: parameters of some modules are whole. Asked
for its state, such a module would put its shards back in place: the training thread would lose what it
computes with, and would gather once more later. So the shards, which FSDP keeps beside, are read where they
are. FSDP1 collects its state by collectives on the job's groups: its flat parameters, of which each rank has
a piece, are read instead, and are what the state consists of. The training thread between two steps, the
thread of a request, or whoever loads a checkpoint. Standard library only; torch inside functions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

_WRAPPED = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")
"""What wrappers put into names, and their own state_dict takes out again."""
FLAT = "_flat_param"
"""What FSDP1 calls the parameter that all of a module's are pieces of."""
Shards = dict[tuple[int, str], Any]


def gathered(root: Any) -> Shards:
    """The shards of parameters that are whole just now, by the id of their module and their name in it;
    empty when the module is as it is between two steps."""
    groups = [group for module in root.modules() for group in _groups(module)]
    if all(group.is_sharded for group in groups):
        return {}
    found: Shards = {}
    for group in groups:
        for one in group.fsdp_params:
            info = one._module_info
            names = [(info.module, info.param_name)]
            names += zip(info.shared_modules, info.shared_param_names, strict=True)
            found.update({(id(module), name): one.sharded_param for module, name in names})
    return found


def _groups(module: Any) -> list[Any]:
    """The groups of parameters that FSDP2 gathers together, of one module."""
    if not hasattr(type(module), "_get_fsdp_state"):
        return []
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = state._fsdp_param_group  # torch before there could be several
    return [] if one is None else [one]


def is_flat(kind: type) -> bool:
    """Whether modules of this class are sharded by FSDP1."""
    return any(
        base.__module__.startswith("torch.distributed.fsdp") and base.__name__ == "FullyShardedDataParallel"
        for base in kind.__mro__
    )


def holds_flat(root: Any) -> bool:
    """Whether a module, or a part of it, is sharded by FSDP1."""
    return any(is_flat(type(module)) for module in root.modules())


def flat_state(root: Any) -> OrderedDict[str, Any]:
    """What this rank holds of a model that FSDP1 has sharded: its piece of each flat parameter, parameters
    and buffers that are not sharded. The tensors are the model's own."""
    found: OrderedDict[str, Any] = OrderedDict()
    pieces = _pieces(root)
    for prefix, module in root.named_modules():
        start = f"{prefix}." if prefix else ""
        handle = module._handle if is_flat(type(module)) else None
        if handle is not None:
            flat = handle.flat_param
            found[_plain(f"{start}{FLAT}")] = getattr(flat, "_local_shard", flat.data).detach()
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in pieces:
                found[_plain(start + name)] = parameter.detach()
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[_plain(start + name)] = buffer.detach()
    return found


def _pieces(root: Any) -> set[int]:
    """Ids of flat parameters and of those that are views of them."""
    return {id(handle.flat_param) for handle in _handles(root)} | {id(one) for one in _views(root)}


def _handles(root: Any) -> list[Any]:
    handles = [module._handle for module in root.modules() if is_flat(type(module))]
    return [handle for handle in handles if handle is not None]


def _views(root: Any) -> list[Any]:
    """The parameters that the optimizer has, where those are views of flat ones."""
    return [one for handle in _handles(root) for one in getattr(handle.flat_param, "_params", None) or ()]


def named_parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """As `root.named_parameters()`, with the shard for each parameter that is whole just now."""
    shards = gathered(root)
    if not shards:
        yield from root.named_parameters()
        yield from ((FLAT, one) for one in _views(root))  # FSDP1 takes them out of their modules meanwhile
        return
    for prefix, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield _plain(path), shards.get((id(module), name), parameter)


def state_of(root: Any) -> Any:
    """As `root.state_dict()`, without putting shards in place."""
    if holds_flat(root):
        return flat_state(root)
    shards = gathered(root)
    if not shards:
        return root.state_dict()
    found: OrderedDict[str, Any] = OrderedDict()
    for prefix, module in root.named_modules():
        start = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found[_plain(start + name)] = shards.get((id(module), name), parameter).detach()
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[_plain(start + name)] = buffer.detach()
    return found


def _plain(name: str) -> str:
    for part in _WRAPPED:
        name = name.replace(part, "")
    return name
