"""Sharded models on one rank: reads and fills their parameters without calling `state_dict`.

With FSDP2, some modules may be gathered: inside a step, in a hung job, or after an evaluation. Their
`state_dict` would reshard them, and the training thread would lose the parameters it computes with. So the
shards, which FSDP keeps separately, are read directly. FSDP1 collects its state by collectives on the job's
groups; here its state is the flat parameters, of which each rank has a piece. Runs on the training thread
between two steps, on a request's thread, or on a thread that loads a checkpoint. Standard library only;
torch inside functions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

_WRAPPED = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")
"""Parts of names that wrappers add, and that their own `state_dict` removes."""
FLAT = "_flat_param"
"""FSDP1's name of the flat parameter of a module."""
Shards = dict[tuple[int, str], Any]


def gathered(root: Any) -> Shards:
    """The shards of gathered parameters, by module id and name; empty if nothing is gathered."""
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
    """FSDP2's parameter groups of one module."""
    if not hasattr(type(module), "_get_fsdp_state"):
        return []
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = state._fsdp_param_group  # older torch has one group
    return [] if one is None else [one]


def is_flat(kind: type) -> bool:
    """Whether this class is FSDP1's wrapper."""
    return any(
        base.__module__.startswith("torch.distributed.fsdp") and base.__name__ == "FullyShardedDataParallel"
        for base in kind.__mro__
    )


def holds_flat(root: Any) -> bool:
    """Whether FSDP1 shards a module or a part of it."""
    return any(is_flat(type(module)) for module in root.modules())


def flat_state(root: Any) -> OrderedDict[str, Any]:
    """This rank's state of a model sharded by FSDP1: its pieces of flat parameters, and the parameters and
    buffers that are not sharded. The tensors are the model's own."""
    found: OrderedDict[str, Any] = OrderedDict()
    pieces = _pieces(root)
    for prefix, module in root.named_modules():
        start = f"{prefix}." if prefix else ""
        handle = module._handle if is_flat(type(module)) else None
        if handle is not None:
            flat = handle.flat_param
            found[_unwrapped(f"{start}{FLAT}")] = getattr(flat, "_local_shard", flat.data).detach()
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in pieces:
                found[_unwrapped(start + name)] = parameter.detach()
        found.update(_buffers(start, module))
    return found


def _pieces(root: Any) -> set[int]:
    """Ids of flat parameters and of their views."""
    return {id(handle.flat_param) for handle in _handles(root)} | {id(one) for one in _views(root)}


def _handles(root: Any) -> list[Any]:
    handles = [module._handle for module in root.modules() if is_flat(type(module))]
    return [handle for handle in handles if handle is not None]


def _views(root: Any) -> list[Any]:
    """Views of flat parameters, as optimizers hold them."""
    return [one for handle in _handles(root) for one in getattr(handle.flat_param, "_params", None) or ()]


def named_parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """`root.named_parameters()`, with the shards of gathered parameters."""
    shards = gathered(root)
    if not shards:
        yield from root.named_parameters()
        yield from ((FLAT, one) for one in _views(root))  # FSDP1 removes them from their modules
        return
    for prefix, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield _unwrapped(path), shards.get((id(module), name), parameter)


def state_of(root: Any) -> Any:
    """`root.state_dict()`, without resharding."""
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
                found[_unwrapped(start + name)] = shards.get((id(module), name), parameter).detach()
        found.update(_buffers(start, module))
    return found


def _buffers(start: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Persistent buffers of one module, by their name in the state."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield _unwrapped(start + name), buffer.detach()


def _unwrapped(name: str) -> str:
    for part in _WRAPPED:
        name = name.replace(part, "")
    return name
