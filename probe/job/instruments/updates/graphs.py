"""Graphs: how large the graph of a loss is, and which parameters it leads to that no optimizer holds.

Writes python.graphs. HOT PATH on sampled steps: `note`, on the training thread right after the walk of
`reached_parameters`; it looks at those leaves that no optimizer holds, of which a correct loop has none or
always the same. The agent's thread writes the rows. torch is the job's own.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from typing import Any

from probe.base.clock import wall_ns
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.updates.reached_parameters import Graph
from probe.job.instruments.updates.watched_parameters import WatchedParameters
from probe.recording.layout import NULL_INTEGER, NULL_STRING

MOST_KNOWN = 256
"""Parameters in no optimizer that are remembered; where there are more, none is called new."""
MOST_SHAPES = 4


class Graphs:
    """Remembers the leaves that no optimizer holds from one walk to the next."""

    def __init__(self, recorder: Recorder, optimizers: Optimizers, watched: WatchedParameters) -> None:
        self._recorder, self._optimizers, self._watched = recorder, optimizers, watched
        self._append = recorder.rings["python.graphs"].append
        self._known: dict[int, weakref.ref[Any]] = {}
        self._walked = False
        self._rows: deque[tuple[int, int, int, int, bool, int, int, int, int, list[Any]]] = deque(maxlen=64)

    # HOT PATH ---------------------------------------------------------------

    def note(self, graph: Graph) -> None:
        """A graph has been walked."""
        owners, recorder = self._watched.owners, self._recorder
        kind = sys.modules["torch"].nn.Parameter
        others = [one for key, one in graph.leaves.items() if key not in owners and isinstance(one, kind)]
        held = sum(key in owners for key in graph.leaves)
        row = (recorder.step, recorder.micro_step, wall_ns(), graph.nodes, graph.derivatives, held)
        if self._watched.made != self._optimizers.made_count or len(others) > MOST_KNOWN:
            self._rows.append((*row, NULL_INTEGER, NULL_INTEGER, NULL_INTEGER, []))
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
        self._rows.append((*row, len(others), anew, len(gone), shapes))

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Write the rows."""
        while self._rows:
            *fields, shapes = self._rows.popleft()
            text = ", ".join(str(list(one)) for one in shapes)
            self._append(*fields, self._recorder.intern(text) if text else NULL_STRING)
