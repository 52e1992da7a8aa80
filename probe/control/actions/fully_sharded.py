"""Fully sharded: the state of an FSDP2 model whose parameters are gathered just now.

Inside a step, in a job that hangs, or after an evaluation, parameters of some modules are whole. Asked for
its state, such a module would put its shards back in place: the training thread would lose what it computes
with, and would gather once more later. So nothing is asked then; the shards, which FSDP keeps beside, are
read where they are. The training thread between two steps, or the thread of a request. Standard library
only; torch inside functions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

_WRAPPED = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""What wrappers put into names, and their own state_dict takes out again."""
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


def named_parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """As `root.named_parameters()`, with the shard for each parameter that is whole just now."""
    shards = gathered(root)
    if not shards:
        yield from root.named_parameters()
        return
    for prefix, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield _plain(path), shards.get((id(module), name), parameter)


def state_of(root: Any) -> Any:
    """As `root.state_dict()`, without putting shards in place."""
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
