"""Forward: detects the first module call of a micro step, at the cost of one hooked call.

HOT PATH. A global forward pre-hook puts *every* module call on torch's slow path, 1-3 µs each. This one
removes itself when it fires: only the outermost call of the micro step pays. The recorder arms it again
after the next backward, batch or step.

A job that compiles gets no hook, because it would be traced into the graph or make torch warn. Instead a
wrapper on the class of compiled modules times their outermost calls.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Protocol

from probe.base import accelerator
from probe.base.isolation import Isolation
from probe.job.instruments.core.intervals import Intervals
from probe.job.instruments.core.living import living
from probe.job.instruments.core.patch import Patches, unseen
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.step_listeners import nothing
from probe.job.instruments.loop.manual_updates import ManualUpdates
from probe.recording.layout import NULL_BOOLEAN, NULL_STRING

_now = time.monotonic_ns
_KEY: Any = "probe"
_HOT_MODULES = (
    "probe.job.instruments.", "probe.base.isolation", "probe.recording.ring", "probe.recording.strings",
)
_NEAREST, _CALLER = 4, 9
"""Range of frames above `keywords` in which torch's frame is searched: `_keep_call`, its guard, `begin`, the
hook and its guard are in between."""
_CALLS = ("inner", "_call_impl")
_TENSORS_ONLY = ("deepspeed.runtime.zero.muon.",)
"""Modules whose compiled functions take tensors and call no module: importing ZeRO makes DeepSpeed decorate
them, in jobs that compile nothing else."""
PATIENCE = 64
"""Module calls without gradients after which the hook stops waiting for the training forward."""


class Looks(Protocol):
    """Samples a model's arguments: of training calls when `pace` is due, of calls without gradients when
    `gradless_pace` is due."""

    pace: Any
    gradless_pace: Any
    other_pace: Any
    sample: Callable[[Any, Any], object]
    sample_gradless: Callable[[Any, Any], object]
    sample_other: Callable[[Any, Any], object]


class RootCall(NamedTuple):
    """The call of a root module in the current micro step, with everything else its result depends on."""

    module: Any
    args: Any
    kwargs: Any
    """None if they could not be read."""
    autocast: Any
    """dtype of autocast on the CPU; None if it was off."""
    random_state: Any
    """torch's CPU generator right before the call; None if the model draws no random numbers."""
    batch: Any
    """The newest batch at that moment, see `batch_history`."""
    device_autocast: tuple[str, Any] | None = None
    """Kind and dtype of autocast on the device; None if it was off."""
    device_state: tuple[Any, Any] | None = None
    """The device's generator and its state right before the call; None without a device, or if the model
    draws no random numbers."""


class Forward:
    """Arms and disarms the hook; knows the root modules and whether the job compiles."""

    def __init__(self, recorder: Recorder, isolation: Isolation, made_optimizer: Callable[[], bool]) -> None:
        self.recorder = recorder
        self.compiles = False
        self.roots: dict[int, weakref.ref[Any]] = {}
        self.autocast: str | None = None
        """dtype of the autocast around the first call of the newest root; None without autocast."""
        self.around_step: Callable[[Any, Any], Any] = _as_it_is
        """Set by the installation: times a compiled `optimizer.step`."""
        self.trace_region: Callable[[str, int, int], object] | None = None
        """Set by the modules instrument: writes the forward row of a compiled region."""
        self.intervals: Intervals | None = None
        """Set by the installation: called for module calls without gradients, and for others while
        `Recorder.interval` is set."""
        self.keep_call: Callable[[Any, Any], object] | None = None
        """Set by the NaN detector: keeps the call until its backward ends, to repeat it after an event."""
        self.manual_updates: ManualUpdates | None = None
        """Counts steps while the job has no optimizer."""
        self.evaluates: Callable[[], object] | None = None
        """Set by the put-back instrument: called at the first module call without gradients after a step."""
        self.draws: Callable[[Any], object] | None = None
        """Set by the random states instrument while it inspects an evaluation: called with each module that
        is called without gradients."""
        self.inputs: Looks | None = None
        """Set by the installation: samples the arguments of a model on some steps."""
        self.made_optimizer = made_optimizer
        self._isolation = isolation
        self._patches = Patches()
        self._hooks: Any = {}
        self._skipped = 0
        self._last_input: Callable[[], Any] = _nothing_left
        self._repeats = 0

    def install(self) -> None:
        """Find torch's table of global hooks and wrap `torch.compile`; off the hot path."""
        import torch

        module = sys.modules["torch.nn.modules.module"]
        self._hooks = module._global_forward_pre_hooks
        self._hook = self._isolation.guard("forward", self._first_call)
        self._grad_enabled = torch.is_grad_enabled
        if _compiled_before():
            self.note_compile()

        def wrap_compile(original: Any) -> Any:
            def compile(*args: Any, **kwargs: Any) -> Any:
                # Used as a decorator with options, it is called without a function first, then with it.
                compiled = args[0] if args else kwargs.get("model")
                if compiled is not None and not _tensors_only(compiled):
                    self.note_compile()
                result = original(*args, **kwargs)
                owner = getattr(args[0], "__self__", None) if args else None
                if isinstance(owner, torch.optim.Optimizer) and args[0].__name__ == "step":
                    return self.around_step(result, owner)
                return result

            return compile

        self._patches.wrap(torch, "compile", wrap_compile)
        self.recorder.arm_forward = self.arm
        self.recorder.disarm_forward = self.disarm

    def uninstall(self) -> None:
        """Take the hook and the wrappers out."""
        self.recorder.arm_forward = None
        self.recorder.disarm_forward = nothing
        self.disarm()
        self._patches.undo()

    def note_compile(self) -> None:
        """The job compiles: use no global hook from now on."""
        if not self.compiles:
            self.compiles = True
            self.disarm()
            self._isolation.attempt("forward", self._stay_out_of_graphs)
            self._isolation.attempt("forward", self._time_compiled_modules)

    # HOT PATH ---------------------------------------------------------------

    def arm(self) -> None:
        """Wait for the next module call."""
        if not self.compiles:
            self._skipped = 0
            self.recorder.forward_armed = True
            self._hooks[_KEY] = self._hook

    def disarm(self) -> None:
        """Stop waiting."""
        self.recorder.forward_armed = False
        self._hooks.pop(_KEY, None)

    def _first_call(self, module: Any, args: Any) -> None:
        recorder = self.recorder
        if recorder.elsewhere():
            return
        if not self.trains():
            # Evaluation inside a training job: each module call pays for the armed hook.
            self._skipped += 1
            if self._skipped == 1:
                self.note_gradless(module, args)
                if self.evaluates is not None:
                    self.evaluates()
                inputs = self.inputs
                if inputs is not None and recorder.step >= inputs.gradless_pace.due:
                    inputs.sample_gradless(module, args)
            elif id(module) in self.roots:
                self.note_gradless(module, args)
                inputs = self.inputs
                if inputs is not None and recorder.step >= inputs.other_pace.due:
                    inputs.sample_other(module, args)
            if self.draws is not None:
                self.draws(module)
            if self._skipped > PATIENCE:
                self.disarm()
            return
        recorder.forward_armed = False
        self._hooks.pop(_KEY, None)
        self.begin(module, args)

    def trains(self) -> bool:
        """Whether a module call now belongs to the training, not to an evaluation."""
        return self._grad_enabled() or not self.made_optimizer()

    def note_gradless(self, module: Any, args: Any = ()) -> None:
        """The training thread calls an outermost module without gradients."""
        if self.intervals is not None and self.made_optimizer():
            training = module.__dict__.get("training") is not False
            again = training and self._repeated(args[0] if args else None)
            root = id(module) in self.roots
            self.intervals.gradless(root=root, training=training, again=again, now_ns=_now())

    def _repeated(self, given: Any) -> bool:
        """Whether this is at least the third call in a row on the same input, as in Monte Carlo dropout."""
        if given is not None and given is self._last_input():
            self._repeats += 1
            return self._repeats >= 2
        self._repeats = 0
        self._last_input = weakref.ref(given) if type(given).__weakrefoffset__ else _nothing_left
        return False

    def begin(self, module: Any, args: Any = None) -> None:
        """The training thread calls an outermost module; `args` when called by torch's hook."""
        recorder = self.recorder
        if recorder.interval is not None and self.intervals is not None:
            training = module.__dict__.get("training") is not False
            self.intervals.forwards(training=training, now_ns=_now())
        if recorder.begin_awaited and not recorder.saw_forward and self._grad_enabled():
            recorder.listener.step_begins("forward", NULL_STRING)
        now = _now()
        manual = self.manual_updates if recorder.micro_step else None
        if manual is not None and manual.forward_begins(now):
            self.disarm()  # ending the step armed it again
        if not recorder.forward_start_ns:
            recorder.forward_begins(now)
        if recorder.training_mode == NULL_BOOLEAN and (mode := module.__dict__.get("training")) is not None:
            recorder.training_mode = mode is True
        if id(module) not in self.roots:
            self.autocast = autocast_in_force()
            self.roots[id(module)] = weakref.ref(module, self._root_gone(id(module)))
        if self.keep_call is not None and args is not None:
            self.keep_call(module, args)
        inputs = self.inputs
        if inputs is not None and recorder.step >= inputs.pace.due and args is not None:
            inputs.sample(module, args)
        recorder.cost_ns += _now() - now

    def _root_gone(self, key: int) -> Callable[[object], object]:
        """Remove the entry of a root that is freed: its id may be reused."""
        roots = self.roots
        return lambda _reference: roots.pop(key, None)

    def _stay_out_of_graphs(self) -> None:
        """Keep our hooks out of compiled graphs: a hook returns at once while torch.compile traces it, and
        our code is marked as not to be compiled."""
        import torch
        from torch._dynamo.eval_frame import skip_code

        self._isolation.tracing[0] = torch.compiler.is_compiling
        for code in own_code():
            skip_code(code)

    def _time_compiled_modules(self) -> None:
        """Time calls of compiled modules from outside."""
        from torch._dynamo import eval_frame

        begin = self._isolation.guard("forward", self._compiled_call)
        end = self._isolation.guard("forward", self._compiled_return)
        recorder = self.recorder
        live = self._patches.live

        def wrap_call(original: Any) -> Any:
            def __call__(compiled: Any, *args: Any, **kwargs: Any) -> Any:
                if not live[0] or recorder.elsewhere():
                    return original(compiled, *args, **kwargs)
                begin(compiled)
                start = _now()
                result = original(compiled, *args, **kwargs)
                if recorder.sampling:
                    end(compiled, start)
                return result

            return __call__

        self._patches.wrap(eval_frame.OptimizedModule, "__call__", wrap_call)

    def _compiled_call(self, compiled: Any) -> None:
        recorder = self.recorder
        if recorder.forward_start_ns:
            return
        if self.trains():
            if recorder.timing or recorder.begin_awaited or recorder.interval is not None:
                self.begin(compiled._orig_mod)
        else:
            self.note_gradless(compiled._orig_mod)

    def _compiled_return(self, compiled: Any, start: int) -> None:
        if self.trace_region is not None:
            self.trace_region(f"{type(compiled._orig_mod).__name__} (compiled)", start, _now())


def autocast_in_force() -> str | None:
    """dtype of the calling thread's autocast, such as `bfloat16`; None if off. HOT PATH, once per root."""
    torch = sys.modules["torch"]
    for device in accelerator.kinds():
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


def keywords() -> Any:
    """Keyword arguments of the module call whose hook called `keep_call`; None if torch's frame is not found.

    A global hook is not passed the keyword arguments, and a hook that is would have to be registered on the
    module. Reading leaves a copy of the variables in torch's frame; it is freed when that call returns."""
    frame: Any = sys._getframe(_NEAREST)
    for _ in range(_CALLER - _NEAREST):
        if frame is None:
            return None
        if frame.f_code.co_name in _CALLS:
            return frame.f_locals.get("kwargs")
        frame = frame.f_back
    return None


def _nothing_left() -> None:
    """Stands for a weak reference to an input that is gone."""


def _as_it_is(compiled: Any, _optimizer: Any) -> Any:
    return compiled


def own_code() -> Iterator[CodeType]:
    """All code objects of probe that may run inside a step."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_HOT_MODULES):
            for one in vars(module).values():
                functions = [one] if isinstance(one, FunctionType) else []
                if isinstance(one, type) and one.__module__ == name:
                    functions = [item for item in vars(one).values() if isinstance(item, FunctionType)]
                for function in functions:
                    yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    yield unseen(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _tensors_only(compiled: Any) -> bool:
    """Whether no hook on modules could get into the graph of this function."""
    return isinstance(compiled, FunctionType) and f"{compiled.__module__}.".startswith(_TENSORS_ONLY)


def _compiled_before() -> bool:
    """Whether the job compiled before the instruments were installed: `torch.compile` leaves a context
    object."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    context = getattr(eval_frame, "OptimizeContext", None)
    return context is not None and bool(living(context))
