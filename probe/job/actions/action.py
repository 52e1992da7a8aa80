"""Action: the interface of all actions on a live job, and the job as they see it (`Site`).

An action is one file in `probe/job/actions`. Its life:

    __init__   agent's thread      validate; a bad argument is a `BadRequest`
    begin      training thread, at a boundary (with `now`, or if it only reads: the request's thread)
    hooks      training thread, while `standing`
    report     request's thread: the answer; slow work (files) belongs here
    undo       training thread, at a boundary
    cancel     any thread: probe leaves the process

Standard library only; torch inside functions.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from probe.base.errors import BadRequest, NotUndoable
from probe.base.settings import Settings
from probe.job.introspection.snippet_names import Scope, process_groups
from probe.job.introspection.training_frameworks import Framework

if TYPE_CHECKING:
    from probe.job.boundary.safe_point import SafePoint
    from probe.job.instruments.core.recorder import Recorder
    from probe.job.instruments.installation import Installation
    from probe.job.instruments.tensors.activations import Activations
    from probe.job.instruments.tensors.gradients import Gradients


_HELP = "`probe COMMAND --help` describes its arguments."


class Site:
    """The job as an action sees it. One per agent."""

    def __init__(
        self, instruments: Installation, safepoint: SafePoint, scope: Callable[[], Scope],
        settings: Settings, rank: int, world_size: int | None,
    ) -> None:
        self.safepoint = safepoint
        self.settings = settings
        self.rank = rank
        self.world_size = world_size
        self.scope = scope
        self.together = False
        """Whether every rank does the action at the same step, or none does."""
        self.together_name = ""
        """The id of that action, the same on all ranks."""
        self._instruments = instruments

    def of_all_ranks(self) -> Site:
        """The same job, for an action that every rank does at the same step."""
        other = copy.copy(self)
        other.together = True
        return other

    @property
    def recorder(self) -> Recorder:
        """The recorder, which knows the training loop's step and phase."""
        return self._instruments.recorder

    @property
    def from_start(self) -> bool:
        """Whether probe has seen every step of the job, so that its count is the job's."""
        return self._instruments.from_start

    @property
    def boundary(self) -> str:
        """Boundary at which the training thread runs requests (see `safe_point`); empty while it trains."""
        return self.safepoint.boundary

    @property
    def rng_at_step_end(self) -> dict[str, Any] | None:
        """Random states right after the last optimizer step; None outside of a boundary."""
        return self.safepoint.random_at_step_end

    @property
    def several_ranks(self) -> bool:
        """Whether other ranks train the same model."""
        return several_ranks(self.world_size)

    def optimizers(self) -> list[Any]:
        """Every optimizer alive, the leading one first."""
        return self._instruments.optimizers.alive()

    def schedulers(self, optimizer: Any) -> list[Any]:
        """Learning-rate schedulers of an optimizer; the outermost of nested ones."""
        return self._instruments.optimizers.schedulers_of(optimizer)

    def scalers(self) -> list[Any]:
        """Gradient scalers: those that stepped, else those the user's frames name."""
        seen = self._instruments.optimizers.scaler()
        if seen is not None:
            return [seen]
        named = self.names("scaler", "grad_scaler", "amp_scaler")  # a framework's trainer has these, too
        return [one for one in named.values() if hasattr(one, "_scale") and hasattr(one, "unscale_")]

    def modules(self) -> list[Any]:
        """Root modules that were called, the largest first."""
        return self._instruments.names.roots()

    def module(self, path: str) -> Any:
        """The module at that path, or None."""
        return self._instruments.names.find(path)

    def module_paths(self) -> list[str]:
        """Paths of all known modules."""
        return self._instruments.names.known()

    @property
    def compiles(self) -> bool:
        """Whether the job calls torch.compile: its modules must see no hook."""
        return self._instruments.forward.compiles

    @property
    def gradients(self) -> Gradients:
        """Statistics of gradients, on request."""
        return self._instruments.gradients

    @property
    def activations(self) -> Activations:
        """Statistics of the outputs of modules, on request."""
        return self._instruments.activations

    def guard(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """`hook`, but it never raises into the training, and does nothing while requests run between two
        steps. For hooks that an action registers with torch."""
        return self.safepoint.guard(name, hook)

    def data_position(self) -> dict[str, Any] | None:
        """See `Data.position`; None when data is not recorded."""
        data = self._instruments.data
        return data.position() if data is not None else None

    def kept_batch(self) -> Any:
        """The batch of the last traced event, else the newest batch; None when neither is held.

        See `instruments.nonfinite_events.KeptBatch`."""
        detector = self._instruments.nan_detector
        return detector.batch_to_save() if detector is not None else None

    def drop_batch(self) -> None:
        """Release the batch of the last event."""
        if self._instruments.nan_detector is not None:
            self._instruments.nan_detector.kept = None

    @property
    def framework(self) -> Framework:
        """The objects that a framework's trainer holds, if the training thread is in one."""
        return self.scope().framework

    def names(self, *wanted: str) -> dict[str, Any]:
        """The values of names in the user's frames; names that do not exist are left out."""
        return self.scope().resolve(wanted)

    def name_of(self, thing: Any, default: str) -> str:
        """The name of a variable in the user's frames that holds `thing`."""
        return self.scope().name_of(thing) or default


class Action:
    """One thing done to the job; see the module for its life."""

    name: ClassVar[str] = ""
    takes: ClassVar[tuple[str, ...] | None] = None
    """Names of its arguments; None if they depend on the request, and the action checks them itself."""
    reading = False
    """Whether it changes nothing and needs no boundary."""
    waits_s = 0.0
    """How long, after `begin`, the answer waits for `finished`."""
    undoable = True
    needs_random_states = False
    """Whether `at_boundary` reads `Site.rng_at_step_end`, which costs 30 µs a step."""
    begins_anywhere = False
    """Whether it can begin `now`: on a thread of its own, in the middle of a step."""
    writes: ClassVar[str] = ""
    """The argument that names a file of which each rank writes its own; see `path_of_rank`."""
    ends_on_training_thread = False
    """Whether, while standing, only the training thread can release what it holds."""

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        if self.takes is not None:
            only(arguments, *self.takes)
        self.arguments = arguments
        self.site = site
        self.standing: bool = False
        """Whether its hooks are called. An action sets and clears this itself."""
        self.finished = threading.Event()

    def begin(self) -> None:
        """Perform the action. If it raises a `ProbeError`, nothing was changed."""

    def report(self) -> dict[str, Any]:
        """`what` (a sentence), `notes` (a list of them) and details, as plain JSON."""
        raise NotImplementedError

    def undo(self) -> str:
        """Revert the change; returns a sentence that says so."""
        raise NotUndoable(f"{self.name} changed nothing that could be undone")

    def take_back(self) -> None:
        """Revert what `begin` did at this very boundary, because another rank could not do it. Only for
        actions that `can_take_back`."""
        self.undo()
        self.standing = False

    @property
    def can_take_back(self) -> bool:
        """Whether `take_back` leaves nothing behind."""
        return self.undoable

    def cancel(self) -> None:
        """Release everything."""
        self.standing = False

    def collect(self) -> dict[str, list[dict[str, Any]]]:
        """New rows by table of the journal; rows of python.variables lack their `watch_id`. On the agent's
        thread, once a second while standing and once at the end."""
        return {}

    def outcome(self) -> str:
        """A sentence on what it did, once it has ended by itself; may be empty."""
        return ""

    def before_step(self, optimizer: Any) -> None:
        """Right before an optimizer's step, while standing. HOT PATH."""

    def after_step(self, optimizer: Any) -> None:
        """Right after an optimizer's step, while standing. HOT PATH."""

    def at_boundary(self) -> None:
        """Between two steps, while standing."""


def several_ranks(world_size: int | None) -> bool:
    """Whether other ranks train with this one: as torch.distributed says, else as the launcher did."""
    distributed = process_groups()
    size = world_size if distributed is None else distributed.get_world_size()
    return size is not None and size > 1


def path_of_rank(path: str, rank: int) -> str:
    """The file of one rank where all ranks write one: `trace.json` of rank 2 is `trace.rank2.json`."""
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)
    return os.path.join(folder, f"{stem}.rank{rank}{ending}")


def only(arguments: dict[str, Any], *known: str) -> None:
    """Raise `BadRequest` for an argument that an action does not know."""
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise BadRequest(
            f"unknown argument {', '.join(unknown)}",
            hint=f"It takes {', '.join(known)}." if known else "It takes no arguments.",
        )


def number(
    arguments: dict[str, Any], name: str, default: float | None = None, *, least: float = 0.0,
    above: bool = False,
) -> float:
    """A finite number among the arguments, at least (or `above`) `least`; raises `BadRequest`."""
    value = arguments.get(name, default)
    if value is None:
        raise BadRequest(f"`{name}` is missing", hint=_HELP)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
        raise BadRequest(f"`{name}` must be a finite number, not {value!r}", hint=_HELP)
    if value < least or (above and value == least):
        least_text = f"{'above' if above else 'at least'} {least:g}"
        raise BadRequest(f"`{name}` must be {least_text}, not {value:g}", hint=_HELP)
    return float(value)


def whole_number(
    arguments: dict[str, Any], name: str, default: int | None = None, *, least: int = 0,
    most: int | None = None,
) -> int:
    """A whole number among the arguments, from `least` to `most`; raises `BadRequest`."""
    value = number(arguments, name, default, least=least)
    if value != int(value):
        raise BadRequest(f"`{name}` must be a whole number, not {value:g}", hint=_HELP)
    if most is not None and value > most:
        raise BadRequest(f"`{name}` must be at most {most}, not {value:g}", hint=_HELP)
    return int(value)


def flag(arguments: dict[str, Any], name: str) -> bool:
    """True or false among the arguments, false by default; raises `BadRequest`."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"`{name}` must be true or false, not {value!r}", hint=_HELP)
    return value


def enumerated(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
