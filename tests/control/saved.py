"""What tests of checkpoints save: a job that stands between two steps, without a process of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from probe.checkpoint.file import content_sha256
from probe.job.actions.saving.save import Save
from probe.job.introspection.training_frameworks import Framework


class Site:
    """A job that stands between two steps: what its frames name is what there is."""

    boundary = "data"
    rng_at_step_end = None
    world_size, rank, several_ranks = 1, 0, False

    def __init__(self, /, **named: Any) -> None:
        self.named = named
        self.position: dict[str, Any] | None = None
        self.recorder = SimpleNamespace(counted_step=7, micro_step=0, phase="forward", last_row=None)
        self.from_start = True
        self.framework = Framework()

    def _of(self, kind: type | tuple[type, ...]) -> list[Any]:
        return [thing for thing in self.named.values() if isinstance(thing, kind)]

    def modules(self) -> list[Any]:
        return self._of(nn.Module)

    def optimizers(self) -> list[Any]:
        return self._of(torch.optim.Optimizer)

    def schedulers(self, optimizer: Any) -> list[Any]:
        kinds = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)
        return [one for one in self._of(kinds) if one.optimizer is optimizer]

    def scalers(self) -> list[Any]:
        return self._of(torch.amp.GradScaler)

    def data_position(self) -> dict[str, Any] | None:
        return self.position

    def names(self, *wanted: str) -> dict[str, Any]:
        return {name: self.named[name] for name in wanted if name in self.named}

    def name_of(self, thing: Any, default: str) -> str:
        return next((name for name, one in self.named.items() if one is thing), default)


def save(site: Site, path: Path, **how: bool) -> dict[str, Any]:
    """What the action does, on one thread."""
    one = Save(site, path, **how)  # type: ignore[arg-type]
    one.begin()
    return one.finish()


def trained(steps: int = 3) -> dict[str, Any]:
    """A model, its optimizer and its scheduler, after some steps."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for _ in range(steps):
        model(torch.randn(6, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def values(thing: Any) -> str:
    """Everything in an object's state, bit for bit."""
    return content_sha256({"state": thing.state_dict()})


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
