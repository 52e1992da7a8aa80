"""The one place that catches everything: what of ours fails must not fail the job.

`Isolation.guard` wraps a hook. A hook that raises is counted; after three
failures it is switched off for good, once and loudly (one line on stderr, one
journal record), and the training goes on without it. Whichever thread calls the
hook runs this; standard library only.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec

from probe.base.errors import ProbeError

_Parameters = ParamSpec("_Parameters")

PATIENCE = 3
"""Failures after which a hook is switched off."""

_passing = [0]
"""The exception (its id) that passes every guard: what a signal's handler of the job raised."""


class Isolation:
    """Guards of one agent; `report(name, text)` is told of each hook that is switched off."""

    def __init__(self, report: Callable[[str, str], object] | None = None) -> None:
        self.failures: dict[str, int] = {}
        self.withheld: dict[str, str] = {}
        """What could not be done because the job or the machine does not let us, and why the last time."""
        self.tracing: list[Callable[[], bool] | None] = [None]
        """Asks whether hooks are to do nothing, as while torch.compile traces through this very call;
        None in a job that does not compile."""
        self._report = report
        self._ended = False
        self._before_mute: Callable[[], bool] | None = None

    def guard(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """`hook`, but never raising an `Exception`: None instead. HOT PATH.

        While torch.compile traces through it, it is nothing: what is compiled is the job alone."""
        live = hook
        tracing, passing = self.tracing, _passing

        def guarded(*args: Any) -> Any:
            nonlocal live
            asks = tracing[0]
            if asks is not None and asks():
                return None
            try:
                return live(*args)
            except Exception as error:
                if id(error) == passing[0]:
                    raise
                if self._failed(name, error, "is switched off"):
                    live = _nothing
                return None

        return guarded

    def end(self) -> None:
        """From now on every guarded hook does nothing: one that is called while it is taken out."""
        self._ended = True
        self.tracing[0] = _always

    def let_through(self, error: BaseException) -> None:
        """Raise what a signal's handler of the job raised while the training thread was held: it passes
        every guard, for it means the training."""
        _passing[0] = id(error)
        raise error

    def mute(self) -> None:
        """Until `unmute`, every guarded hook does nothing: what somebody runs between two steps, a
        forward or a step of its own included, is no part of the training."""
        _passing[0] = 0
        self._before_mute, self.tracing[0] = self.tracing[0], _muted

    def unmute(self) -> None:
        """Ends `mute`."""
        if self.tracing[0] is _muted:
            self.tracing[0] = self._before_mute
        if self._ended:
            self.tracing[0] = _always

    def attempt(self, name: str, action: Callable[[], Any], *, said_at: int = PATIENCE) -> Any:
        """Run `action` once; None when it fails. For start, stop and the agent's own rounds.

        `said_at`: which failure is told on stderr; for what the job itself did wrong, the first. What the job
        or the machine withholds (descriptors, files, another root or user) is in `withheld` alone: it is no
        fault of ours, nothing is switched off, and the job's stderr is the job's."""
        try:
            return action()
        except Exception as error:
            if id(error) == _passing[0]:
                raise
            if isinstance(error, OSError | ImportError):
                self.withheld[name] = describe(error)
            else:
                self._failed(name, error, "is not mentioned again", said_at)
            return None

    def _failed(self, name: str, error: Exception, consequence: str, said_at: int = PATIENCE) -> bool:
        count = self.failures[name] = self.failures.get(name, 0) + 1
        if count == said_at:
            times = f" {count} times" if count > 1 else ""
            say(f"{name} failed{times} and {consequence}: {describe(error)}")
        if count in (1, PATIENCE) and self._report is not None:
            try:
                self._report(name, describe(error))
            except Exception as nested:
                say(f"could not note a failure of {name}: {describe(nested)}")
        return count >= PATIENCE


def harmless(function: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """A call that a job makes of us, wherever and with whatever: it never raises an `Exception`.

    Wrong arguments too are one line on stderr, and only the first time: a training must not end at step
    40,000 because of what somebody wanted to note."""
    said = False

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        nonlocal said
        try:
            function(*args, **kwargs)
        except Exception as error:
            if id(error) == _passing[0]:
                raise
            if not said:
                said = True
                say(f"probe.{function.__name__} did nothing: {_words(error)}. It is not mentioned again")

    return call


def quietly(action: Callable[[], Any], what: str) -> Any:
    """Run `action`; on failure say one line that names `what`, with what to do about it, and return None."""
    try:
        return action()
    except ProbeError as error:
        say(f"{what}: {error.message}. {error.hint}")
    except Exception as error:
        say(f"{what}: {describe(error)}")
    return None


def capture(action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Run somebody's code; whatever it raises, SystemExit and KeyboardInterrupt too, is the answer."""
    try:
        return action(), None
    except BaseException as error:
        return None, error


def describe(error: BaseException) -> str:
    """`Type: message`, also when the message itself cannot be made."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__


def _words(error: Exception) -> str:
    return f"{error.message}. {error.hint}".rstrip(". ") if isinstance(error, ProbeError) else describe(error)


def say(text: str) -> None:
    """One line on the job's stderr; nothing when there is none."""
    try:
        sys.stderr.write(f"probe: {' '.join(text.split())}\n")
    except Exception:
        return


def _nothing(*_args: Any) -> None:
    return None


def _always() -> bool:
    return True


def _muted() -> bool:
    return True
