"""Graphs: records the size of a loss's graph, its parameters that no optimizer holds, and sometimes its
shape.

Writes python.graphs. HOT PATH on sampled steps: `note`, on the training thread right after the walk of
`reached_parameters`. It tracks the leaves that no optimizer holds: a correct loop has none, or always the
same ones. A graph's shape rarely changes: after the first `SHAPES` walks, it is determined only on every
`SHAPES_EVERY`th walk. The agent's thread writes the rows. Uses the job's torch.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from typing import Any, NamedTuple

from probe.base.clock import wall_ns
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.updates.contrasts import contrasts
from probe.job.instruments.updates.graph_shape import Shape, shape_of
from probe.job.instruments.updates.reached_parameters import Graph
from probe.job.instruments.updates.reversed_gradients import reverses
from probe.job.instruments.updates.term_weights import term_weights
from probe.job.instruments.updates.watched_parameters import WatchedParameters
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER, NULL_STRING

MOST_KNOWN = 256
"""Parameters in no optimizer that are remembered; if there are more, none is reported as new."""
MOST_SHAPES = 4
SHAPES, SHAPES_EVERY = 4, 32
MOST_FUNCTIONS = 8
"""Autograd functions of the job that are looked at per graph."""
MOST_NAMED = 4
"""Chains of layers that a row names, and layers named per chain."""

Weak = weakref.ref[Any]


class Noted(NamedTuple):
    """A graph's shape, kept until the agent's thread writes the row."""

    junctions: int
    direct: int
    chains: list[tuple[Weak, list[Weak]]]
    attentions: int
    unnormalized: int
    softmaxes: int
    lone: int
    loss_weights: list[Weak]
    positive: bool


class Row(NamedTuple):
    """What the agent's thread makes a row of."""

    fields: list[int]
    shapes: list[Any]
    shape: Noted | None
    weights: float
    functions: list[weakref.ref[type]]
    contrasted: int


class Graphs:
    """Remembers the leaves that no optimizer holds from one walk to the next."""

    def __init__(self, recorder: Recorder, optimizers: Optimizers, watched: WatchedParameters) -> None:
        self._recorder, self._optimizers, self._watched = recorder, optimizers, watched
        self._append = recorder.rings["python.graphs"].append
        self._known: dict[int, weakref.ref[Any]] = {}
        self._walked = False
        self._walks = 0
        self._rows: deque[Row] = deque(maxlen=64)
        self._reversing: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()

    # HOT PATH ---------------------------------------------------------------

    def note(self, graph: Graph, root: Any, limit_ns: int) -> None:
        """Note a walked graph; `limit_ns`: time limit for determining its shape."""
        owners, recorder = self._watched.owners, self._recorder
        kind = sys.modules["torch"].nn.Parameter
        others = [one for key, one in graph.leaves.items() if key not in owners and isinstance(one, kind)]
        held = sum(key in owners for key in graph.leaves)
        row = [recorder.step, recorder.micro_step, wall_ns(), graph.nodes, graph.derivatives, held]
        self._walks += 1
        looks = self._walks <= SHAPES or self._walks % SHAPES_EVERY == 0
        shape = _noted(shape_of(root, limit_ns)) if looks else None
        weights = term_weights(root)
        found = contrasts(root) if looks else None
        contrasted = NULL_BOOLEAN if found is None else int(found)
        functions = [weakref.ref(one) for one in graph.functions[:MOST_FUNCTIONS]]
        if self._watched.made != self._optimizers.made_count or len(others) > MOST_KNOWN:
            unknown = (NULL_INTEGER, NULL_INTEGER, NULL_INTEGER)
            self._rows.append(Row([*row, *unknown], [], shape, weights, functions, contrasted))
            return
        known = self._known
        gone = [key for key, reference in known.items() if reference() is None]
        for key in gone:
            del known[key]
        fresh = [one for one in others if id(one) not in known]
        known.update((id(one), weakref.ref(one)) for one in fresh[: MOST_KNOWN - len(known)])
        anew = len(fresh) if self._walked else NULL_INTEGER
        shapes = [tuple(one.shape) for one in fresh[:MOST_SHAPES]] if self._walked else []
        self._walked = True
        row += [len(others), anew, len(gone)]
        self._rows.append(Row(row, shapes, shape, weights, functions, contrasted))

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Write the rows."""
        while self._rows:
            fields, shapes, noted, weights, functions, contrasted = self._rows.popleft()
            fresh = ", ".join(str(list(one)) for one in shapes)
            names = self._text(self._reversed(functions))
            self._append(*fields, self._text(fresh), *self._shape(noted), weights, names, contrasted)

    def _reversed(self, functions: list[weakref.ref[type]]) -> str:
        """The names of the functions that reverse a gradient; each is read once."""
        names = []
        for kind in filter(None, (one() for one in functions)):
            if kind not in self._reversing:
                self._reversing[kind] = reverses(kind)
            if self._reversing[kind]:
                names.append(kind.__name__.removesuffix("Backward"))
        return ", ".join(sorted(names))

    def _shape(self, noted: Noted | None) -> tuple[int, ...]:
        """The columns of a shape."""
        if noted is None:
            unknown = (NULL_INTEGER, NULL_INTEGER)
            return *unknown, NULL_STRING, *unknown, *unknown, NULL_STRING, NULL_BOOLEAN
        chains = [
            f"{self._layer(one)} > {', '.join(map(self._layer, after[:MOST_NAMED]))}"
            for one, after in noted.chains[:MOST_NAMED]
        ]
        weights = self._text(", ".join(map(self._name, noted.loss_weights[:MOST_NAMED])))
        positive = noted.positive if noted.loss_weights else NULL_BOOLEAN
        layers = self._text("; ".join(chains))
        seen = (noted.attentions, noted.unnormalized, noted.softmaxes, noted.lone)
        return noted.junctions, noted.direct, layers, *seen, weights, positive

    def _layer(self, reference: Weak) -> str:
        return self._name(reference).removesuffix(".weight")

    def _name(self, reference: Weak) -> str:
        parameter = reference()
        if parameter is None:
            return "a parameter that is gone"
        name: str | None = self._watched.text_of(parameter)
        return name or f"a parameter of shape {list(parameter.shape)}"

    def _text(self, text: str) -> int:
        return self._recorder.intern(text) if text else NULL_STRING


def _noted(shape: Shape | None) -> Noted | None:
    """The shape with only weak references to the job's objects."""
    if shape is None:
        return None
    weak = weakref.ref
    chains = [(weak(one), [weak(after) for after in afters]) for one, afters in reversed(shape.direct)]
    direct = sum(len(afters) for _, afters in shape.direct)
    weights = [weak(one) for one in shape.loss_weights]
    return Noted(
        shape.junctions, direct, chains, shape.attentions, shape.unnormalized, len(shape.attended),
        shape.attended.count(1), weights, shape.positive,
    )
