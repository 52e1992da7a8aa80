"""Own group: carries the collectives of a snippet that runs on all ranks at the same boundary.

A collective on the job's default group would advance its sequence number, and unless all ranks made the same
call, it would hang or end the job: gloo aborts a process that receives more bytes than it expects. So the
snippet's calls on the default group go to a group of ours (`Session`): made at the first call, over a
connection of our own to the job's store, registered in none of torch's tables, closed at the snippet's end.
Before each call the ranks compare their calls through the store; if these differ, or a rank does not arrive,
the snippet gets an exception and nothing is called. Always gloo, which takes tensors of any device: NCCL's
watchdog would end the process if a collective of the snippet were late.

The training thread, between two steps. Standard library only; torch inside functions.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from probe.base.errors import NotTogether, SnippetRefused
from probe.base.rank_sets import as_text
from probe.job.instruments.core.patch import Patches

CALLS = (
    "allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "broadcast", "reduce", "gather", "scatter", "alltoall",
    "alltoall_base", "all_to_all_single", "barrier", "monitored_barrier",
)
"""Methods of a process group that all ranks call together."""
REFUSED = (
    "send", "recv", "recv_anysource", "_start_coalescing", "_end_coalescing", "abort", "shutdown",
    "split_group", "merge_remote_group",
)
"""Methods that only some ranks call, or that change the group."""
_NAME = "probe"
"""The group's name in torch's records of collectives."""
_SPARE_S = 1.0
"""The other ranks wait this much longer than rank 0, which reports the ranks that did not arrive."""
_PART = 0.9
"""Share of its time that a snippet waits for other ranks, so that it gets the reason before it is stopped."""
_ENDED = "ended"
_WORDS = {"reduceOp": "op", "rootRank": "root"}
_EXCHANGES = ("alltoall", "alltoall_base", "all_to_all_single")
_ONE_SIDED = {"gather": 1, "scatter": 0}
"""Calls in which only one rank has the lists: the position of the argument that all ranks share."""


@contextlib.contextmanager
def carry(session: str, timeout_s: float, *, force: bool = False) -> Iterator[None]:
    """In the block, our group carries this thread's collectives on the default group.

    `session` names the snippet alike on all ranks and is never used twice. A call on which the ranks do not
    agree raises `NotTogether`; one on another group raises `SnippetRefused`, unless `force` lets it pass.
    Without process groups this does nothing."""
    distributed = _distributed()
    if distributed is None:
        yield
        return
    one = Session(distributed, session, time.monotonic() + _PART * timeout_s, force=force)
    one.divert()
    try:
        yield
    finally:
        one.restore()
        one.end()


class Session:
    """The collectives of one snippet on this rank."""

    def __init__(self, distributed: Any, name: str, deadline_s: float, *, force: bool) -> None:
        self._distributed = distributed
        self._job_group = distributed._get_default_group()
        self.rank, self.size = self._job_group.rank(), self._job_group.size()
        self._name = name
        self._deadline_s = deadline_s
        self._force = force
        self._thread = threading.get_ident()
        self._patches = Patches()
        self._store: Any = None
        self._group: Any = None
        self._count = 0
        self._broken = ""
        """Why no further collective of this snippet is carried."""
        self._within = False
        self._works: list[Any] = []

    # Diverting --------------------------------------------------------------

    def divert(self) -> None:
        """Intercept the calls of this thread."""
        kind = self._distributed.ProcessGroup
        for name in CALLS:
            if hasattr(kind, name):
                self._patches.wrap(kind, name, functools.partial(self._diverted, name))
        for name in REFUSED:
            if hasattr(kind, name):
                self._patches.wrap(kind, name, functools.partial(self._forbidden, name))

    def restore(self) -> None:
        """Stop intercepting."""
        self._patches.undo()

    def _is_snippets(self) -> bool:
        return self._patches.live[0] and threading.get_ident() == self._thread and not self._within

    def _diverted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **named: Any) -> Any:
            if not self._is_snippets():
                return method(group, *arguments, **named)
            if group is not self._job_group:
                self._refuse_group(name)
                return method(group, *arguments, **named)
            self._within = True
            try:
                own = self._agreed(name, arguments, named)
                return self._kept(method(own, *arguments, **named))
            except NotTogether:
                raise
            except RuntimeError as error:
                self._break(f"{name} failed on rank {self.rank}: {error}")
                raise
            finally:
                self._within = False

        return call

    def _forbidden(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_snippets() and not self._force:
                raise SnippetRefused(
                    f"{name} is not the same call on all ranks, so probe's own group cannot carry it",
                    hint="Use all_gather, broadcast or all_reduce.",
                )
            return method(group, *arguments, **named)

        return call

    def _refuse_group(self, name: str) -> None:
        if not self._force:
            raise SnippetRefused(
                f"{name} on a group that the snippet names would get into the job's own collectives",
                hint="Leave out `group`: all ranks take part. `--force` calls it anyway.",
            )

    def _kept(self, work: Any) -> Any:
        """Remember work that the snippet may leave unfinished; `end` waits for it."""
        self._works = [one for one in self._works if not one.is_completed()]
        if hasattr(work, "is_completed"):
            self._works.append(work)
        return work

    # Agreeing ---------------------------------------------------------------

    def _agreed(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The group to call, once all ranks are about to make the same call; raises `NotTogether`."""
        if self._broken:
            raise NotTogether(self._broken)
        verdict = self._exchange(_call(name, arguments, named))
        if verdict:
            self._broken = verdict
            raise NotTogether(
                verdict, hint="Nothing was called, and the job's own groups were not touched."
            )
        if self._group is None:
            self._group = self._made()
        return self._group

    def _exchange(self, call: dict[str, Any], *, wait: bool = True) -> str:
        """Compare the coming call with the other ranks'; returns why not to make it, or an empty text."""
        number, self._count = self._count, self._count + 1
        store = self._connected()
        if self.rank != 0:
            store.set(self._key(number, self.rank), json.dumps(call))
            if not wait:
                return ""
            late = f"rank 0 did not reach `{_shown(call)}` in time"
            key = self._key(number, "verdict")
            return self._read(key) if self._wait([key], _SPARE_S) else late
        verdict = self._collated(number, call) if wait else f"rank 0 had {_ENDED} its snippet by then"
        store.set(self._key(number, "verdict"), verdict or "-")
        return verdict

    def _collated(self, number: int, own: dict[str, Any]) -> str:
        """On rank 0: compare what all ranks are about to call."""
        keys = [self._key(number, rank) for rank in range(1, self.size)]
        if not self._wait(keys):
            missing = [rank for rank, key in enumerate(keys, 1) if not self._store.check([key])]
            return f"rank {as_text(missing)} did not reach `{_shown(own)}` in time"
        calls = [own, *(json.loads(self._store.get(key)) for key in keys)]
        return difference(calls)

    def _wait(self, keys: list[str], spare_s: float = 0.0) -> bool:
        """Whether all these keys were there by the deadline."""
        left_s = max(0.01, self._deadline_s + spare_s - time.monotonic())
        try:
            if keys:
                self._store.wait(keys, timedelta(seconds=left_s))
        except RuntimeError:  # torch's DistStoreError
            return False
        return True

    def _read(self, key: str) -> str:
        text = bytes(self._store.get(key)).decode()
        return "" if text == "-" else text

    def _key(self, number: int, whose: object) -> str:
        return f"probe/eval/{self._name}/{number}/{whose}"

    def _connected(self) -> Any:
        """A connection of our own: waiting on the job's would block its other threads."""
        if self._store is None:
            store = self._distributed._get_default_store()
            with contextlib.suppress(RuntimeError, AttributeError):  # it has no `clone`, or torch is older
                store = store.clone()
            self._store = store
        return self._store

    def _made(self) -> Any:
        """The group, connected to all ranks, which are all about to use it."""
        import torch
        from torch._C._distributed_c10d import PrefixStore, ProcessGroup, ProcessGroupGloo

        left = timedelta(seconds=max(1.0, self._deadline_s - time.monotonic()))
        store = PrefixStore(f"probe/eval/{self._name}/group", self._connected())
        group: Any = ProcessGroup(store, self.rank, self.size)
        backend: Any = ProcessGroupGloo(store, self.rank, self.size, left)
        for device in ("cpu", "cuda"):
            group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, backend)
        if hasattr(group, "_set_default_backend"):
            group._set_default_backend(ProcessGroup.BackendType.GLOO)
        for name in ("_set_group_name", "_set_group_desc"):
            if hasattr(group, name):
                getattr(group, name)(_NAME)
        return group

    # The end ----------------------------------------------------------------

    def _break(self, why: str) -> None:
        """Tell the other ranks not to wait for this one any more."""
        if not self._broken:
            self._broken = why
            self._say_ended(why)

    def _say_ended(self, why: str) -> None:
        with contextlib.suppress(RuntimeError):  # the store ended with its rank
            self._exchange({"op": _ENDED, "why": why}, wait=False)

    def end(self) -> None:
        """The snippet is over: tell ranks that wait for this one, and close the group when all are done."""
        if self._group is None:
            if not self._broken:
                self._say_ended("")
        elif not self._broken:
            with contextlib.suppress(RuntimeError):
                for work in self._works:
                    work.wait(timedelta(seconds=max(0.01, self._deadline_s - time.monotonic())))
                self._exchange({"op": _ENDED, "why": ""})
                self._tidy()
        self._works = []
        self._group = self._store = None

    def _tidy(self) -> None:
        """Delete from the store what every rank has read: all of this rank's keys but the last."""
        whose = "verdict" if self.rank == 0 else self.rank
        for number in range(self._count - 1):
            self._store.delete_key(self._key(number, whose))


def _distributed() -> Any:
    """`torch.distributed.distributed_c10d` of a job that has a default group; else None."""
    import sys

    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return module if module is not None and module.is_initialized() else None


# Comparing calls ----------------------------------------------------------------


def _call(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The parts of a call that must be the same on all ranks, as plain JSON."""
    compared: list[Any] = []
    for position, argument in enumerate((*arguments, *named.values())):
        if name in _ONE_SIDED and position != _ONE_SIDED[name] and isinstance(argument, (list, tuple)):
            continue
        plain = _plain(argument)
        if plain is not None:
            compared.append(plain)
    return {"op": name, "arguments": compared}


def _plain(argument: Any) -> Any:
    """A tensor as number of elements, type and device; options by value; None for what may differ."""
    import torch

    if isinstance(argument, torch.Tensor):
        return [argument.numel(), str(argument.dtype).removeprefix("torch."), argument.device.type]
    if isinstance(argument, (list, tuple)):
        return [_plain(one) for one in argument]
    if isinstance(argument, (bool, int, str)):
        return argument
    found = {}
    for name in ("reduceOp", "rootRank", "rootTensor"):
        value = getattr(argument, name, None)
        if value is not None:
            found[name] = value if isinstance(value, int) else _operation(value)
    if not found and type(argument).__name__ in ("ReduceOp", "RedOpType"):
        return _operation(argument)
    return found or None


def _operation(value: Any) -> str:
    """`SUM`: a reduction's name."""
    return str(getattr(value, "op", value)).removeprefix("RedOpType.")


def difference(calls: list[dict[str, Any]]) -> str:
    """Why these calls, one of each rank, are not one collective; empty if they are."""
    ended = [rank for rank, call in enumerate(calls) if call["op"] == _ENDED]
    if len(ended) == len(calls):
        return ""
    if ended:
        other = next(call for call in calls if call["op"] != _ENDED)
        why = next((calls[rank]["why"] for rank in ended if calls[rank].get("why")), "")
        return (
            f"rank {as_text(ended)} ended its snippet before `{_shown(other)}`, which other ranks call"
            f"{f': {why}' if why else ''}"
        )
    if calls[0]["op"] in _EXCHANGES and all(call["op"] == calls[0]["op"] for call in calls):
        return _exchange_difference(calls)
    by_text: dict[str, list[int]] = {}
    for rank, call in enumerate(calls):
        by_text.setdefault(json.dumps(call, sort_keys=True), []).append(rank)
    if len(by_text) == 1:
        return ""
    listed = [f"rank {as_text(ranks)}: {_shown(json.loads(text))}" for text, ranks in by_text.items()]
    return f"the ranks make different calls: {'; '.join(listed)}"


def _exchange_difference(calls: list[dict[str, Any]]) -> str:
    """The difference between calls of all_to_all: rank i must send to j what j expects from i."""
    sent, expected = [], []
    for call in calls:
        out, given, *splits = call["arguments"]
        if not isinstance(out[0], list):  # one tensor each, cut evenly or as the splits say
            size = len(calls)
            lists = [one for one in splits if isinstance(one, list)]
            out_sizes, in_sizes = [*lists, [], []][:2]
            if bool(out_sizes) != bool(in_sizes):
                return "all_to_all with sizes on one side only"
            expected.append(_cut(out, out_sizes, size))
            sent.append(_cut(given, in_sizes, size))
        else:
            expected.append([one[:2] for one in out])
            sent.append([one[:2] for one in given])
    for rank in range(len(calls)):
        for other in range(len(calls)):
            if len(sent[rank]) != len(calls) or sent[rank][other] != expected[other][rank]:
                return (
                    f"rank {rank} sends to rank {other} something other than that rank expects in "
                    f"`{_shown(calls[rank])}`"
                )
    return ""


def _cut(tensor: list[Any], splits: list[int], size: int) -> list[list[Any]]:
    """The parts of a tensor as number of elements and type: even ones without sizes."""
    rows = splits or [1] * size
    width = tensor[0] / (sum(rows) or 1)
    return [[count * width, tensor[1]] for count in rows]


def _shown(call: dict[str, Any]) -> str:
    """`allreduce(3 float32)`: a call as people read it."""
    def text(argument: Any) -> str:
        if isinstance(argument, dict):
            return ", ".join(f"{_WORDS[name]} {value}" for name, value in argument.items() if name in _WORDS)
        if isinstance(argument, list):
            if len(argument) == 3 and isinstance(argument[1], str):
                return f"{argument[0]} {argument[1]}"
            return f"[{', '.join(text(one) for one in argument)}]"
        return str(argument)

    return f"{call['op']}({', '.join(text(one) for one in call.get('arguments', []))})"
