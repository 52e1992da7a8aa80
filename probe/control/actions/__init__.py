"""Every action there is, by the name of its command."""

from __future__ import annotations

from probe.control.action import Action
from probe.control.actions.checkpoint import Checkpoint
from probe.control.actions.holding import Pause, Resume
from probe.control.actions.stop import Stop

ACTIONS: dict[str, type[Action]] = {kind.name: kind for kind in (Checkpoint, Pause, Resume, Stop)}
