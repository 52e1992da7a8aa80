"""Framework calls: wraps functions of torch and of training frameworks that evaluate, predict or save.

Each call is one row of python.intervals, from start to end: this gives the bounds of an evaluation more
exactly than any sign (`core.intervals`). The agent's thread wraps a library's functions once the job has
imported it (`wrap_loaded`); nothing is imported. HOT PATH, but not of an ordinary step: the wrappers run
around each call. `KNOWN` lists the functions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from probe.base.isolation import Isolation
from probe.job.instruments.core.intervals import CHECKPOINT, EVALUATION, PREDICTION, Intervals
from probe.job.instruments.core.patch import Patches


class Known(NamedTuple):
    """One function, and the kind of interval that its calls are."""

    kind: str
    module: str
    owner: str
    """Class in the module; empty for a module's own function."""
    function: str

    @property
    def by(self) -> str:
        """The text in `recognised_by`."""
        return f"{self.owner or self.module}.{self.function}"


KNOWN = (
    Known(CHECKPOINT, "torch", "", "save"),
    Known(CHECKPOINT, "torch.serialization", "", "save"),
    Known(CHECKPOINT, "torch.distributed.checkpoint", "", "save"),
    Known(CHECKPOINT, "torch.distributed.checkpoint.state_dict_saver", "", "save"),
    Known(CHECKPOINT, "torch.distributed.checkpoint", "", "async_save"),
    Known(CHECKPOINT, "torch.distributed.checkpoint.state_dict_saver", "", "async_save"),
    Known(CHECKPOINT, "safetensors.torch", "", "save_file"),
    Known(CHECKPOINT, "safetensors.torch", "", "save_model"),
    Known(CHECKPOINT, "transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    Known(CHECKPOINT, "transformers.trainer", "Trainer", "_save_checkpoint"),
    Known(CHECKPOINT, "transformers.trainer", "Trainer", "save_model"),
    Known(EVALUATION, "transformers.trainer", "Trainer", "evaluate"),
    Known(PREDICTION, "transformers.trainer", "Trainer", "predict"),
    Known(CHECKPOINT, "accelerate.accelerator", "Accelerator", "save_state"),
    Known(CHECKPOINT, "accelerate.accelerator", "Accelerator", "save_model"),
    Known(EVALUATION, "lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop", "run"),
    Known(PREDICTION, "lightning.pytorch.loops.prediction_loop", "_PredictionLoop", "run"),
    Known(CHECKPOINT, "lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint"),
    Known(EVALUATION, "pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop", "run"),
    Known(PREDICTION, "pytorch_lightning.loops.prediction_loop", "_PredictionLoop", "run"),
    Known(CHECKPOINT, "pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint"),
)
"""A function found in two modules gets one wrapper: `torch.save is torch.serialization.save` still holds."""
_STORAGES = ("UntypedStorage", "TypedStorage")
TO_A_PATH = ("save", "save_file")
"""Names of the functions among them whose second argument is a file."""


class FrameworkCalls:
    """Installs the wrappers as their libraries appear."""

    def __init__(self, intervals: Intervals, isolation: Isolation) -> None:
        self._intervals = intervals
        self.saved: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
        """Set by the installation: called with the arguments of a call that saved to a path."""
        self._isolation = isolation
        self._patches = Patches()
        self._loaded = 0
        self._missing = list(KNOWN)
        self._made: dict[Any, Any] = {}
        self._installed = False

    def install(self) -> None:
        """Wrap the functions of loaded libraries."""
        self._installed = True
        self.wrap_loaded()

    def uninstall(self) -> None:
        """Put the originals back. If the agent's thread is wrapping right now, it undoes what it adds."""
        self._installed = False
        self._patches.undo()
        self._missing = list(KNOWN)
        self._made.clear()
        self._loaded = 0

    # The agent's thread -----------------------------------------------------

    def wrap_loaded(self) -> None:
        """Wrap functions of libraries loaded since. A module still being imported may lack its function."""
        if self._installed and self._loaded != len(sys.modules):
            self._loaded = len(sys.modules)
            loaded = [known for known in self._missing if known.module in sys.modules]
            if not all([self._wrap(known) for known in loaded]):  # noqa: C419 - each is tried
                self._loaded = 0
            if not self._installed:
                self._patches.undo()

    def _wrap(self, known: Known) -> bool:
        """Wrap one function; False if it does not exist yet."""
        module: Any = sys.modules[known.module]
        owner = vars(module).get(known.owner) if known.owner else module
        original = None if owner is None else vars(owner).get(known.function)
        if not isinstance(original, FunctionType):
            return False
        if original not in self._made.values():
            self._patches.wrap(owner, known.function, functools.partial(self._around, known))
        self._missing.remove(known)
        return True

    def _around(self, known: Known, original: Any) -> Any:
        made = self._made.get(original)
        if made is not None:
            return made
        live = self._patches.live
        by = self._intervals.recorder.intern(known.by)
        enter = self._isolation.guard("intervals", self._intervals.enter)
        leave = self._isolation.guard("intervals", self._intervals.leave)
        saved = None
        if self.saved is not None and known.function in TO_A_PATH:
            saved = self._isolation.guard("saves", self.saved)

        def call(*args: Any, **kwargs: Any) -> Any:
            interval = enter(known.kind, by) if live[0] and not _pickles(args) else None
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
            finally:
                if interval is not None:
                    leave(interval, failed)
            if saved is not None and live[0]:
                saved(args, kwargs)
            return result

        self._made[original] = call
        return call


def _pickles(args: tuple[Any, ...]) -> bool:
    """Whether this call pickles a tensor for a queue or another rank: the tensor's storage saves itself."""
    return bool(args) and type(args[0]).__name__ in _STORAGES
