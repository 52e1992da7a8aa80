"""All actions, by the name of their command."""

from __future__ import annotations

from probe.job.actions.action import Action
from probe.job.actions.captures.capture import Capture
from probe.job.actions.captures.expression_watch import WatchValues
from probe.job.actions.captures.memory_snapshot import MemorySnapshot
from probe.job.actions.captures.profile import Profile
from probe.job.actions.captures.save_batch import SaveBatch
from probe.job.actions.flow.pause import Pause, Resume
from probe.job.actions.flow.stop import Stop
from probe.job.actions.interventions.clip import Clip
from probe.job.actions.interventions.skip_nonfinite import SkipNonfinite
from probe.job.actions.interventions.spike_guard import SpikeGuard
from probe.job.actions.rates.learning_rate import Lr
from probe.job.actions.rates.loss_scale import LossScale
from probe.job.actions.saving.checkpoint import Checkpoint

ACTIONS: dict[str, type[Action]] = {
    kind.name: kind
    for kind in (
        Lr, Checkpoint, Clip, SkipNonfinite, SpikeGuard, LossScale, Pause, Resume, Stop, Profile, Capture,
        WatchValues, MemorySnapshot, SaveBatch,
    )
}
