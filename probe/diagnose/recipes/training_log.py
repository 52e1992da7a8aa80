"""Parses the log printed by a training run into rows of the tables that recipes query.

    log = read(open("train.log", "rb"))
    connection = tables(log)                 # python.steps, python.losses, python.scalars of this log
    findings(log, checks)                    # checks: results of the recipes on those tables

For runs without a recording. Understands common formats: `Step 10: loss=2.45, lr=6.67e-05`, tqdm bars, JSON,
printed dictionaries, `iter 10: loss 2.3, time 12ms`, columns between `|`. Values not in the log are NULL. Any
text is read without errors, streamed line by line. Pure except for `tables`; any thread. May import numpy and
duckdb, in functions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from probe.base.errors import LogUnreadable
from probe.diagnose.finding import Finding, worst_first
from probe.diagnose.recipes.recipe import Check
from probe.diagnose.states import ALARM, INFO, NOTICE, OK

if TYPE_CHECKING:
    import duckdb

LONGEST_LINE = 16 << 10
"""Maximum number of bytes read per line."""
MOST_STEPS = 2_000_000
"""Maximum number of steps kept of a long log: the first ones."""
_PIECE_BYTES = 1 << 20
_NEXT = [
    "probe run python train.py     # records gradients, data, memory and every step: then `probe diagnose`"
]

_NUMBER = (
    r"[-+]?(?:(?:\d[\d_]{0,30}(?:,\d{3}){0,10}(?:\.\d{0,40})?|\.\d{1,40})(?:e[-+]?\d{1,5})?"
    r"|nan\b|inf(?:inity)?\b)"
)
"""Repetitions are bounded, so that no line is slow to match."""
_IS = r"[\"']?\s*(?:\((?:ms|s|sec)\))?\s*[:=]?\s*[\"']?"
_KNOWN = r"train(?:ing)?|val(?:idation)?|valid|eval(?:uation)?|test|dev|lm|total|avg|average|mean|smoothed"
_BEFORE = r"(?:[a-z][a-z0-9]{0,30}[_/.-]){0,4}"
_AFTER = r"(?:[_/.-][a-z0-9]{1,30}){0,4}"
_LOSS = re.compile(rf"(?<![\w/.-])((?:(?:{_KNOWN})\s+)?{_BEFORE}loss{_AFTER}){_IS}({_NUMBER})", re.I)
_LR = re.compile(rf"(?<![\w.-]){_BEFORE}(?:lr|learning[_ -]?rate){_AFTER}{_IS}({_NUMBER})", re.I)
_GRAD = re.compile(rf"(?<![\w.-]){_BEFORE}(?:grad(?:ient)?[_ /.-]?norm|gnorm|norm){_IS}({_NUMBER})", re.I)
_SCALE = re.compile(rf"(?<![\w.-])(?:loss|grad|amp)[_ ]scale{_IS}({_NUMBER})", re.I)
_TOKENS = re.compile(
    rf"tok(?:en)?s?(?:/s(?:ec)?|[_ ]per[_ ]s(?:ec(?:ond)?)?){_IS}({_NUMBER})|({_NUMBER})\s*tok(?:en)?s?/s",
    re.I,
)
_TIME = re.compile(
    rf"\b(?:time|dt|(?:step|iter(?:ation)?)[_ ]time|elapsed time per iteration)"
    rf"\s*(?:\((ms|s)\))?\s*[:=]?\s*({_NUMBER})\s*(ms|s)?\b",
    re.I,
)
_STEP = re.compile(
    r"(?<![\w.-])(?:[a-z]{1,30}[_/])?(?:global[_ ]?steps?|steps?|iter(?:ation)?s?|updates?|num_updates)"
    r"[\"']?\s*[:=#]?\s*\[?\s*[\"']?(\d[\d,]{0,30})(?:\s*/\s*(\d[\d,]{0,30}))?(?![\d.]{0,30}(?:ms|s|it|e-?\d)\b)",
    re.I,
)
_BAR = re.compile(r"\|\s*(\d{1,15})/(\d{1,15})\s*\[")
_EPOCH = re.compile(rf"\bepoch[\"']?\s*[:=#]?\s*\[?\s*[\"']?({_NUMBER})", re.I)
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07?|[@-Z\\-_])")
_VALIDATION = frozenset({"val", "validation", "valid", "eval", "evaluation", "test", "dev"})
_OF_TRAINING = frozenset({
    "loss", "train", "training", "lm", "total", "avg", "average", "mean", "smoothed", "batch", "step",
    "reduced",
})
_SUMMARY = "train_runtime"
"""Marks the last line of a Hugging Face trainer; its loss is the mean over the run."""


@dataclass
class Step:
    """The values of one step in the log; None if absent."""

    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    wall_s: float | None = None


_NOTHING = Step()


@dataclass
class Log:
    """The contents of a log. `scalars`: (step, name, value) of other losses, validation losses and rates."""

    lines: int = 0
    understood: int = 0
    """Lines that contained figures."""
    steps: dict[int, Step] = field(default_factory=dict)
    scalars: list[tuple[int, str, float]] = field(default_factory=list)
    numbered: bool = True
    """Whether the log numbers its steps; otherwise they are counted."""
    went_back: int = 0
    """How often a step number was smaller than the one before: restarts."""
    dropped: int = 0
    """Number of steps beyond `MOST_STEPS`."""

    def curve(self) -> list[tuple[int, float]]:
        """Finite losses by step, in order."""
        known = ((step, one.loss) for step, one in sorted(self.steps.items()))
        return [(step, loss) for step, loss in known if loss is not None and math.isfinite(loss)]


def read(pieces: Iterable[bytes]) -> Log:
    """Read a log. Raises `LogUnreadable` if it contains no step with a loss, rate or norm."""
    reader = _Reader()
    for line in lines(pieces):
        reader.take(line)
    log = reader.log
    if not log.steps and not log.scalars:
        raise LogUnreadable(f"no step or loss found in {log.lines:,} lines")
    return log


def pieces_of(file: Any) -> Iterator[bytes]:
    """A binary file in pieces."""
    while piece := file.read(_PIECE_BYTES):
        yield piece


def lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Lines of the log, split at carriage returns too, without colours, cut to a maximum length."""
    rest = b""
    for piece in pieces:
        *whole, rest = re.split(rb"[\r\n]+", rest + piece)
        rest = rest[:LONGEST_LINE]
        yield from map(_text, whole)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return " ".join(_ANSI.sub("", line[:LONGEST_LINE].decode("utf-8", "replace")).split())


class _Reader:
    """Turns lines into rows."""

    def __init__(self) -> None:
        self.log = Log(numbered=False)
        self._last: int | None = None
        self._epoch = -1
        self._total: int | None = None
        self._offset = 0
        self._counted = 0

    def take(self, line: str) -> None:
        """Process one line."""
        if not line:
            return
        self.log.lines += 1
        if _SUMMARY in line:
            return
        said = _json(line) or _plain(line)
        if not (said.step != _NOTHING or said.scalars):
            if said.number is not None and said.alone:
                self._number(said)  # `Step 10` on its own line: the following lines belong to it
            return
        self.log.understood += 1
        number = self._number(said)
        for name, value in said.scalars:
            self.log.scalars.append((number, name, value))
        if said.step == _NOTHING:
            return
        if number not in self.log.steps and len(self.log.steps) >= MOST_STEPS:
            self.log.dropped += 1
            return
        kept = self.log.steps.setdefault(number, Step())
        for name, value in vars(said.step).items():
            if value is not None:
                setattr(kept, name, value)

    def _number(self, said: _Said) -> int:
        """The step number of a line."""
        if said.number is None:
            if self._last is not None and self.log.numbered:
                return self._last
            counts = said.step.loss is not None
            self._counted += counts
            return max(0, self._counted - 1)
        self.log.numbered = True
        step = said.number
        if self._last is not None and step + self._offset < self._last:
            new_epoch = said.epoch is not None and said.epoch > self._epoch >= 0
            bar_again = said.total is not None and self._last - self._offset == said.total == self._total
            if new_epoch or bar_again:  # the numbering restarts in each epoch
                self._offset = self._last
            else:
                self.log.went_back += 1
        self._total = said.total
        if said.epoch is not None:
            self._epoch = said.epoch
        self._last = step + self._offset
        return self._last


@dataclass
class _Said:
    """The values in one line."""

    step: Step = field(default_factory=Step)
    scalars: list[tuple[str, float]] = field(default_factory=list)
    number: int | None = None
    total: int | None = None
    epoch: int | None = None
    alone: bool = False


def _plain(line: str) -> _Said:
    """Parse a line of text, including a dictionary as printed by Python."""
    said = _Said()
    lowered = line.lower()
    step = _STEP.search(line)
    bar = _BAR.search(line)
    if step is not None:
        said.number, said.total = _whole(step[1]), _whole(step[2])
        said.alone = step.end() >= len(line.rstrip(" :]-="))
    elif bar is not None:
        said.number, said.total = _whole(bar[1]), _whole(bar[2])
    if "epoch" in lowered and (epoch := _EPOCH.search(line)) is not None:
        said.epoch = _whole_of(_number(epoch[1]))
    if "loss" in lowered:
        for match in _LOSS.finditer(line):
            _loss(said, match[1], _number(match[2]))
    if "norm" in lowered:
        said.step.grad_norm = _first(_GRAD, line)
    if "lr" in lowered or "learning" in lowered:
        said.step.lr = _first(_LR, line)
    if "scale" in lowered:
        said.step.loss_scale = _first(_SCALE, line)
    if "tok" in lowered and (rate := _TOKENS.search(line)) is not None:
        _scalar(said, "tokens_per_second", _number(rate[1] or rate[2]))
    time = _TIME.search(line) if said.step.loss is not None else None
    if time is not None:
        unit, value = time[1] or time[3], _number(time[2])
        if value is not None and unit:
            said.step.wall_s = value / (1e3 if unit.lower() == "ms" else 1.0)
    return said


def _json(line: str) -> _Said | None:
    """Parse a line that is a JSON object; None if it is not one."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    said = _Said()
    for name, value in _flat(found):
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        try:
            _named(said, name, float(number))
        except OverflowError:
            continue
    return said


def _flat(found: dict[Any, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict) and depth < 3:
            yield from _flat(value, f"{before}{name}/", depth + 1)
        else:
            yield f"{before}{name}", value


def _named(said: _Said, name: str, value: float) -> None:
    """Store one named value."""
    text = f"{name}: 1"
    if _STEP.fullmatch(text):
        said.number = _whole_of(value) if said.number is None else said.number
    elif name.lower() == "epoch":
        said.epoch = _whole_of(value)
    elif _SCALE.fullmatch(text):
        said.step.loss_scale = value
    elif (match := _LOSS.fullmatch(text)) is not None:
        _loss(said, match[1], value)
    elif _LR.fullmatch(text):
        said.step.lr = value if said.step.lr is None else said.step.lr
    elif _GRAD.fullmatch(text):
        said.step.grad_norm = value
    elif _TOKENS.fullmatch(text):
        _scalar(said, "tokens_per_second", value)


def _loss(said: _Said, name: str, value: float | None) -> None:
    """Store a value whose name contains `loss`: a training loss, a validation loss, or another value."""
    words = [word for word in re.split(r"[\s_/.-]+", name.lower()) if word]
    if value is None:
        return
    if "scale" in words:
        said.step.loss_scale = value
    elif _VALIDATION.intersection(words):
        _scalar(said, "_".join(words), value)
    elif _OF_TRAINING.issuperset(words):
        said.step.loss = value if said.step.loss is None else said.step.loss
    else:
        _scalar(said, "_".join(words), value)


def _scalar(said: _Said, name: str, value: float | None) -> None:
    if value is not None and all(name != known for known, _ in said.scalars):
        said.scalars.append((name, value))


def _first(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    return None if match is None else _number(match[1])


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    return None if text is None else _whole_of(_number(text))


def _whole_of(value: float | None) -> int | None:
    """A step or an epoch; None for a value that cannot be one."""
    return int(value) if value is not None and 0 <= value < 2**53 else None


# As tables ---------------------------------------------------------------------------


def tables(log: Log) -> duckdb.DuckDBPyConnection:
    """A new database with the rows of the log; all other tables are empty."""
    import duckdb

    from probe.diagnose.recipes import local_query

    connection = duckdb.connect(":memory:")
    local_query.make_tables(connection)
    steps = sorted(log.steps.items())
    numbers = [number for number, _ in steps]
    losses = [one.loss for _, one in steps]
    columns: dict[str, list[float | None]] = {
        name: [getattr(one, name) for _, one in steps]
        for name in ("loss", "lr", "grad_norm", "loss_scale", "wall_s")
    }
    _insert(connection, "python.steps", numbers, columns)
    _insert(
        connection, "python.losses", numbers, {"loss": losses},
        more="0 AS micro_step, isfinite(loss) AS finite", where="loss IS NOT NULL",
    )
    for name in sorted({name for _, name, _ in log.scalars}):
        own = [(step, value) for step, known, value in log.scalars if known == name]
        more = f"'{name.replace(chr(39), chr(39) * 2)}' AS name"
        values: list[float | None] = [value for _, value in own]
        _insert(connection, "python.scalars", [step for step, _ in own], {"value": values}, more=more)
    return connection


def _insert(
    connection: duckdb.DuckDBPyConnection, table: str, steps: list[int],
    columns: dict[str, list[float | None]], more: str = "", where: str = "true",
) -> None:
    """Insert rows by column name. NaN is passed as a flag, because DuckDB reads an array's NaN as NULL."""
    import numpy as np

    arrays: dict[str, Any] = {"step": np.array(steps, np.int64)}
    chosen = ["step"]
    for name, values in columns.items():
        numbers = np.array([math.nan if value is None else value for value in values], np.float64)
        arrays[f"{name}_known"] = np.array([value is not None for value in values], np.bool_)
        arrays[f"{name}_nan"] = np.isnan(numbers)
        arrays[f"{name}_number"] = np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf)
        number = f"CASE WHEN {name}_nan THEN 'NaN'::DOUBLE ELSE {name}_number END"
        chosen.append(f"CASE WHEN {name}_known THEN {number} END AS {name}")
    if not steps:
        return
    connection.register("log_rows", arrays)
    try:
        inner = f"SELECT {', '.join(chosen)} FROM log_rows"
        connection.execute(
            f"INSERT INTO {table} BY NAME SELECT *{f', {more}' if more else ''}, 0 AS rank FROM ({inner})"
            f" WHERE {where} ORDER BY step"
        )
    finally:
        connection.unregister("log_rows")


# Summary ----------------------------------------------------------------

MARGINAL_RATIO, STEADY_RATIO = 0.01, 0.05
"""Common practice: a decrease below 1 % counts as none, 1 % to 5 % as marginal, more as steady."""


def summary(log: Log) -> Finding:
    """How the loss changed according to the log; for any number of steps."""
    curve = log.curve()
    last_finite = curve[-1][0] if curve else -1
    bad = [
        step for step, one in log.steps.items()
        if one.loss is not None and not math.isfinite(one.loss) and step > last_finite
    ]
    if bad:
        text = f"the loss is NaN or infinite from step {min(bad):,} on"
        return Finding("loss is not finite", ALARM, text, _rate(log))
    if len(curve) < 2:
        return Finding("too little", INFO, f"{len(curve)} steps with a loss", _rate(log))
    (first, start), (last, end) = curve[0], curve[-1]
    ratio = (start - end) / abs(start) if start else 0.0
    middle = curve[len(curve) // 2]
    early = (start - middle[1]) / (start - end) if start != end else 0.0
    what = f"loss went from {start:.4g} (step {first:,}) to {end:.4g} (step {last:,}): {-ratio:+.1%}"
    why = _rate(log)
    if ratio > MARGINAL_RATIO and len(curve) >= 4:
        why.insert(0, f"{early:.0%} of the decrease came before step {middle[0]:,}")
    if ratio > STEADY_RATIO:
        return Finding("loss falls", OK, what, why)
    if ratio > MARGINAL_RATIO:
        return Finding("loss falls a little", INFO, what, why)
    state = "loss rises" if ratio < -MARGINAL_RATIO else "loss stands still"
    return Finding(state, NOTICE if len(curve) >= 4 else INFO, what, why)


def _rate(log: Log) -> list[str]:
    """How the learning rate changed: warm-up, peak, decay."""
    known = ((step, one.lr) for step, one in sorted(log.steps.items()))
    rates = [(step, lr) for step, lr in known if lr is not None and math.isfinite(lr)]
    if not rates:
        return []
    highest = max(lr for _, lr in rates)
    at = next(step for step, lr in rates if lr == highest)
    (first, start), (last, end) = rates[0], rates[-1]
    if start == end == highest:
        return [f"learning rate {highest:.3g} throughout"]
    parts = []
    if start < highest:
        parts.append(f"rises from {start:.3g} at step {first:,} to {highest:.3g} at step {at:,}")
    if end < highest:
        since = next(step for step, lr in reversed(rates) if lr == highest)
        parts.append(f"falls from {highest:.3g} at step {since:,} to {end:.3g} at step {last:,}")
    return [f"learning rate {', then '.join(parts)}"]


def findings(log: Log, checks: Iterable[Check]) -> list[Finding]:
    """Findings of the recipes, worst first, and a summary of the loss (an alarm in it gives way to other
    findings). There is no process, so the only next command is to record the next run."""
    found = worst_first(replace(one, next=[]) for check in checks for one in check.findings)
    own = summary(log)
    if own.severity != ALARM or not found:
        found.append(own)
    return [*found[:-1], replace(found[-1], next=_NEXT)]
