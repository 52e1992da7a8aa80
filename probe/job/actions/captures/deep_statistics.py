"""Deep watch: statistics of all gradients, updates, outputs of modules and distributions, for some steps.

Part of `watch`. Switches the instruments (`tensors/gradients`, `tensors/activations`) on and off between two
steps; they write python.gradients and python.activations. Distributions become rows of python.histograms,
which the agent's thread journals (`collect`). There is no communication, so one rank may watch without the
others. Standard library only.
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
"""Limit for the rows of one watch: a row has about 1.2 kB, and a journal holds 64 MB."""


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
        self._request: StatisticsRequest | None = None
        self._parameters = wanted["gradients"] or wanted["updates"] or wanted["histograms"]
        self._modules = wanted["activations"]
        if self._parameters or self._modules:
            self._check(only_modules=not self._parameters)
        if self._parameters:
            self._request = StatisticsRequest(
                histograms=self._note if wanted["histograms"] else None, updates=wanted["updates"],
            )
        self._tell = self._note if wanted["histograms"] else None

    def _check(self, *, only_modules: bool) -> None:
        if not self._site.optimizers() and not only_modules:
            raise ActionRefused(
                "no optimizer is known in this process: gradients are read around its steps",
                hint="It is known from its first step on; `--activations` needs none.",
            )
        if self._modules and self._site.compiles:
            why = "the job compiles its model (torch.compile), so its modules must have no hooks"
            if only_modules:
                raise ActionRefused(why, hint="`--gradients` works; or run the job without torch.compile.")
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
                "another watch already records gradients or activations",
                hint="`probe PID actions` lists it; `probe PID undo ID` ends it.",
            )
        self._site.gradients.claimed = self._claims = True
        self._site.activations.forget()

    def release(self) -> None:
        """Allow another watch."""
        if self._claims:
            self._site.gradients.claimed = self._claims = False

    def on(self) -> None:
        """Record the step that begins."""
        self._site.gradients.set_request(self._request)
        if self._modules:
            self._site.activations.begin(self._tell)

    def off(self) -> None:
        """Stop recording; from any thread."""
        if self._request is not None:
            self._site.gradients.set_request(None)
        if self._modules:
            self._site.activations.end()

    @property
    def arriving(self) -> bool:
        """Whether a device still has to deliver figures."""
        return self._site.gradients.delivery.pending

    # Rows -------------------------------------------------------------------

    def _note(self, step: int, kind: str, name: str | None, row: list[float]) -> None:
        """Add a distribution: on the training thread, or on the agent's if a device delivers it."""
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
        request, seen = self._request, self._site.activations
        parts = []
        if request is not None:
            parts.append(f"{request.rows} rows of python.gradients")
        if self._modules:
            parts.append(f"{seen.rows} of python.activations")
        if self._made:
            parts.append(f"{self._made} of python.histograms")
        late = request.late_steps if request is not None else []
        late = late + (seen.late_steps if self._modules else [])
        if late:
            parts.append(f"incomplete in {len(set(late))} steps: statistics take at most a second per step")
        if self._dropped:
            parts.append(f"{self._dropped} distributions were left out")
        return ", ".join(parts)
