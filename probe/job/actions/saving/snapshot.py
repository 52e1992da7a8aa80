"""Snapshot: the content of a checkpoint, collected from the live job and copied to the host.

On the training thread, between two steps (or, with `now`, on a thread of its own while the training thread
hangs). Writes nothing to disk and changes nothing of the job. Values that are not plain data (functions,
arrays, objects of unknown classes) are left out and listed. Standard library only; torch inside functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from probe.base.clock import wall_ns
from probe.base.errors import ActionFailed, ActionRefused
from probe.base.isolation import capture, describe
from probe.checkpoint.all_ranks import is_shard, shards_in
from probe.checkpoint.file import RESERVED, VERSION
from probe.checkpoint.random_states import random_states
from probe.checkpoint.sharded import FLAT, is_flat, named_parameters, state_of
from probe.job.actions.action import Site
from probe.job.actions.saving.plain_data import LEFT_OUT, Plain, check_tensor, copied, stored_bytes
from probe.job.actions.saving.shards import Shards
from probe.job.instruments.core.living import living
from probe.job.introspection.training_frameworks import unwrapped
from probe.recording.layout import NULL_DOUBLE
from probe.recording.tables import BY_NAME

STEP_NAMES = ("step", "global_step", "iteration", "it", "current_step")
EPOCH_NAMES = ("epoch", "current_epoch")
_OWNERS = ("trainer", "self")
_INSIDE = ("", "state.")
"""A trainer keeps its counters itself, or in a `state` object (`trainer.state.global_step`)."""
MODELS = ("model", "net", "network", "module", "policy")
"""Names of models of which only parts are called."""
AVERAGES = (
    "ema", "ema_model", "model_ema", "swa_model", "averaged_model", "teacher", "target", "target_model",
    "target_net",
)
"""Names of models that many loops keep and never call while training."""
SCHEDULERS = ("scheduler", "lr_scheduler", "sched")
"""Names of schedulers that are not torch's."""
_SHARDED = ("torch.distributed.fsdp", "torch.distributed._composable", "deepspeed", "fairscale", "megatron")
_RATE_FIELD = [column.name for column in BY_NAME["python.steps"].columns].index("lr")
MOST_NAMED = 5
"""Non-finite parameters that a message names."""


class Snapshot:
    """The content of a checkpoint without its hash, and notes about it."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.parameters: dict[str, frozenset[str]] = {}
        """Keys of each module's state that are parameters: buffers may hold infinities by design."""
        self.found: dict[str, str] = {}
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self.not_found: list[str] = []
        self.shards: Shards | None = None
        """Receives this rank's part of sharded tensors; None if one rank is saved alone."""
        self.numbered: dict[str, dict[int, str]] = {}
        """For each optimizer, names of parameters by their number."""
        self.on_host = False
        """Whether its tensors are copies that training does not change."""

    @property
    def size_bytes(self) -> int:
        """About the size of the file: the memory behind the tensors, each storage once."""
        return stored_bytes([self.content, {} if self.shards is None else self.shards.local])

    def held(self, name: str) -> Any:
        """An object's state, with this rank's shards of its sharded tensors."""
        shards = self.shards
        if shards is None:
            return self.content[name]
        return [self.content[name], *(shards.local[key] for key in shards_in(self.content[name]))]

    def copy_to_host(self) -> None:
        """Replace every tensor by a copy on the CPU; tensors that share memory share it again."""
        local = {} if self.shards is None else self.shards.local
        self.content, copies = copied([self.content, local])
        if self.shards is not None:
            self.shards.local = copies
        self.on_host = True


def take(site: Site, shards: Shards | None = None) -> Snapshot:
    """Collect the state of the job; raises `ActionRefused` if there is none.

    `shards` receives this rank's part of sharded tensors; without it a sharded model is refused."""
    snapshot = Snapshot()
    snapshot.shards = shards
    things = list(_things(site, shards is not None))
    for kind, name, thing in things:
        if kind == "optimizer":
            snapshot.numbered[name] = _names_of_parameters(thing, things)
        _add(snapshot, kind, name, thing)
    if not snapshot.kinds:
        raise ActionRefused(
            "no model and no optimizer was seen in this job yet",
            hint="A model is known from its first call on, an optimizer from its creation on.",
        )
    _loose_parameters(snapshot, things)
    for kind in ("module", "optimizer", "scheduler", "scaler"):
        if kind not in snapshot.kinds.values():
            snapshot.not_found.append("model" if kind == "module" else kind)
    _say_missing_schedulers(snapshot, site, things)
    _place(snapshot, site)
    return snapshot


# Which objects ------------------------------------------------------------------


def _things(site: Site, sharded: bool) -> Iterator[tuple[str, str, Any]]:
    """Kind, name in the file, and object, of everything that has a state; names are unique."""
    taken = set(RESERVED)
    modules = _modules(site, sharded)
    optimizers = site.optimizers()
    held = [unwrapped(one) for one in site.framework.held("lr_scheduler")]
    schedulers = [one for optimizer in optimizers for one in site.schedulers(optimizer)]
    schedulers += [one for one in held if _has_state(one)]
    if not schedulers:
        schedulers = [one for one in site.names(*SCHEDULERS).values() if _has_state(one)]
    groups = (
        ("module", "model", modules), ("optimizer", "optimizer", optimizers),
        ("scheduler", "scheduler", _each_once(schedulers)),
        ("scaler", "scaler", [one for one in site.scalers() if getattr(one, "_enabled", True)]),
    )
    for kind, default, things in groups:
        for thing in things:
            name = site.name_of(thing, default)
            name = name if name.isidentifier() else default
            plain, count = name, 1
            while name in taken:
                count += 1
                name = f"{plain}_{count}"
            taken.add(name)
            yield kind, name, thing


def _modules(site: Site, sharded: bool) -> list[Any]:
    """Outermost modules with a state: modules that were called, modules that contain them or the parameters
    that optimizers train, and averages that are never called."""
    import torch

    called = site.modules()
    held = site.framework.held("model")
    named = [*site.names(*MODELS, *AVERAGES).values(), *held]
    named = [one for one in named if isinstance(one, torch.nn.Module)]
    averages = [one for one in site.names(*AVERAGES).values() if any(one is other for other in named)]
    holders = [one for one in named if any(part is root for part in one.modules() for root in called)]
    found = _each_once([*called, *holders, *averages])
    groups = [group for optimizer in site.optimizers() for group in optimizer.param_groups]
    trained = {id(one) for group in groups for one in group["params"]}
    missing = trained - {id(one) for root in found for _, one in named_parameters(root)}
    roots = _outermost([*found, *_holders_of(site, missing)])
    for root in roots:
        _refuse_sharded(root, sharded)
    return [
        root for root in roots
        if next(root.parameters(), None) is not None or next(root.buffers(), None) is not None
    ]


def _outermost(modules: list[Any]) -> list[Any]:
    """The modules that no other one contains."""
    inside = {id(part) for root in modules for part in root.modules() if part is not root}
    return [root for root in _each_once(modules) if id(root) not in inside]


def _holders_of(site: Site, parameters: set[int]) -> list[Any]:
    """The outermost modules that have these parameters (by id): called later in a step, or not named yet. One
    pass over all objects, some ten milliseconds, if anything is missing.

    Several may hold the same (wrappers, graphs that a compiler made): those that a variable names come first,
    and those that add nothing are skipped."""
    import torch

    if not parameters:
        return []
    modules = living(torch.nn.Module)
    parents = {id(part): module for module in modules for part in vars(module).get("_modules", {}).values()}
    holders = []
    for module in modules:
        if any(id(one) in parameters for one in vars(module).get("_parameters", {}).values()):
            seen: set[int] = set()
            while id(module) in parents and id(module) not in seen:
                seen.add(id(module))
                module = parents[id(module)]
            holders.append(module)
    found, missing = [], set(parameters)
    for module in sorted(_each_once(holders), key=lambda one: not site.name_of(one, "")):
        own = {id(one) for one in module.parameters()}
        if own & missing:
            found.append(module)
            missing -= own
    return found


def _refuse_sharded(root: Any, together: bool) -> None:
    """Refuse a sharded model before any state is read, unless all ranks save it (`together`). Models that
    collect their state by collectives of their own are always refused."""
    kind = next((type(one) for one in root.modules() if _collects(type(one))), None)
    if kind is not None:
        raise ActionRefused(
            f"the model is sharded by {kind.__module__}.{kind.__name__}, whose state is collected by "
            "collectives on the job's own groups; nothing was changed",
            hint="Let the job write one itself. Models sharded by FSDP, and tensor-parallel ones, can be "
            "saved.",
        )
    if together:
        return
    distributed = sys.modules.get("torch.distributed.tensor")
    kinds: Any = getattr(distributed, "DTensor", ())
    sharded = next((type(part) for part in root.modules() if _sharding(type(part))), None)
    if sharded is None:
        sharded = next((type(one) for one in root.parameters() if isinstance(one, kinds)), None)
    if sharded is not None:
        raise ActionRefused(
            f"the model is sharded ({sharded.__name__}): every rank has a part of it, and this command is "
            "for one rank; nothing was changed",
            hint="Name the job without a rank, and a folder: `probe JOB checkpoint DIR` saves all parts.",
        )


def _collects(kind: type) -> bool:
    fully = is_flat(kind) or any(base.__name__ == "FSDPModule" for base in kind.__mro__)
    return _sharding(kind) and not fully


def _sharding(kind: type) -> bool:
    return any(base.__module__.startswith(_SHARDED) for base in kind.__mro__)


def _has_state(thing: Any) -> bool:
    return callable(getattr(type(thing), "state_dict", None)) and callable(
        getattr(type(thing), "load_state_dict", None)
    )


def _each_once(things: Iterable[Any]) -> list[Any]:
    return list({id(thing): thing for thing in things}.values())


def _add(snapshot: Snapshot, kind: str, name: str, thing: Any) -> None:
    """One object's state. Runs the job's own state_dict hooks, as saving it in the job would."""
    state, error = capture(lambda: state_of(thing) if kind == "module" else thing.state_dict())
    if error is not None and not isinstance(error, Exception):
        raise error  # an interrupt from the keyboard is the job's
    if error is not None:
        raise ActionFailed(
            f"{name}.state_dict() raised {describe(error)}; nothing was written",
            hint="The job cannot save this object itself either.",
        )
    kept = Plain(snapshot.left_out, snapshot.notes, _stand_in(snapshot, kind, name)).of(state, name)
    if kept is LEFT_OUT:
        return
    snapshot.content[name] = kept
    snapshot.kinds[name] = kind
    if kind == "module":
        snapshot.parameters[name] = frozenset(
            [key for key, _ in thing.named_parameters(remove_duplicate=False)]
            + [key for key in kept if key.endswith(FLAT)]
        )


def _stand_in(snapshot: Snapshot, kind: str, name: str) -> Callable[[Any, str], Any]:
    """Replaces sharded tensors in an object's state by placeholders, each with a unique key."""
    shards = snapshot.shards
    if shards is None:
        return lambda tensor, path: None
    numbered = snapshot.numbered.get(name, {})

    def stand_in(tensor: Any, path: str) -> Any:
        start = f"{name}.state."
        if kind == "optimizer" and path.startswith(start):
            number, _, slot = path.removeprefix(start).partition(".")
            path = f"{start}{numbered.get(int(number), number)}.{slot}"
        return shards.stand_in(tensor, path)

    return stand_in


def _names_of_parameters(optimizer: Any, things: list[tuple[str, str, Any]]) -> dict[int, str]:
    """Names of an optimizer's parameters in their model's state, by number."""
    modules = [root for kind, _, root in things if kind == "module"]
    names = {id(one): key for root in modules for key, one in named_parameters(root)}
    trained = [one for group in optimizer.param_groups for one in group["params"]]
    return {number: names[id(one)] for number, one in enumerate(trained) if id(one) in names}


def _loose_parameters(snapshot: Snapshot, things: list[tuple[str, str, Any]]) -> None:
    """Parameters that an optimizer trains and no module in the file has, by number."""
    known = {id(one) for kind, _, root in things if kind == "module" for _, one in named_parameters(root)}
    loose: dict[str, dict[int, Any]] = {}
    for name, optimizer in [(name, thing) for kind, name, thing in things if kind == "optimizer"]:
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        for number, parameter in enumerate(trained):
            if id(parameter) not in known:
                check_tensor(parameter, f"parameter {number} of {name}")
                loose.setdefault(name, {})[number] = parameter.detach()
    snapshot.content["probe"] = {"loose_parameters": loose}


def _say_missing_schedulers(snapshot: Snapshot, site: Site, things: list[tuple[str, str, Any]]) -> None:
    """Note that an optimizer's rate follows a schedule that is not in the file."""
    if any(kind == "scheduler" for kind, _, _ in things):
        return
    for name, optimizer in [(name, thing) for kind, name, thing in things if kind == "optimizer"]:
        if any("initial_lr" in group for group in optimizer.param_groups):
            snapshot.notes.append(
                f"no scheduler was found, but one has set rates of {name} (its groups have `initial_lr`): "
                "its state is not in the file"
            )
            return
    last = _last_rate(site)
    first = None if last is None else _first_rate(site)
    if first is not None and first != last:
        snapshot.notes.append(
            f"no scheduler was found, and the learning rate has changed from {first:g} to {last:g}: the file "
            "has the rate, but not the schedule that sets it"
        )


def _last_rate(site: Site) -> float | None:
    row = site.recorder.last_row
    return None if row is None or row[_RATE_FIELD] == NULL_DOUBLE else row[_RATE_FIELD]


def _first_rate(site: Site) -> float | None:
    """The learning rate of the oldest step that is still in memory."""
    ring = site.recorder.rings["python.steps"]
    newest = site.recorder.step
    row = ring.read(max(1, newest - ring.rows + 2)) if newest else None
    return None if row is None or row[_RATE_FIELD] == NULL_DOUBLE else row[_RATE_FIELD]


# Where the run is ---------------------------------------------------------------


def _place(snapshot: Snapshot, site: Site) -> None:
    """Step, epoch, random states, position in the data."""
    import torch

    recorder = site.recorder
    counted = recorder.counted_step
    step = _counter(snapshot, site, "step", STEP_NAMES)
    if step is None and counted is not None and counts_from_the_start(site):
        step, snapshot.found["step"] = counted, "counted by probe"
    epoch = _counter(snapshot, site, "epoch", EPOCH_NAMES)
    position = site.data_position()
    for name, value in (("step", step), ("epoch", epoch), ("position in the data", position)):
        if value is None:
            snapshot.not_found.append(name)
    # A batch that the loop draws by hand is already drawn when the next step's first module is called.
    earlier = site.rng_at_step_end if site.boundary == "forward" else None
    states = random_states() if earlier is None else earlier
    if position is not None and position["untouched"]:
        # The next pass has begun, and nothing of it is used. Continuing from before its start draws the same
        # order, also in loops that make their iterator anew.
        states = {**states, "torch": position["torch_state"]}
    snapshot.content["step"], snapshot.content["epoch"] = step, epoch
    snapshot.content["probe"].update(
        version=VERSION, kinds=snapshot.kinds, steps_counted=counted, found=snapshot.found,
        boundary=site.boundary or f"now, in {recorder.phase}", rng=states, data=position,
        world_size=site.world_size, rank=site.rank, torch=str(torch.__version__), saved_ns=wall_ns(),
        left_out=snapshot.left_out,
    )
    _say_where(snapshot, site)


def counts_from_the_start(site: Site) -> bool:
    """Whether probe saw the job's first step; false if the agent was attached later."""
    return bool(site.from_start)


def _say_where(snapshot: Snapshot, site: Site) -> None:
    """Note what the time of the snapshot means for a run that continues from it."""
    if not site.boundary:
        phase = site.recorder.phase
        mixed = ", which an optimizer's step may have changed in part" if phase == "optimizer" else ""
        snapshot.notes.append(
            f"taken while the training thread was in {phase}: parameters are those of the moment{mixed}, "
            "random states and the position in the data too, so a run that continues from it is not "
            "bit-identical"
        )
    elif site.boundary == "step end":
        snapshot.notes.append(
            "taken right after the optimizer's step: what the loop does after it (a scheduler's step, a "
            "scaler's update) is not included"
        )
        if snapshot.content["probe"]["data"] is not None:
            snapshot.notes.append("a batch that the loop had fetched ahead counts as used")
    if site.several_ranks and snapshot.shards is None:
        snapshot.notes.append(
            f"rank {site.rank} of {site.world_size}: models that are replicated are the same on every rank, "
            "random states and the position in the data are this rank's"
        )


def _counter(snapshot: Snapshot, site: Site, what: str, names: tuple[str, ...]) -> int | None:
    """The job's own counter: the framework's, a variable with one of these names, or an attribute of the
    job's own trainer."""
    counter = site.framework.counter("epoch" if what == "epoch" else "global_step")
    if counter is not None:
        value, snapshot.found[what] = counter
        # A framework counts a step only after the optimizer's has ended.
        return value + 1 if what == "step" and site.boundary == "step end" else value
    found = site.names(*names, *_OWNERS)
    for name in names:
        if type(found.get(name)) is int:
            snapshot.found[what] = name
            return int(found[name])
    for owner in _OWNERS:
        for inside in _INSIDE:
            for name in names:
                value = _attribute(found.get(owner), f"{inside}{name}")
                if type(value) is int:
                    snapshot.found[what] = f"{owner}.{inside}{name}"
                    return value
    return None


def _attribute(thing: Any, path: str) -> Any:
    """A plain attribute; None if reading it would run the job's code."""
    for name in path.split("."):
        thing = None if thing is None else inspect.getattr_static(thing, name, None)
    return thing


# Checks -------------------------------------------------------------------------


def nonfinite_parameters(snapshot: Snapshot) -> list[tuple[str, int]]:
    """Every parameter with NaN or an infinity, and how many values."""
    found = []
    for name, keys in snapshot.parameters.items():
        for key, tensor in snapshot.content[name].items():
            if is_shard(tensor):
                assert snapshot.shards is not None
                tensor = snapshot.shards.local[tensor[1]]
            count = _nonfinite(tensor) if key in keys else 0
            if count:
                found.append((f"{name}.{key}", count))
    for name, loose in snapshot.content["probe"]["loose_parameters"].items():
        found += [(f"{name}[{number}]", count) for number, one in loose.items() if (count := _nonfinite(one))]
    return found


_AT_ONCE = 32_768
"""Elements checked in one call: for this few, torch uses one thread and starts no pool."""


def _nonfinite(tensor: Any) -> int:
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
        return 0
    with torch.no_grad():
        flat = tensor.detach().contiguous().view(-1)
        return sum(
            part.numel() - int(torch.isfinite(part.float() if part.element_size() == 1 else part).sum())
            for part in flat.split(_AT_ONCE)
        )
