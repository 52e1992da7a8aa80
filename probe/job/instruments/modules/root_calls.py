"""Root calls: detects models that a step calls several times with the same input, and outputs that go unused.

Writes python.repeated_calls. HOT PATH on sampled steps only, called by the hooks of `module_times`. At the
end of an outermost module call, its input is compared with those of earlier calls in the same micro step, and
each output tensor's graph node gets a hook that records whether a gradient arrives. The hooks are freed with
the graph; only weak references are held, so that no object lives longer than in the job alone.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core.object_access import contents
from probe.job.instruments.core.recorder import Recorder

MOST_CALLS = 32
"""Outermost calls of one step that are compared."""
MOST_OUTPUTS = 8
MOST_NODES = 64
"""Nodes followed from each output to find the other outputs that it was computed from."""


class RootCall:
    """An outermost call in the sampled step."""

    __slots__ = ("input", "made_of", "micro_step", "module", "name", "outputs", "reached", "version")

    def __init__(self, module: Any, name: int, given: Any, micro_step: int) -> None:
        self.module = id(module)
        self.name = name
        self.input = weakref.ref(given)
        self.version = given._version
        self.micro_step = micro_step
        self.outputs = 0
        self.reached: set[int] = set()
        """Indices of the output tensors that received a gradient."""
        self.made_of: dict[int, set[int]] = {}
        """The other outputs that each was computed from: a gradient that reaches it reaches them too."""

    @property
    def used(self) -> set[int]:
        """Outputs that received a gradient, without those that received it through another output."""
        through: set[int] = set().union(*(self.made_of.get(number, set()) for number in self.reached))
        return self.reached - through

    def repeats(self, other: RootCall) -> bool:
        """Whether it is the same module with the same input, unchanged."""
        same = self.module == other.module and self.micro_step == other.micro_step
        given = self.input()
        return same and given is not None and given is other.input() and self.version == other.version


class RootCalls:
    """The outermost calls of a sampled step."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self._recorder, self._isolation = recorder, isolation
        self._append = recorder.rings["python.repeated_calls"].append
        self._groups: list[list[RootCall]] = []
        self._step = -1

    # HOT PATH ---------------------------------------------------------------

    def ended(self, module: Any, name: int, given: Any, output: Any, tensor: Any) -> None:
        """An outermost call with gradients ended; `given`: its first tensor; `tensor`: torch's class."""
        if self._step != self._recorder.step:
            self._step = self._recorder.step
            self._groups.clear()
        if sum(map(len, self._groups)) >= MOST_CALLS or given is None or given.is_inference():
            return
        if next(type(module).parameters(module), None) is None:
            return
        call = RootCall(module, name, given, self._recorder.micro_step)
        made = [one for one in islice(_tensors(output, tensor), MOST_OUTPUTS) if one.grad_fn is not None]
        call.outputs = len(made)
        nodes = {one.grad_fn: number for number, one in enumerate(made)}
        for number, one in enumerate(made):
            hook = self._isolation.guard("modules", _reaches(call, number, one.output_nr))
            one.grad_fn.register_prehook(hook)
            if len(nodes) > 1:
                call.made_of[number] = _behind(one.grad_fn, nodes)
        group = next((group for group in self._groups if group[0].repeats(call)), None)
        if group is None:
            self._groups.append([call])
        else:
            group.append(call)

    def over(self) -> None:
        """The step or its sampling ended: write the models that were called several times, if a backward
        followed."""
        recorder = self._recorder
        groups, self._groups = self._groups, []
        for calls in groups:
            followed = recorder.step != self._step or recorder.micro_step > calls[-1].micro_step
            if len(calls) < 2 or not followed or not all(one.outputs for one in calls):
                continue
            used = [one.used for one in calls if one.reached]
            together = set().union(*used)
            apart = sum(map(len, used)) == len(together) == calls[0].outputs
            self._append(
                self._step, calls[0].micro_step, time.monotonic_ns() + ANCHOR_NS, calls[0].name, len(calls),
                len(calls) - len(used), calls[0].outputs, int(apart and len(used) > 1),
            )


def _behind(first: Any, nodes: dict[Any, int]) -> set[int]:
    """Indices of the outputs that lie behind another output's node."""
    waiting, seen = [first], {first}
    while waiting and len(seen) <= MOST_NODES:
        for following, _ in waiting.pop(0).next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return {number for node, number in nodes.items() if node in seen and node != first}


def _reaches(call: RootCall, number: int, place: int) -> Callable[[Any], None]:
    def reached(gradients: Any) -> None:
        if gradients[place] is not None:
            call.reached.add(number)

    return reached


def _tensors(value: Any, tensor: Any) -> Iterator[Any]:
    """The tensors of an output, up to two levels deep in containers."""
    if isinstance(value, tensor):
        yield value
        return
    for item in contents(type(value), value):
        if isinstance(item, tensor):
            yield item
        else:
            yield from (one for one in contents(type(item), item) if isinstance(one, tensor))
