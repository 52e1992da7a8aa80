"""Collective calls: describes one call of a process group by its name, inputs, group and call site.

HOT PATH: `Describing`, in every collective, on the calling thread; groups, shapes and call sites are
described once and looked up after that. Nothing here keeps a group, tensor or work alive. Standard library,
and the job's torch.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from probe.base import package
from probe.base.rank_sets import as_text
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER, NULL_STRING

MOST_DESCRIBED = 4096
"""Distinct shapes and call sites remembered; beyond that, shapes are NULL and known call sites are
dropped."""
MOST_SHAPES = 32
"""Tensors of one call whose shapes are listed."""
REMEMBERED = 4096
"""Sequence numbers remembered per group, to skip these calls' Flight Recorder entries."""
_HOST_BACKENDS = ("gloo", "mpi", "fake")
"""Backends whose `wait` returns on completion, for device tensors too."""


class Op(NamedTuple):
    """One method of ProcessGroup and the positions of its arguments; -1 for none."""

    name: str
    inputs: int = 0
    words: tuple[str, ...] = ()
    """Keywords of the inputs."""
    options: int = 1
    """Position of the options, or of the root or other rank if that is passed as a number."""
    counted: bool = True
    """Whether torch counts it in the group's sequence."""
    outputs: int = -1
    tags: int = 0
    """Sequence numbers that an uncounted method consumes nevertheless."""
    one_other: bool = False
    """Whether it has a root or another rank."""


_IN = ("inputs", "input", "input_tensors", "input_tensor", "input_list", "inputTensor")
OPS: dict[str, Op] = {
    "allreduce": Op("all_reduce", 0, ("tensors", "tensor")),
    "allreduce_coalesced": Op("all_reduce_coalesced", 0, ("tensors",)),
    "broadcast": Op("broadcast", 0, ("tensors", "tensor"), one_other=True),
    "reduce": Op("reduce", 0, ("tensors", "tensor"), one_other=True),
    "allgather": Op("all_gather", 1, _IN, 2),
    "_allgather_base": Op("all_gather_into_tensor", 1, _IN, 2),
    "all_gather_single": Op("all_gather_into_tensor", 1, _IN, 2),
    "allgather_coalesced": Op("all_gather_coalesced", 1, _IN, 2),
    "allgather_into_tensor_coalesced": Op("all_gather_into_tensor_coalesced", 1, _IN, 2),
    "all_gather_single_coalesced": Op("all_gather_into_tensor_coalesced", 1, _IN, 2),
    "gather": Op("gather", 1, _IN, 2, one_other=True),
    "scatter": Op("scatter", 1, _IN, 2, outputs=0, one_other=True),
    "reduce_scatter": Op("reduce_scatter", 1, _IN, 2),
    "_reduce_scatter_base": Op("reduce_scatter_tensor", 1, _IN, 2),
    "reduce_scatter_single": Op("reduce_scatter_tensor", 1, _IN, 2),
    "reduce_scatter_tensor_coalesced": Op("reduce_scatter_tensor_coalesced", 1, _IN, 2),
    "reduce_scatter_single_coalesced": Op("reduce_scatter_tensor_coalesced", 1, _IN, 2),
    "alltoall_base": Op("all_to_all_single", 1, _IN, 4),
    "all_to_all_single": Op("all_to_all_single", 1, _IN, 4),
    "alltoall": Op("all_to_all", 1, _IN, 2),
    "barrier": Op("barrier", -1, (), 0),
    "monitored_barrier": Op("monitored_barrier", -1, (), -1, counted=False, tags=2),
    "send": Op("send", 0, ("tensors",), counted=False, one_other=True),
    "recv": Op("recv", 0, ("tensors",), counted=False, one_other=True),
    "recv_anysource": Op("recv", 0, ("tensors", "arg0"), -1, counted=False),
}
"""Methods of ProcessGroup, under all their names in supported versions of torch."""


class Group:
    """One process group. `ranks` maps its ranks to global ranks."""

    __slots__ = (
        "_sequence", "counts", "mixed", "name", "name_id", "on_host", "others", "plain", "ranks",
        "ranks_id", "recorded", "reference", "window",
    )

    def __init__(self, group: Any, intern: Callable[[str], int], sequence: Any, distributed: Any) -> None:
        self.reference = weakref.ref(group)
        self.name = str(distributed._world.pg_names.get(group) or group.group_name)
        self.name_id = intern(self.name)
        members = distributed._world.pg_group_ranks.get(group)
        self.ranks: list[int] = sorted(members, key=members.get) if members else []
        self.ranks_id = intern(as_text(self.ranks)) if self.ranks else NULL_STRING
        backends = _backends(group)
        self.mixed = len({id(backend) for backend in backends.values()}) > 1
        """Whether devices use different backends, each with its own count."""
        self.on_host = _name(group) in _HOST_BACKENDS
        self._sequence = sequence
        self.counts = self._sequence_or_none(group) is not None
        self.plain = self.counts and not self.mixed
        """Whether one count covers all calls of the group."""
        self.others = 0
        """Calls in the group's count that are not collectives: gloo also counts sends and receives, whose
        number differs between ranks. Calls before the group was first seen are unknown."""
        self.recorded: tuple[deque[int], deque[int]] = (deque(maxlen=REMEMBERED), deque(maxlen=REMEMBERED))
        """Sequence numbers recorded by the wrappers; the second, if `mixed`, of calls on a device."""
        self.window: list[Any] | None = None
        """Calls made between `_start_coalescing` and `_end_coalescing`."""

    def _sequence_or_none(self, group: Any) -> int | None:
        try:
            return int(self._sequence(group))
        except RuntimeError:  # this backend does not count
            return None

    def next_number(self, group: Any, device: Any) -> int:
        """Sequence number of the collective about to be called; NULL if torch does not count."""
        if self.window:
            return int(self.window[0].seq)  # torch counts a window once
        if self.mixed and device is not None:
            return int(group._get_backend(device)._get_sequence_number_for_group()) + 1
        return int(self._sequence(group)) - self.others + 1 if self.counts else NULL_INTEGER

    def counts_now(self, group: Any) -> int:
        """Sequence number of the last collective that torch counted; `sys.maxsize` if unknown."""
        return int(self._sequence(group)) - self.others if self.plain else sys.maxsize

    def count_other(self, op: Op, counted: int) -> None:
        """Note a call that is not a collective; torch's count was `counted` before it."""
        group = self.reference()
        if group is not None and self.plain:
            self.others += int(self._sequence(group)) - counted - op.tags

    def global_rank(self, rank: Any) -> int:
        """The global rank of a group rank; NULL if unknown."""
        return self.ranks[rank] if isinstance(rank, int) and 0 <= rank < len(self.ranks) else NULL_INTEGER


def _backends(group: Any) -> dict[Any, Any]:
    try:
        return {device: group._get_backend(device) for device in group._device_types}
    except (AttributeError, RuntimeError):  # an old torch, or a backend not created yet
        return {}


def _name(group: Any) -> str:
    try:
        return str(group._get_backend_name() if hasattr(group, "_get_backend_name") else group.name()).lower()
    except (AttributeError, RuntimeError):
        return ""


class Described(NamedTuple):
    """Inputs of a call; NULL for missing fields."""

    dtype: int
    shapes: int
    elements: int
    bytes: int
    on_device: bool


NOTHING = Described(NULL_STRING, NULL_STRING, NULL_INTEGER, NULL_INTEGER, False)


class Describing:
    """Texts and sizes of calls, cached. `torch_folder`: folder of torch's own files."""

    def __init__(self, intern: Callable[[str], int], torch_folder: str) -> None:
        self._intern = intern
        self._inside = (torch_folder + os.sep, package.FOLDER, "<eval_with_key>")
        self._outside: dict[str, bool] = {}
        self._sites: dict[tuple[int, int], tuple[CodeType, int]] = {}
        self._known: dict[Any, Described] = {}

    # Inputs -------------------------------------------------------------------

    def inputs(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
        """Inputs of a call with these arguments (without the group)."""
        place = op.inputs
        if place < 0:
            return NOTHING
        given = args[place] if len(args) > place else _named(op, kwargs)
        if type(given) is list and len(given) == 1:
            given = given[0]
        if given is None:
            return NOTHING
        if type(given) is list or type(given) is tuple:
            if not given and op.outputs >= 0 and len(args) > op.outputs:
                # Only the root has an input: describe what the others expect.
                expected = self._of(_flat(args[op.outputs]))
                return expected._replace(shapes=NULL_STRING, elements=0, bytes=0)
            return self._of(_flat(given))
        key = (given.shape, given.dtype, given.is_cpu, given.layout)
        return self._known.get(key) or self._describe(key, [given])

    def _of(self, tensors: list[Any]) -> Described:
        if len(tensors) > MOST_SHAPES:
            return self._describe(None, tensors)
        key = tuple([(tensor.shape, tensor.dtype, tensor.is_cpu, tensor.layout) for tensor in tensors])
        return self._known.get(key) or self._describe(key, tensors)

    def _describe(self, key: Any, tensors: list[Any]) -> Described:
        if not tensors:
            return NOTHING
        intern = self._intern
        dtypes = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
        full = len(self._known) >= MOST_DESCRIBED
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors[:MOST_SHAPES])
        if len(tensors) > MOST_SHAPES:
            shapes += f", … {len(tensors)} tensors"
        dense = all(str(tensor.layout) == "torch.strided" for tensor in tensors)
        found = Described(
            intern(", ".join(dtypes)),
            NULL_STRING if full else intern(shapes),
            sum(tensor.numel() for tensor in tensors) if dense else NULL_INTEGER,
            sum(tensor.numel() * tensor.element_size() for tensor in tensors) if dense else NULL_INTEGER,
            any(not tensor.is_cpu for tensor in tensors),
        )
        if key is not None and not full and found.shapes and found.dtype:
            self._known[key] = found
        return found

    # Call site ----------------------------------------------------------------

    def call_site(self, frame: FrameType | None) -> int:
        """`file:line function` of the innermost frame outside of torch, starting at this one.

        Without one (a thread of torch's), of the innermost frame that is specific to the call."""
        known = self._outside
        own = frame
        while frame is not None:
            file = frame.f_code.co_filename
            outside = known.get(file)
            if outside is None:
                outside = self._learn(file)
            if outside:
                return self._site(frame)
            frame = frame.f_back
        while own is not None and own.f_code.co_filename.endswith(_PASSED):
            own = own.f_back
        return self._site(own) if own is not None else NULL_STRING

    def _learn(self, file: str) -> bool:
        if len(self._outside) >= MOST_DESCRIBED:
            self._outside.clear()
        outside = not file.startswith(self._inside) and not file.endswith(_GLUE)
        self._outside[file] = outside
        return outside

    def _site(self, frame: FrameType) -> int:
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        known = self._sites.get(key)
        if known is not None and known[0] is code:
            return known[1]
        if len(self._sites) >= MOST_DESCRIBED:
            self._sites.clear()
        name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        site = self._intern(f"{code.co_filename}:{frame.f_lineno} {name}")
        if site != NULL_STRING:
            self._sites[key] = (code, site)
        return site


_GLUE = tuple(f"{os.sep}{name}.py" for name in ("contextlib", "functools", "typing_extensions", "warnings"))
"""Files of libraries whose frames appear between functions of torch."""
_PASSED = (*_GLUE, *(f"{os.sep}{name}.py" for name in (
    "distributed_c10d", "c10d_logger", "collectives", "isolation",
)))


def _named(op: Op, kwargs: dict[str, Any]) -> Any:
    return next((kwargs[word] for word in op.words if word in kwargs), None)


def _flat(value: Any) -> list[Any]:
    """Tensors in lists of lists."""
    if type(value) is not list and type(value) is not tuple:
        return [value]
    found: list[Any] = []
    for item in value:
        if type(item) is list or type(item) is tuple:
            found.extend(item)
        else:
            found.append(item)
    return found


def device_of(op: Op, args: tuple[Any, ...], given: Any) -> Any:
    """The device that selects the backend of a call; None if unknown."""
    if op.inputs < 0:
        return getattr(given, "device", None)
    tensors = _flat(args[op.inputs] or args[0]) if len(args) > op.inputs else []
    return tensors[0].device if tensors else None


def other_rank(group: Group, given: Any) -> int:
    """Global rank of the root, or of the peer of a send or receive; `given`: the options, or the rank."""
    rank = given if isinstance(given, int) else getattr(given, "rootRank", None)
    return NULL_INTEGER if rank is None else group.global_rank(rank)


def returns_early(op: Op, frame: FrameType | None) -> int:
    """Whether a call without an `asyncOp` option returns before completion; NULL if unknown."""
    if op.counted:
        return NULL_BOOLEAN
    if op.inputs < 0:
        return False
    for _ in range(2):  # send and recv call isend and irecv
        if frame is None:
            break
        if frame.f_code.co_name in ("send", "recv"):
            return False
        frame = frame.f_back
    return True
