"""Installation: creates, installs and removes all instruments of one agent.

Runs when the agent starts and stops, and once per round on the agent's thread (`collect`). Instruments and
the tables they write:

    steps        python.steps, python.intervals, python.saves, python.pulse (always, if anything is
                 recorded)
    losses       python.losses, python.loss_functions, python.model_inputs
    modules      python.torch_trace
    data         python.batches
    collectives  python.collectives
    memory       process.memory
    nonfinite    python.nonfinite, python.inputs (needs losses)
    dependence   python.dependence (needs nonfinite)
    scalars      python.scalars (so does `probe.log`)
    facts        python.parameters, python.modules, python.growth, python.schedulers,
                 python.random_states, python.plan, probe.facts
    gradients    python.gradients, python.optimizers, grad_norm of python.steps; python.updates,
                 python.weights, python.put_back
    on request   python.activations
    PROBE_SAMPLE_HZ  python.stack_samples, python.stack_nodes
"""

from __future__ import annotations

from typing import Any

from probe.base.isolation import Isolation
from probe.base.settings import Settings
from probe.job.instruments.comm.collectives import Collectives
from probe.job.instruments.comm.flight_recorder import Flight
from probe.job.instruments.core.intervals import Intervals
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.dependence.dependence_audit import DependenceAudit
from probe.job.instruments.facts.growth import Growth
from probe.job.instruments.facts.memory import Memory
from probe.job.instruments.facts.model_facts import ModelFacts
from probe.job.instruments.facts.planned_end import PlannedEnd
from probe.job.instruments.facts.random_generators import RandomStates
from probe.job.instruments.facts.resumption import Resumption
from probe.job.instruments.facts.run_facts import RunFacts
from probe.job.instruments.facts.saved_files import SavedFiles
from probe.job.instruments.governor import Governor
from probe.job.instruments.loop.data import Data
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.framework_calls import FrameworkCalls
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.manual_updates import ManualUpdates
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.loop.scalars import Scalars
from probe.job.instruments.loop.scheduler_states import Schedules
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.modules.module_times import Modules
from probe.job.instruments.modules.parameter_names import ParameterNames
from probe.job.instruments.nan.dropped_batches import DroppedBatches
from probe.job.instruments.nan.nan_detector import NanDetector
from probe.job.instruments.stack_sampler import StackSampler
from probe.job.instruments.tensors.activations import Activations
from probe.job.instruments.tensors.gradients import Gradients
from probe.job.instruments.tensors.loss_functions import LossFunctions
from probe.job.instruments.tensors.model_inputs import ModelInputs
from probe.job.instruments.tensors.pace import Pace
from probe.job.instruments.updates.put_back import PutBack
from probe.job.instruments.updates.update_samples import Updates
from probe.job.instruments.updates.watched_parameters import WatchedParameters
from probe.job.instruments.updates.weight_sums import WeightSums
from probe.recording.recording import Recording


class Installation:
    """The instruments that the settings select. The job has imported torch."""

    def __init__(
        self, recording: Recording, settings: Settings, isolation: Isolation, *, midway: bool = False
    ) -> None:
        wanted = settings.instruments
        self._isolation = isolation
        self.recorder = recorder = Recorder(
            recording, modules_interval=settings.modules_interval, midway=midway
        )
        self.optimizers = Optimizers(recorder, isolation)
        self.forward = Forward(recorder, isolation, lambda: self.optimizers.made_any)
        self.forward.around_step = self.optimizers.around
        self.losses = Losses(recorder, isolation, values="losses" in wanted)
        self.names = ModuleNames(recorder, self.forward)
        self.manual_updates = ManualUpdates(recorder, isolation, lambda: self.optimizers.made_any)
        self.forward.manual_updates = self.losses.manual_updates = self.manual_updates
        self.intervals = Intervals(recorder, lambda: self.optimizers.made_any)
        self.forward.intervals = self.intervals
        self.calls = FrameworkCalls(self.intervals, isolation)
        self.saved_files = SavedFiles(recorder, recording.journal)
        self.calls.saved = self.saved_files.note
        self.data: Data | None = None
        if "data" in wanted:
            self.data = Data(recorder, isolation, lambda: self.optimizers.made_any, self.intervals)
            self.data.manual_updates = self.manual_updates
        self.collectives = Collectives(recorder, isolation) if "collectives" in wanted else None
        self.flight = Flight(recorder, self.collectives) if self.collectives is not None else None
        self.memory = Memory(recorder, self.optimizers) if "memory" in wanted else None
        rate_hz = settings.sample_hz
        self.stack_sampler = StackSampler(recorder, rate_hz) if wanted and rate_hz else None
        journal = recording.journal
        self.scalars = Scalars(recorder, isolation, journal) if "scalars" in wanted else None
        self.model_facts: ModelFacts | None = None
        self.run_facts: RunFacts | None = None
        self.growth: Growth | None = None
        self.resumption: Resumption | None = None
        self.schedules: Schedules | None = None
        self.random_states: RandomStates | None = None
        self.planned_end: PlannedEnd | None = None
        if "facts" in wanted:
            self.schedules = Schedules(recorder, isolation, self.optimizers)
            self.random_states = RandomStates(
                recorder, isolation, self.optimizers, self.forward, self.names
            )
            known = (self.names, self.optimizers, self.forward)
            self.model_facts = ModelFacts(recorder, *known, journal)
            self.growth = Growth(recorder, self.data, journal)
            self.planned_end = PlannedEnd(recorder, self.optimizers, self.data, settings.total_steps)
            self.resumption = Resumption(recorder, isolation, self.optimizers)
            self.run_facts = RunFacts(
                recorder, self.optimizers, self.forward, self.data, self.resumption, journal
            )
        self.modules: Modules | None = None
        if "modules" in wanted:
            modules = self.modules = Modules(recorder, isolation, self.forward, self.losses, self.names)
            if self.run_facts is not None:
                self.run_facts.tools = lambda: modules.tools
            self.optimizers.trace_step = isolation.guard("modules", self.modules.trace_step)
            self.forward.trace_region = isolation.guard("modules", self.modules.trace_region)
        self.nan_detector: NanDetector | None = None
        self.dropped_batches: DroppedBatches | None = None
        if "nonfinite" in wanted and "losses" in wanted:
            self.nan_detector = NanDetector(
                recorder, isolation, self.forward, self.losses, self.names, self.optimizers,
                recording.journal, settings.nan_trace,
            )
            if self.data is not None:
                self.data.batches = self.nan_detector.batches
                self.dropped_batches = DroppedBatches(self.data, recording.journal)
        self.gradients = Gradients(
            recorder, isolation, self.optimizers, ParameterNames(recorder, self.names), settings.budget_ratio,
            lambda: self.forward.compiles, samples="gradients" in wanted,
        )
        watched = WatchedParameters(
            recorder, self.optimizers, self.forward, self.names, self.gradients.names
        )
        self.learning: list[Updates | WeightSums | PutBack] = []
        """The instruments that follow gradients to the parameters and beyond."""
        if "gradients" in wanted:
            ratio, spend = settings.budget_ratio, self.gradients.spend
            norm = self.gradients.norm
            self.learning = [
                Updates(recorder, isolation, self.optimizers, self.losses, watched, norm, ratio, spend),
                WeightSums(
                    recorder, isolation, self.optimizers, self.losses, self.names, watched, ratio, spend,
                    lambda: self.from_start,
                ),
                PutBack(recorder, isolation, self.optimizers, self.forward, watched, journal),
            ]
        self.activations = Activations(
            recorder, isolation, self.forward, self.names, self.gradients.delivery
        )
        """Active only on requested steps."""
        if "losses" in wanted:
            delivery, pace = self.gradients.delivery, Pace(recorder, settings.budget_ratio)
            functions = self.losses.roots = LossFunctions(recorder, isolation, delivery, pace)
            paces = [Pace(recorder, settings.budget_ratio, common=common) for common in (True, False, False)]
            batches = None if self.data is None else self.data.batches
            inputs = ModelInputs(recorder, isolation, self.names, delivery, *paces, batches=batches)
            self.forward.inputs = inputs
            functions.inputs_of, functions.labels_of = inputs.inputs_of, inputs.labels_of
            functions.samples_of = inputs.samples_of
        self.dependence: DependenceAudit | None = None
        if "dependence" in wanted and self.nan_detector is not None:
            kept = self.nan_detector.kept_call
            self.dependence = functions.audit = DependenceAudit(
                recorder, isolation, self.names, kept, journal, settings.budget_ratio
            )
        self.from_start = not midway
        """Whether counting began with the job's first step."""
        self.governor = Governor(
            recorder, settings.budget_ratio, modules=self.modules is not None,
            gradients=self.gradients if self.gradients.samples else None,
        )
        self._parts: list[Any] = []
        if wanted:
            # Optimizers last: the others then see the first counted step from its beginning.
            parts = (
                self.forward, self.losses, self.manual_updates, self.nan_detector, self.modules, self.data,
                self.collectives, self.flight, self.scalars, self.calls, self.resumption, self.schedules,
                self.random_states, self.gradients,
                *self.learning, self.optimizers,
            )
            self._parts = [part for part in parts if part is not None]

    @property
    def installed(self) -> bool:
        """Whether anything is recorded, so that steps are counted."""
        return bool(self._parts)

    def install(self, *, late: bool = False) -> None:
        """Install every instrument; one that fails is reported and left out.

        `late`: the job may already have created its optimizers."""
        if self._parts and late:
            self._isolation.attempt("optimizers", self.optimizers.find)
            stepped = any(one is not None and one.state for one in (seen() for seen in self.optimizers.seen))
            self.from_start = self.from_start and not stepped
        for part in self._parts:
            self._isolation.attempt(type(part).__name__.lower(), part.install)
        if self._parts:
            self.recorder.expect_forward()

    def uninstall(self) -> None:
        """Remove every instrument, the last one first."""
        self._isolation.attempt("activations", self.activations.end)
        if self.dependence is not None:
            self._isolation.attempt("dependence", self.dependence.uninstall)
        for part in reversed(self._parts):
            self._isolation.attempt(type(part).__name__.lower(), part.uninstall)

    def collect(self) -> None:
        """One round on the agent's thread."""
        attempt = self._isolation.attempt
        if self.stack_sampler is not None:
            attempt("stack samples", self.stack_sampler.collect)
        self.recorder.forget_ended_trainers()
        if self._parts:
            attempt("names", self.names.collect)
            attempt("losses", self.losses.collect)
            attempt("gradients", self.gradients.collect)
        for part in self.learning:
            attempt(type(part).__name__.lower(), part.collect)
        if self.nan_detector is not None:
            attempt("nonfinite", self.nan_detector.collect)
        if self.dropped_batches is not None:
            attempt("dropped batches", self.dropped_batches.collect)
        if self.dependence is not None:
            attempt("dependence", self.dependence.collect)
        if self._parts:
            attempt("governor", self.governor.adjust)
        if self.collectives is not None:
            attempt("collectives", self.collectives.collect)
        if self.flight is not None:
            attempt("flight", self.flight.read)
        if self.modules is not None:
            attempt("modules", self.modules.collect)
        if self._parts:
            attempt("intervals", self.calls.wrap_loaded)
            attempt("saves", self.saved_files.collect)
        if self.scalars is not None:
            attempt("scalars", self.scalars.wrap_loaded)
        if self.schedules is not None:
            attempt("schedules", self.schedules.collect)
        if self.random_states is not None:
            attempt("random states", self.random_states.collect)
        if self.model_facts is not None and self.run_facts is not None:
            attempt("model facts", self.model_facts.step)
            attempt("run facts", self.run_facts.step)
        if self.growth is not None:
            attempt("growth", self.growth.step)
        if self.planned_end is not None:
            attempt("planned end", self.planned_end.collect)

    def module_path(self, module: Any) -> str | None:
        """Path of a module; None if unknown."""
        return self.names.path(module)

    def seen(self) -> dict[str, Any]:
        """Objects that the instruments have seen, by their names in snippets."""
        found: dict[str, Any] = {}
        for root in self.names.roots()[:1]:
            found["model"] = root
        optimizer = self.optimizers.leader()
        if optimizer is not None:
            found["optimizer"] = optimizer
            for scheduler in self.optimizers.schedulers_of(optimizer)[:1]:
                found["scheduler"] = found["lr_scheduler"] = scheduler
        loaders = [loader for reference in self.data.loaders if (loader := reference())] if self.data else []
        if loaders:
            found["train_loader"] = found["train_dataloader"] = loaders[0]
        return found

    def sample_memory(self) -> None:
        """Sample memory, on the agent's thread."""
        if self.memory is not None:
            self._isolation.attempt("memory", self.memory.sample)
