"""Scalars: records what the job logs to TensorBoard, W&B, MLflow or its framework.

Writes python.scalars. The agent's thread wraps the libraries once the job has imported them (`wrap_loaded`);
nothing is imported. HOT PATH: the wrappers run inside the job's logging calls, after the library's function
returned: a call that raised is not recorded, and its result or exception is passed on. Numbers and 0-d
tensors in host memory are kept; values on a device are not read. `WRAPS` lists the functions; those on
classes also see a Lightning logger's calls. If transformers.Trainer or Lightning log without any of these,
the values are taken from the frameworks' own functions (`Wrap.fallback`).
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.plain_numbers import plain_number
from probe.job.instruments.core.recorder import Recorder
from probe.recording.journal import Journal
from probe.recording.layout import NULL_INTEGER

_now = time.monotonic_ns
MOST_NAMES = 200
"""Values under further names are not kept; one journal record reports it."""
LONGEST_NAME = 200
_MARK = "_wrapped_by_probe"
"""Attribute of each wrapper, visible through bound methods too."""
Logged = tuple[Any, Any]
"""One call's values by name, and the step passed with them."""


class Wrap(NamedTuple):
    """One function of a library, and how to read its calls."""

    source: str
    module: str
    owner: str
    """Class in the module; empty for a module's own function."""
    function: str
    logged: Callable[[tuple[Any, ...], dict[str, Any]], Logged]
    fallback: bool = False
    """Whether its call is kept only if it called no other function listed here."""


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, *names: str) -> Any:
    if len(args) > place:
        return args[place]
    return next((kwargs[name] for name in names if name in kwargs), None)


def _add_scalar(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    tag = _argument(args, kwargs, 1, "tag")
    return {tag: _argument(args, kwargs, 2, "scalar_value")}, _argument(args, kwargs, 3, "global_step")


def _add_scalars(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    main = _argument(args, kwargs, 1, "main_tag")
    values = _argument(args, kwargs, 2, "tag_scalar_dict")
    step = _argument(args, kwargs, 3, "global_step")
    return {f"{main}/{tag}": value for tag, value in values.items()}, step


def _run_log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    return _flat(_argument(args, kwargs, 1, "data")), _argument(args, kwargs, 2, "step")


def _wandb_log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    return _flat(_argument(args, kwargs, 0, "data")), _argument(args, kwargs, 1, "step")


def _log_metric(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    key, value = _argument(args, kwargs, 0, "key"), _argument(args, kwargs, 1, "value")
    return {key: value}, _argument(args, kwargs, 2, "step")


def _log_metrics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    return _argument(args, kwargs, 0, "metrics"), _argument(args, kwargs, 1, "step")


def _client_metric(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    key, value = _argument(args, kwargs, 2, "key"), _argument(args, kwargs, 3, "value")
    return {key: value}, _argument(args, kwargs, 5, "step")


def _trainer_log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    state, logs = _argument(args, kwargs, 2, "state"), _argument(args, kwargs, 4, "logs")
    return dict(logs), getattr(state, "global_step", None)


def _connector_metrics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logged:
    return _argument(args, kwargs, 1, "metrics"), _argument(args, kwargs, 2, "step")


def _flat(values: Any) -> dict[Any, Any]:
    """Flatten one level of nested dictionaries, joining keys with dots as W&B does."""
    found: dict[Any, Any] = {}
    for name, value in values.items():
        if type(value) is dict:
            found.update({f"{name}.{inner}": one for inner, one in value.items()})
        else:
            found[name] = value
    return found


WRAPS = (
    Wrap("tensorboard", "torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar", _add_scalar),
    Wrap("tensorboard", "torch.utils.tensorboard.writer", "SummaryWriter", "add_scalars", _add_scalars),
    Wrap("tensorboard", "tensorboardX.writer", "SummaryWriter", "add_scalar", _add_scalar),
    Wrap("tensorboard", "tensorboardX.writer", "SummaryWriter", "add_scalars", _add_scalars),
    Wrap("wandb", "wandb.sdk.wandb_run", "Run", "log", _run_log),
    # `wandb.init` puts the run's bound method here; one bound before `Run.log` was wrapped is wrapped itself.
    Wrap("wandb", "wandb", "", "log", _wandb_log),
    Wrap("mlflow", "mlflow.tracking.fluent", "", "log_metric", _log_metric),
    Wrap("mlflow", "mlflow.tracking.fluent", "", "log_metrics", _log_metrics),
    Wrap("mlflow", "mlflow", "", "log_metric", _log_metric),
    Wrap("mlflow", "mlflow", "", "log_metrics", _log_metrics),
    Wrap("mlflow", "mlflow.tracking.client", "MlflowClient", "log_metric", _client_metric),
    Wrap("transformers", "transformers.trainer_callback", "CallbackHandler", "on_log", _trainer_log, True),
    *(
        Wrap("lightning", f"{package}.trainer.connectors.logger_connector.logger_connector",
             "_LoggerConnector", "log_metrics", _connector_metrics, True)
        for package in ("lightning.pytorch", "pytorch_lightning")
    ),
)


class Scalars:
    """Installs the wrappers as their libraries appear."""

    def __init__(self, recorder: Recorder, isolation: Isolation, journal: Journal) -> None:
        self._recorder = recorder
        self._append = recorder.rings["python.scalars"].append
        self._journal = journal
        self._isolation = isolation
        self._patches = Patches()
        self._present: list[Wrap] = []
        self._names: dict[str, int] = {}
        self._sources: dict[str, int] = {}
        self._left_out = ""
        self._reported = False
        self._depth = threading.local()
        self._calls = 0
        """Calls kept so far."""
        self._loaded = 0

    def install(self) -> None:
        """Wrap the libraries that are loaded."""
        self.wrap_loaded()

    def uninstall(self) -> None:
        """Put the originals back."""
        self._patches.undo()

    # The agent's thread -----------------------------------------------------

    def wrap_loaded(self) -> None:
        """Wrap libraries loaded since; write one journal record when there are too many names."""
        if len(sys.modules) != self._loaded:
            self._loaded = len(sys.modules)
            self._present = [wrap for wrap in WRAPS if wrap.module in sys.modules]
        for wrap in self._present:
            self._wrap(wrap)
        if self._left_out and not self._reported:
            self._reported = True
            text = f"python.scalars keeps {MOST_NAMES} names; {self._left_out!r} and others are left out"
            self._journal.append({"event": "scalars left out", "what": text})

    def _wrap(self, wrap: Wrap) -> None:
        """Wrap one function unless it is wrapped. A module still being imported may lack it, and each
        `wandb.init` replaces `wandb.log`."""
        module: Any = sys.modules.get(wrap.module)
        found = module if module is None or not wrap.owner else vars(module).get(wrap.owner)
        current = None if found is None else vars(found).get(wrap.function)
        if isinstance(current, (FunctionType, MethodType)) and not hasattr(current, _MARK):
            self._sources[wrap.source] = self._recorder.intern(wrap.source)
            self._patches.wrap(found, wrap.function, functools.partial(self._around, wrap))
            setattr(vars(found)[wrap.function], _MARK, True)

    def _around(self, wrap: Wrap, original: Any) -> Any:
        live, depth = self._patches.live, self._depth
        note = self._isolation.guard("scalars", functools.partial(self._logged, wrap))

        def logged(*args: Any, **kwargs: Any) -> Any:
            if not live[0] or getattr(depth, "inside", False):
                return original(*args, **kwargs)
            if wrap.fallback:
                calls = self._calls
                result = original(*args, **kwargs)
                if self._calls == calls:
                    note(args, kwargs)
                return result
            depth.inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                depth.inside = False
            note(args, kwargs)
            return result

        return logged

    # HOT PATH ---------------------------------------------------------------

    def _logged(self, wrap: Wrap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        start = _now()
        recorder = self._recorder
        self._calls += 1
        values, step = wrap.logged(args, kwargs)
        named = step if isinstance(step, int) and not isinstance(step, bool) else NULL_INTEGER
        source = self._sources[wrap.source]
        for name, value in values.items():
            number = _number(value)
            if number is not None and isinstance(name, str) and (place := self._name(name)):
                self._append(recorder.step, start + ANCHOR_NS, place, number, named, source)
        if not recorder.elsewhere():
            recorder.cost_ns += _now() - start

    def _name(self, name: str) -> int:
        """String number of a name; 0 beyond `MOST_NAMES`."""
        place = self._names.get(name)
        if place is None:
            if len(self._names) >= MOST_NAMES:
                self._left_out = self._left_out or name[:LONGEST_NAME]
                return 0
            place = self._recorder.intern(name[:LONGEST_NAME])
            if place:  # else the string table is busy or full
                self._names[name] = place
        return place


def _number(value: Any) -> float | None:
    number = plain_number(value)
    return None if number is None else float(number)
