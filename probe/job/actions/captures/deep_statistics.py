"""Deep watch: statistics of all gradients, updates, outputs of modules and distributions, for some steps.

Part of `watch`. The instruments do the work (`tensors/gradients`, `tensors/activations`) and write
python.gradients and python.activations; here they are switched on and off between two steps. Distributions
become rows of python.histograms, which the agent's thread journals (`collect`). Nothing communicates, so one
rank may watch without the others. Standard library only.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from probe.base import clock
from probe.base.errors import ActionRefused, BadRequest
from probe.job.actions.action import Site, flag
from probe.job.instruments.core import statistics
from probe.job.instruments.tensors.gradient_rows import StatisticsRequest

KINDS = ("gradients", "histograms", "activations", "updates")
DEFAULT_STEPS = 5
MOST_STEPS, MOST_HISTOGRAM_STEPS = 1000, 50
MOST_HISTOGRAMS = 20_000
"""Rows of one watch, at most: one is about 1.2 kB in a journal that holds 64 MB."""


class DeepWatch:
    """The statistics that are on during the watched steps."""

    def __init__(self, arguments: dict[str, Any], steps: int, site: Site) -> None:
        wanted = {kind: flag(arguments, kind) for kind in KINDS}
        self.kinds = [kind for kind in KINDS if wanted[kind]]
        most = MOST_HISTOGRAM_STEPS if wanted["histograms"] else MOST_STEPS
        if self.kinds and steps > most:
            raise BadRequest(
                f"at most {most} steps are watched with {', '.join(self.kinds)}, not {steps}",
                hint="`--every 100` spreads them over a longer time.",
            )
        self._site = site
        self._notes: list[str] = []
        self._claims = False
        self._histograms: deque[dict[str, Any]] = deque()
        self._dropped = self._made = 0
        self._asked: StatisticsRequest | None = None
        self._parameters = wanted["gradients"] or wanted["updates"] or wanted["histograms"]
        self._modules = wanted["activations"]
        if self._parameters or self._modules:
            self._check(only_modules=not self._parameters)
        if self._parameters:
            self._asked = StatisticsRequest(
                histograms=self._note if wanted["histograms"] else None, updates=wanted["updates"],
            )
        self._tell = self._note if wanted["histograms"] else None

    def _check(self, *, only_modules: bool) -> None:
        if not self._site.optimizers() and not only_modules:
            raise ActionRefused(
                "no optimizer is known in this process: gradients are looked at around its steps",
                hint="It is known from its first step on; `--activations` needs none.",
            )
        if self._modules and self._site.compiles:
            why = "the job compiles its model (torch.compile), whose modules must see no hook"
            if only_modules:
                raise ActionRefused(why, hint="`--gradients` works there; run it without torch.compile else.")
            self._modules = False
            self._notes.append(f"no activations: {why}")

    def __bool__(self) -> bool:
        return bool(self.kinds)

    # Between two steps ------------------------------------------------------

    def claim(self) -> None:
        """One watch at a time: raises `ActionRefused` while there is another."""
        if not self.kinds:
            return
        if self._site.gradients.claimed:
            raise ActionRefused(
                "another watch looks at gradients or activations already",
                hint="`probe PID actions` lists it; `probe PID undo ID` ends it.",
            )
        self._site.gradients.claimed = self._claims = True
        self._site.activations.forget()

    def release(self) -> None:
        """Others may watch."""
        if self._claims:
            self._site.gradients.claimed = self._claims = False

    def on(self) -> None:
        """Record the step that begins."""
        self._site.gradients.set_request(self._asked)
        if self._modules:
            self._site.activations.begin(self._tell)

    def off(self) -> None:
        """Stop recording; from any thread."""
        if self._asked is not None:
            self._site.gradients.set_request(None)
        if self._modules:
            self._site.activations.end()

    @property
    def arriving(self) -> bool:
        """Whether a device still has to deliver figures."""
        return self._site.gradients.delivery.pending

    # Rows -------------------------------------------------------------------

    def _note(self, step: int, kind: str, name: str | None, row: list[float]) -> None:
        """A distribution: on the training thread, or the agent's when a device had it."""
        if self._made >= MOST_HISTOGRAMS:
            self._dropped += 1
            return
        found = statistics.described(row)
        if found is None:
            return
        self._made += 1
        names = [f"p{percent:g}" for percent in statistics.PERCENTILES]
        self._histograms.append({
            "step": step, "t_ns": clock.wall_ns(), "kind": kind, "name": name, "numel": found.numel,
            "min": found.min, **dict(zip(names, found.percentiles, strict=True)), "max": found.max,
            "skewness": found.skewness, "kurtosis": found.kurtosis, "counts": str(found.counts),
            "edges": str([float(f"{edge:.9g}") for edge in found.edges]),
        })

    def collect(self) -> list[dict[str, Any]]:
        """Rows of python.histograms since the last time."""
        found = []
        while self._histograms:
            found.append(self._histograms.popleft())
        return found

    def notes(self) -> list[str]:
        """What differs from the request."""
        return list(self._notes)

    def in_words(self) -> str:
        """What was recorded."""
        asked, seen = self._asked, self._site.activations
        parts = []
        if asked is not None:
            parts.append(f"{asked.rows} rows of python.gradients")
        if self._modules:
            parts.append(f"{seen.rows} of python.activations")
        if self._made:
            parts.append(f"{self._made} of python.histograms")
        late = (asked.late_steps if asked is not None else []) + (seen.late_steps if self._modules else [])
        if late:
            parts.append(f"not all in {len(set(late))} steps: statistics take a second of a step at most")
        if self._dropped:
            parts.append(f"{self._dropped} distributions were left out")
        return ", ".join(parts)
