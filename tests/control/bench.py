"""Optimizers of this process, stepped as `acting` steps them, and what actions need of a job."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from probe.job.actions.action import Action

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
}
LIKE_ADAM = [name for name in OPTIMIZERS if "Ad" in name and name != "Adagrad"]


class Bench:
    """Optimizers of this process as an action's site shows them; `step` is a step with the hooks called."""

    def __init__(self, *optimizers: Any, schedulers: tuple[Any, ...] = (), scaler: Any = None) -> None:
        self._optimizers, self._schedulers, self._scaler = list(optimizers), list(schedulers), scaler
        self.recorder = SimpleNamespace(counted_step=0, recent=[(1_000_000, False, False, 0)])
        self.several_ranks, self.together, self.rank, self.world_size = False, False, 0, None
        self.actions: list[Action] = []

    def optimizers(self) -> list[Any]:
        return self._optimizers

    def schedulers(self, optimizer: Any) -> list[Any]:
        return [one for one in self._schedulers if one.optimizer is optimizer]

    def scalers(self) -> list[Any]:
        return [] if self._scaler is None else [self._scaler]

    def names(self, *wanted: str) -> dict[str, Any]:
        return {}

    def name_of(self, thing: Any, default: str) -> str:
        return default

    def do(self, kind: type[Action], **arguments: Any) -> Any:
        action = kind(arguments, self)  # type: ignore[arg-type]
        action.begin()
        self.actions.append(action)
        return action

    def step(self, optimizer: Any = None, then: Any = None) -> None:
        """What `acting` does around an optimizer's step."""
        optimizer = optimizer or self._optimizers[0]
        for action in self.actions:
            if action.standing:
                action.before_step(optimizer)
        if then is None:
            optimizer.step()
        else:
            then(optimizer)
        for action in reversed(self.actions):
            if action.standing:
                action.after_step(optimizer)
        self.recorder.counted_step += 1


def trained(make: Callable[[Any], Any], steps: int = 3) -> tuple[list[nn.Parameter], Any]:
    """Parameters with gradients, and an optimizer that has stepped."""
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2))]
    optimizer = make(parameters)
    for _ in range(steps):
        give(parameters)
        optimizer.step()
    return parameters, optimizer


def give(parameters: list[nn.Parameter], factor: float = 1.0) -> None:
    """A gradient each, but for the last."""
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn_like(parameter) * factor


def everything(parameters: list[nn.Parameter], optimizer: Any) -> str:
    return repr((parameters, optimizer.state_dict()))
