"""Chooses the optimizer of an action, and refuses changes on one rank of several.

Runs on the agent's thread, before the action begins. Standard library only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from probe.base.errors import ActionRefused, BadRequest
from probe.job.actions.action import Site, enumerated

NAMED = 4
"""Limit of optimizers named in a sentence: some jobs have one for each parameter."""


class Chosen(NamedTuple):
    """One optimizer, held weakly, and the names of the others."""

    reference: Callable[[], Any]
    name: str
    others: list[str]

    def optimizer(self) -> Any:
        """The optimizer; raises `ActionRefused` when it is gone."""
        found = self.reference()
        if found is None:
            raise ActionRefused(f"{self.name} is gone")
        return found


def choose(site: Site, wanted: object) -> Chosen:
    """The optimizer with that name or number; by default the leading one."""
    known = site.optimizers()
    alive = [one for one in known if not _only_wraps(one)] or known
    if not alive:
        raise ActionRefused(
            "no optimizer is known in this process", hint="It is known from its first step on."
        )
    plain = "optimizer" if len(alive) == 1 else "optimizer {}"
    names = [site.name_of(one, plain.format(index)) for index, one in enumerate(alive)]
    index = _index(site, alive, names, wanted)
    others = [name for number, name in enumerate(names) if number != index]
    return Chosen(weakref.ref(alive[index]), names[index], others)


def schedulers_of(site: Site, optimizer: Any) -> list[Any]:
    """The schedulers of an optimizer, or of one that only wraps it. Agent's thread."""
    groups = optimizer.param_groups
    same = [one for one in site.optimizers() if one is not optimizer and one.param_groups is groups]
    found = [scheduler for one in (optimizer, *same) for scheduler in site.schedulers(one)]
    return list({id(scheduler): scheduler for scheduler in found}.values())


def _only_wraps(optimizer: Any) -> bool:
    """Whether it only wraps another optimizer, whose groups it exposes and whose step it calls."""
    from torch.optim import Optimizer

    groups, own = optimizer.param_groups, list(vars(optimizer).values())
    return any(isinstance(one, Optimizer) and one.param_groups is groups for one in own)


def _index(site: Site, alive: list[Any], names: list[str], wanted: object) -> int:
    if wanted is None:
        return 0
    text = str(wanted)
    if text.isdigit() and int(text) < len(alive):
        return int(text)
    if text in names:
        return names.index(text)
    meant = site.names(text).get(text) if text.isidentifier() else None
    for index, one in enumerate(alive):
        if one is meant:
            return index
    known = enumerated([f"{index} ({name})" for index, name in enumerate(names)], NAMED)
    raise BadRequest(f"there is no optimizer {text!r}", hint=f"There are {known}.")


def refuse_alone(site: Site, arguments: dict[str, Any], otherwise: str) -> None:
    """Refuse to change how one rank of several trains, unless forced; `otherwise` says the consequence."""
    if site.several_ranks and not site.together and not arguments.get("force"):
        raise ActionRefused(
            f"this is only rank {site.rank} of {site.world_size}: {otherwise}",
            hint="Name the job instead of a rank to do it on all ranks at the same step. `--force` does it "
            "on this rank only.",
        )
