"""Watch: records the values of expressions at the end of every N-th step in python.variables, and on request
deep statistics of the same steps (`deep_statistics`).

Each expression is classified first: only those that just read, and wait for nothing, are evaluated, on the
training thread. Rows are kept in memory there and journalled by the agent's thread (`collect`). Standard
library only; torch inside functions.
"""

from __future__ import annotations

import ast
import statistics
import sys
import time
from collections import deque
from types import CodeType
from typing import Any, NamedTuple

from probe.base import clock
from probe.base.errors import ActionRefused, BadRequest, NotUndoable
from probe.base.isolation import capture, describe
from probe.job.actions.action import Action, Site, whole_number
from probe.job.actions.captures import deep_statistics
from probe.job.actions.captures.deep_statistics import KINDS, DeepWatch
from probe.job.introspection.snippet_names import Scope, names_used
from probe.job.snippets.evaluation import CUTS
from probe.job.snippets.guard.classify import SETTLED, classify
from probe.job.snippets.guard.watching import CHECK_NAME, Watch, with_checks
from probe.job.snippets.output import Buffer
from probe.job.snippets.state_restore import Kept
from probe.job.snippets.values import short_repr

FILE = "<probe watch>"
DEADLINE_S = 0.1
"""Time limit for all expressions at one boundary together: the training thread waits for them."""
DEFAULT_STEPS = 100
MOST_EXPRESSIONS = 20
MOST_VALUES = 20_000
"""Rows of one watch: a journal holds 64 MB, which it shares with all other rare rows of the recording."""
LATE_TIMES = 3
"""A watch ends by itself once its expressions have taken too long this many times."""
LONGEST_TEXT = 200
_OUTPUT_BYTES = 1000


class Expression(NamedTuple):
    """One expression: its text, the names it reads, and its code."""

    text: str
    names: frozenset[str]
    code: CodeType


class WatchValues(Action):
    """Evaluate `expressions` at every `every`-th boundary, and record deep statistics of every `every`-th
    step, `steps` times."""

    name = "watch"
    takes = ("expressions", "steps", "every", *KINDS)

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        deep = any(arguments.get(kind) for kind in KINDS)
        trees = [] if deep and arguments.get("expressions") is None else _parsed(arguments.get("expressions"))
        default = DEFAULT_STEPS if trees else deep_statistics.DEFAULT_STEPS
        self._wanted = whole_number(arguments, "steps", default, least=1)
        self._every = whole_number(arguments, "every", 1, least=1)
        self._deep = DeepWatch(arguments, self._wanted, site)
        self._deep_on = False
        """Whether deep statistics of the running step are recorded."""
        if trees and self._wanted * len(trees) > MOST_VALUES:
            most = MOST_VALUES // len(trees)
            raise BadRequest(
                f"a watch keeps at most {MOST_VALUES} values, and this would be {self._wanted * len(trees)}",
                hint=f"Ask for {most} steps, or for every tenth with `--every 10`.",
            )
        _require_reading(trees, site)
        _watch()  # it inspects the job's libraries once: here, and not on the training thread
        self._expressions = [
            Expression(text, frozenset(names_used(tree)), _compiled(tree)) for text, tree in trees
        ]
        self._rows: deque[dict[str, Any]] = deque()
        self._taken = self._deep_steps = 0
        self._over = False
        self._next_step: int | None = None
        self._late = 0
        self._seconds: deque[float] = deque(maxlen=64)
        self._ended_by = ""
        self._failed: dict[str, str] = {}
        self._first: list[dict[str, Any]] = []

    # The training thread ----------------------------------------------------

    def begin(self) -> None:
        """Take the first values, of the step that has just ended, and start deep statistics of the next one.
        Refused if none of the names exists."""
        self._deep.claim()
        if self._expressions:
            self._take()
        else:
            self._wait()
        if self._failed and len(self._failed) == len(self._expressions) and all(
            text.startswith("NameError") for text in self._failed.values()
        ):
            self._rows.clear()
            self._deep.release()
            raise ActionRefused("; ".join(self._failed.values()), hint=self._near())
        self._first = list(self._rows)
        self.standing = self._taken < self._wanted or bool(self._deep)
        if self._deep:
            self._deep.on()
            self._deep_on = True

    def at_boundary(self) -> None:
        """A step has ended."""
        if self._over:
            return
        if self._deep_on:
            self._deep.off()
            self._deep_on = False
            self._deep_steps += 1
        step = self.site.recorder.counted_step
        if step is not None and self._next_step is not None and step < self._next_step:
            return
        if self._deep_steps >= self._wanted or (not self._deep and self._taken >= self._wanted):
            self._end()
            return
        if self._expressions and self._taken < self._wanted:
            self._take()
        else:
            self._wait()
        if self._deep:
            self._deep.on()
            self._deep_on = True
        elif self._taken >= self._wanted:
            self._end()

    def _end(self) -> None:
        """End it; the agent's thread still waits for statistics that a device computes."""
        self._over = True
        self._deep.release()
        self.standing = bool(self._deep) and self._deep.arriving

    def _wait(self) -> None:
        """Set the next step to record."""
        step = self.site.recorder.counted_step
        self._next_step = None if step is None else step + self._every

    def _take(self) -> None:
        """One row for each expression."""
        begun_s = time.monotonic()
        step = self.site.recorder.counted_step
        self._next_step = None if step is None else step + self._every
        self._taken += 1
        ended = None if step is None or step == 0 else step - 1
        found, error = capture(self._values)
        if error is not None and not isinstance(error, CUTS):
            raise error  # from a signal handler, or a bug of ours
        if error is not None:
            found = [(None, f"{type(error).__name__}: not within {DEADLINE_S:g} s")] * len(self._expressions)
            self._late += 1
        t_ns = clock.wall_ns()
        for expression, (value, text) in zip(self._expressions, found, strict=True):
            self._rows.append(
                {"step": ended, "t_ns": t_ns, "name": expression.text, "value": value, "text": text}
            )
        self._seconds.append(time.monotonic() - begun_s)
        if self._late >= LATE_TIMES:
            self._ended_by = f"its expressions took longer than {DEADLINE_S:g} s {LATE_TIMES} times"
            self.cancel()

    def _values(self) -> list[tuple[float | None, str | None]]:
        scope = self.site.scope()
        with Kept(training_thread=True), _watch() as watch:
            return [self._value(expression, scope, watch) for expression in self._expressions]

    def _value(
        self, expression: Expression, scope: Scope, watch: Watch
    ) -> tuple[float | None, str | None]:
        names = {"__name__": "__probe__", "__builtins__": __builtins__, CHECK_NAME: watch.check}
        names.update(scope.resolve(expression.names))
        found, error = capture(lambda: _plain(eval(expression.code, names)))
        if error is None:
            value: tuple[float | None, str | None] = found
            return value
        if isinstance(error, CUTS) or not isinstance(error, Exception):
            raise error
        text = describe(error)[:LONGEST_TEXT]
        self._failed.setdefault(expression.text, text)
        return None, text

    def _near(self) -> str:
        scope = self.site.scope()
        wanted = sorted({name for expression in self._expressions for name in expression.names})
        near = sorted({one for name in wanted for one in scope.near(name)} - set(wanted))
        hint = f"Names like it: {', '.join(near)}. " if near else ""
        return hint + (
            "Between two steps only the variables of running functions exist; those of a function that has "
            "returned (`training_step`) are gone."
        )

    # Other threads ----------------------------------------------------------

    def collect(self) -> dict[str, list[dict[str, Any]]]:
        """Rows that are not journalled yet."""
        if self._over and self.standing and not self._deep.arriving:
            self.standing = False
        values = []
        while self._rows:
            values.append(self._rows.popleft())
        return {"python.variables": values, "python.histograms": self._deep.collect()}

    def outcome(self) -> str:
        """What the deep statistics recorded."""
        return self._deep.in_words()

    def cancel(self) -> None:
        """Stop recording and evaluating."""
        self.standing = False
        self._over = True
        if self._deep_on:
            self._deep.off()
        self._deep.release()

    def report(self) -> dict[str, Any]:
        """The first values, and the cost."""
        texts = ", ".join([*(expression.text for expression in self._expressions), *self._deep.kinds])
        rhythm = "each step" if self._every == 1 else f"every {self._every} steps"
        notes = [f"{name} gave {text}" for name, text in self._failed.items()]
        notes += self._deep.notes()
        if self._seconds:
            notes.append(f"each row of values took {_duration(self._seconds)} of the training thread")
        return {
            "what": f"watches {texts}, {rhythm}, {self._wanted} times", "notes": notes,
            "expressions": [expression.text for expression in self._expressions],
            "deep": self._deep.kinds, "steps": self._wanted, "every": self._every, "first": self._first,
            "cost_s": statistics.median(self._seconds) if self._seconds else None,
        }

    def undo(self) -> str:
        """End it."""
        if not self.standing:
            raise NotUndoable(f"the watch has ended: {self._ended_by or 'it had all its values'}")
        self.cancel()
        if not self._expressions:
            steps = f"{self._deep_steps} of {self._wanted} steps"
            return f"the watch ended after {steps}: {self._deep.in_words()}"
        return f"the watch ended after {self._taken} of {self._wanted} times, {_duration(self._seconds)} each"


def _watch() -> Watch:
    return Watch(
        time.monotonic() + DEADLINE_S, collectives=False, training_thread=True, memory_bytes=None
    )


def _parsed(given: object) -> list[tuple[str, ast.Expression]]:
    """Expressions, from a list or from a text with commas between them."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadRequest("`expressions` must be a string or a list of strings", hint="Such as `loss.item()`.")
    found = []
    for text in texts:
        tree, error = capture(lambda text=text: ast.parse(f"({text.strip()},)", FILE, "eval"))  # type: ignore[misc]
        if error is not None or not isinstance(tree.body, ast.Tuple):
            reason = getattr(error, "msg", "invalid syntax")
            raise BadRequest(f"`{text}` is not an expression: {reason}", hint="Such as `loss.item()`.")
        found += [(ast.unparse(one), _alone(one)) for one in tree.body.elts]
    if not found or len(found) > MOST_EXPRESSIONS:
        raise BadRequest(f"a watch takes 1 to {MOST_EXPRESSIONS} expressions, not {len(found)}")
    return found


def _alone(node: ast.expr) -> ast.Expression:
    return ast.fix_missing_locations(ast.Expression(node))


def _require_reading(trees: list[tuple[str, ast.Expression]], site: Site) -> None:
    """Raise `ActionRefused` unless each expression only reads."""
    for text, tree in trees:
        statement = ast.Module([ast.Expr(tree.body)], [])
        ast.copy_location(statement.body[0], tree.body)
        judgement = classify(statement, site.scope().resolve(names_used(tree)))
        if not judgement.only_looks:
            why = "; ".join(f"`{one.what}` {one.why}" for one in judgement.findings[:3])
            raise ActionRefused(
                f"`{text}` does more than read ({judgement.kind}): {why}",
                hint="A watch evaluates it repeatedly, between steps. `eval` runs it once.",
            )
        if judgement.kind == SETTLED and not site.recorder.alone:
            raise ActionRefused(
                f"`{text}` reads gradients, and several threads of this job train",
                hint="Between two steps of one thread, another's backward may be writing them.",
            )


def _compiled(tree: ast.Expression) -> CodeType:
    """Compile it with a check in every loop: a generator can be endless."""
    statement: Any = with_checks(ast.Module([ast.Expr(tree.body)], [])).body[-1]
    return compile(ast.Expression(statement.value), FILE, "eval")


def _plain(value: Any) -> tuple[float | None, str | None]:
    """A number, or a short text."""
    if isinstance(value, (bool, int, float)):
        number, error = capture(lambda: float(value))
        return (number, None) if error is None else (None, "an integer too large for a float")
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return float(value.item()), None
        shape = ", ".join(map(str, value.shape))
        return None, f"tensor(shape=[{shape}], dtype={value.dtype}, device={value.device})"
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
        return float(value.item()), None
    return None, short_repr(value, Buffer(_OUTPUT_BYTES))[:LONGEST_TEXT]


def _duration(seconds: deque[float]) -> str:
    if not seconds:
        return "nothing"
    middle_s = statistics.median(seconds)
    return f"{middle_s * 1e3:.3g} ms" if middle_s >= 1e-3 else f"{middle_s * 1e6:.0f} µs"
