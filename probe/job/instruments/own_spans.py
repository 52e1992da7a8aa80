"""The job's own spans and events: `probe.span` times a block, `probe.event` marks a point in time.

Tables python.spans and python.events, created when the job first uses either during a recording. Without a
recording, a span costs a call or two that do nothing. Imported without torch. HOT PATH: both run inside
steps, on any thread: they never raise, wait or read from a device.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from probe.base.clock import ANCHOR_NS
from probe.base.isolation import say
from probe.job.instruments.core.patch import pass_over
from probe.job.instruments.core.plain_numbers import plain_number
from probe.job.instruments.own_tables import HERE, Live
from probe.recording import layout
from probe.recording.tables import BY_NAME

_Function = TypeVar("_Function", bound=Callable[..., Any])
_now, _ident = time.monotonic_ns, threading.get_ident
_name = functools.lru_cache(512)(layout.packed_text)
"""Packs a name, cached: there are few names."""


class span:
    """Time a block or a function: `with probe.span("rollout"):` or `@probe.span("rollout")`.

    Writes one row of python.spans when it ends, also on an exception, which is passed on. An object that is
    entered again while it is open is one span, from the first entry to the last exit. Decorates functions and
    coroutines; a generator runs in pieces, so it is left unchanged."""

    __slots__ = ("_from", "_name", "_opened")

    def __init__(self, name: str) -> None:
        self._name = name
        self._from: tuple[Live, int, int] | None = None
        self._opened = 0

    def __enter__(self) -> span:
        HERE_SPANS.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        HERE_SPANS.leave(self, kind is not None)

    def __call__(self, function: _Function) -> _Function:
        """The function, timed at each call."""
        name = self._name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            say(f"probe.span does not time {function.__qualname__}: a generator runs in pieces")
            return function
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with span(name):
                    return await function(*args, **kwargs)

            return pass_over(functools.wraps(function)(awaited))  # type: ignore[no-any-return]

        def timed(*args: Any, **kwargs: Any) -> Any:
            with span(name):
                return function(*args, **kwargs)

        return pass_over(functools.wraps(function)(timed))  # type: ignore[no-any-return]


def event(name: str, text: str | None = None, value: float | None = None) -> None:
    """Mark a point in time: one row of python.events at the current step, with a text and a number if given.

    Does nothing if recording is off. A `text` that is no string, or a `value` that is no number, becomes
    NULL."""
    HERE_SPANS.event(name, text, value)


def _nothing(*_arguments: object) -> None:
    return None


class Spans:
    """Writes spans and events to the recording; does nothing without one. One per process, `HERE_SPANS`."""

    def __init__(self) -> None:
        self.enter: Callable[..., object] = _nothing
        self.leave: Callable[..., object] = _nothing
        self.event: Callable[..., object] = _nothing
        self._live: Live | None = None
        self._spans: Callable[..., object] = _nothing
        self._events: Callable[..., object] = _nothing
        if HERE.live is not None:
            self.attach(HERE.live)
        HERE.opening.append(self.attach)
        HERE.closing.append(self.detach)

    def attach(self, live: Live) -> None:
        """Write to this recording. As this module is imported, the job uses spans or events."""
        self._spans = HERE.ring(live, BY_NAME["python.spans"]).append
        self._events = HERE.ring(live, BY_NAME["python.events"]).append
        self._live = live
        guard = live.isolation.guard
        self.enter, self.leave = guard("spans", self._enter), guard("spans", self._leave)
        self.event = guard("events", self._event)

    def detach(self) -> None:
        """Write nothing from now on."""
        self.enter = self.leave = self.event = _nothing
        self._spans = self._events = _nothing
        self._live = None

    # HOT PATH ---------------------------------------------------------------

    def _enter(self, one: span) -> None:
        live = self._live
        if live is None:
            return
        if one._from is None or one._from[0] is not live:
            one._from, one._opened = (live, live.recorder.step, _now()), 1
        else:
            one._opened += 1

    def _leave(self, one: span, failed: bool) -> None:
        end = _now()
        began = one._from
        if began is None or began[0] is not self._live:
            return
        one._opened -= 1
        if one._opened:
            return
        one._from = None
        live, step, start = began
        self._spans(
            step, start + ANCHOR_NS, _named(one._name), (end - start) / 1e9,
            _ident() == live.recorder.thread, failed,
        )

    def _event(self, name: Any, text: Any, value: Any) -> None:
        live = self._live
        if live is None:
            return
        number = None if value is None else plain_number(value)
        self._events(
            live.recorder.step, _now() + ANCHOR_NS, _named(name),
            layout.packed_text(text) if isinstance(text, str) else layout.NULL_TEXT,
            layout.NULL_DOUBLE if number is None else float(number),
            _ident() == live.recorder.thread,
        )


def _named(name: Any) -> bytes:
    """A name packed for a row; NULL if it is no string."""
    return _name(name) if type(name) is str else layout.NULL_TEXT


HERE_SPANS = Spans()
