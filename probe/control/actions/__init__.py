"""Every action there is, by the name of its command."""

from __future__ import annotations

from probe.control.action import Action
from probe.control.actions.capture import Capture
from probe.control.actions.checkpoint import Checkpoint
from probe.control.actions.clip import Clip
from probe.control.actions.holding import Pause, Resume
from probe.control.actions.loss_scale import LossScale
from probe.control.actions.lr import Lr
from probe.control.actions.memory_snapshot import MemorySnapshot
from probe.control.actions.profile import Profile
from probe.control.actions.save_batch import SaveBatch
from probe.control.actions.skip_nonfinite import SkipNonfinite
from probe.control.actions.spike_guard import SpikeGuard
from probe.control.actions.stop import Stop
from probe.control.actions.watch import WatchValues

ACTIONS: dict[str, type[Action]] = {
    kind.name: kind
    for kind in (
        Lr, Checkpoint, Clip, SkipNonfinite, SpikeGuard, LossScale, Pause, Resume, Stop, Profile, Capture,
        WatchValues, MemorySnapshot, SaveBatch,
    )
}
