"""A checkpoint of probe's under Lightning: a loader loads it before its first batch, and goes on there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import probe


class Resumed:
    """In place of the training loader. It has no length: the first epoch is shorter."""

    def __init__(self, path: str, loader: Any) -> None:
        self.path = path
        content = torch.load(path, weights_only=True)
        self.step: int = content["step"]
        self._kinds: dict[str, str] = content["probe"]["kinds"]
        self.trainer: Any = None
        self._loader = loader
        self._loaded = False

    def __iter__(self) -> Iterator[Any]:
        # A generator: Lightning also makes iterators that it does not use. By the first batch it has made
        # the optimizers, and no later: it fetches that batch before `on_train_start`.
        if self._loaded:
            yield from self._loader
        else:
            self._loaded = True
            yield from self._load().rest_of(self._loader)

    def _load(self) -> Any:
        trainer = self.trainer
        objects = {
            "module": [trainer.lightning_module], "optimizer": trainer.optimizers,
            "scheduler": [config.scheduler for config in trainer.lr_scheduler_configs],
        }
        left = {kind: list(found) for kind, found in objects.items()}
        return probe.load_checkpoint(
            self.path, **{name: left[kind].pop(0) for name, kind in self._kinds.items()}
        )
