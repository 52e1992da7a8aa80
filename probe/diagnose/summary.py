"""Summary of a run: learning, speed and memory, as numbers with their spread.

`STATEMENTS` is the SQL, `summarize` turns its rows into the summary; both are pure, so the server, the
metrics and tests share them. Learning and speed are the lead rank's (the lowest known rank), with the spread
over the ranks. Speed excludes steps disturbed by recording (sampled) and the first `WARM_UP_STEPS`; phases
come from timed steps. Values not measured are None, never 0. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe.diagnose.efficiency import SOURCE, mfu

WARM_UP_STEPS = 3
WINDOW_STEPS = 256
"""Number of last steps that the summary covers."""
LOSS_STEPS = 32
"""The last steps of these give the current loss, and as many before them the previous loss."""
CURVE_POINTS = 48
PHASES = ("data_s", "forward_s", "backward_s", "optimizer_s", "comm_s", "other_s")
NOT_WORKED = ("held_s", "eval_s", "checkpoint_s")
"""Parts of wall_s in which the step did no work."""
NOTCH = 1.57
"""Half the width of a median's interval: this · interquartile range / √count (McGill, Tukey and Larsen 1978,
notched box plots). Two medians whose intervals do not overlap differ at about 95 %."""

_NOT_WORKED_SQL = " - ".join(f"coalesce({name}, 0)" for name in NOT_WORKED)
_LEAD = "rank = (SELECT min(rank) FROM python.steps)"
_STEP_COLUMNS = (
    "step", "t_ns", "wall_s", *PHASES, *NOT_WORKED, "loss", "grad_norm", "lr", "loss_scale", "skipped",
    "training_mode", "samples", "tokens", "sampled", "shadow",
)
STATEMENTS: dict[str, str] = {
    "steps": f"SELECT {', '.join(_STEP_COLUMNS)} FROM python.steps WHERE {_LEAD} AND step <= $until "
    f"ORDER BY step DESC LIMIT {WINDOW_STEPS}",
    "run": "SELECT min(step) AS first_step, max(step) AS last_step, count(*) AS steps, "
    "min(loss) FILTER (isfinite(loss)) AS best_loss, "
    "arg_min(step, loss) FILTER (isfinite(loss)) AS best_step, "
    "count(*) FILTER (skipped) AS skipped, count(*) FILTER (NOT isfinite(loss)) AS nonfinite, "
    "sum(samples) AS samples, sum(tokens) AS tokens, sum(wall_s) AS wall_s "
    f"FROM python.steps WHERE {_LEAD} AND step <= $until",
    "curve": "WITH shown AS (SELECT step, loss, min(step) OVER () AS first, max(step) OVER () AS last "
    f"FROM python.steps WHERE {_LEAD} AND step <= $until AND isfinite(loss)) "
    f"SELECT CAST(median(step) AS BIGINT) AS step, median(loss) AS loss FROM shown "
    f"GROUP BY (step - first) * {CURVE_POINTS} // (last - first + 1) ORDER BY 1",
    "intervals": "SELECT kind, count(*) AS count, count(duration_s) AS ended, "
    "median(duration_s) AS median_s, sum(duration_s) AS total_s, max(step) AS step, "
    "max(t_ns) FILTER (state = 'pending') AS pending_ns FROM python.intervals "
    "WHERE rank = (SELECT min(rank) FROM python.intervals) AND coalesce(step, 0) <= $until "
    "GROUP BY kind ORDER BY total_s DESC NULLS LAST",
    "ranks": f"SELECT rank, median(wall_s - {_NOT_WORKED_SQL}) AS step_s, max(step) AS step, "
    "count(*) AS steps "
    f"FROM python.steps WHERE step <= $until AND step >= {WARM_UP_STEPS} AND NOT sampled AND step > "
    f"least($until, (SELECT max(step) FROM python.steps)) - {WINDOW_STEPS} GROUP BY rank ORDER BY rank",
    "memory": "SELECT rank, arg_max(rss_bytes, t_ns) AS rss_bytes, max(rss_peak_bytes) AS rss_peak_bytes, "
    "arg_max(available_bytes, t_ns) AS available_bytes, arg_max(limit_bytes, t_ns) AS limit_bytes, "
    "arg_max(allocated_bytes, t_ns) AS allocated_bytes, arg_max(reserved_bytes, t_ns) AS reserved_bytes, "
    "max(peak_allocated_bytes) AS peak_allocated_bytes, "
    "arg_max(device_total_bytes, t_ns) AS device_total_bytes FROM process.memory GROUP BY rank ORDER BY rank "
    "LIMIT 1",
    "facts": "SELECT kind, name, arg_max(value, t_ns) AS value FROM probe.facts "
    "WHERE rank = (SELECT min(rank) FROM probe.facts) GROUP BY kind, name ORDER BY kind, name",
    "updates": "SELECT step, median(update_ratio) AS update_ratio, min(update_ratio) AS least, "
    "max(update_ratio) AS most, any_value(update_kind) AS kind, count(update_ratio) AS parameters "
    "FROM python.gradients WHERE rank = (SELECT min(rank) FROM python.gradients) AND step <= $until "
    "AND update_ratio IS NOT NULL GROUP BY step ORDER BY step DESC LIMIT 1",
    "scalars": "SELECT name, arg_max(value, t_ns) AS value, max(logged_step) AS logged_step, "
    "arg_max(source, t_ns) AS source FROM python.scalars WHERE step <= $until GROUP BY name ORDER BY name "
    "LIMIT 50",
    "devices": "SELECT device, arg_max(name, t_ns) AS name, arg_max(utilization_ratio, t_ns) AS "
    "utilization_ratio, arg_max(memory_used_bytes, t_ns) AS memory_used_bytes, "
    "arg_max(memory_total_bytes, t_ns) AS memory_total_bytes, arg_max(throttled, t_ns) AS throttled "
    "FROM process.gpu GROUP BY device ORDER BY device",
}
"""SQL statements by name; `$until` is the last step to include."""
WHOLE_RUN = (1 << 62)
Row = dict[str, Any]


class Spread(NamedTuple):
    """The distribution of some values: median, quartiles, 95th percentile and their number (`size`)."""

    median: float
    p25: float
    p75: float
    p95: float
    size: int

    @property
    def notch(self) -> float:
        """Half the width of the median's interval (`NOTCH`)."""
        return NOTCH * (self.p75 - self.p25) / math.sqrt(self.size)


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of the finite values; None if there are none."""
    found = sorted(value for value in values if math.isfinite(value))
    if not found:
        return None
    median, p25, p75, p95 = (_quantile(found, share) for share in (0.5, 0.25, 0.75, 0.95))
    return Spread(median, p25, p75, p95, len(found))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def statements_for(names: Sequence[str] | None, until: int | None) -> list[tuple[str, dict[str, Any]]]:
    """SQL and parameters of the statements with these names (None: all)."""
    last = WHOLE_RUN if until is None else until
    chosen = STATEMENTS if names is None else {name: STATEMENTS[name] for name in names}
    return [(sql, {"until": last} if "$until" in sql else {}) for sql in chosen.values()]


def summarize(results: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Build the summary from the rows of each statement."""
    steps = list(reversed(results.get("steps") or ()))
    run = next(iter(results.get("run") or ()), {})
    facts: dict[str, dict[str, str]] = {}
    for row in results.get("facts") or ():
        facts.setdefault(row["kind"], {})[row["name"]] = row["value"]
    return {
        "steps": {
            "first": run.get("first_step"), "last": run.get("last_step"), "seen": run.get("steps") or 0,
            "window": len(steps), "window_from": steps[0]["step"] if steps else None,
        },
        "learning": _learning(steps, run, results),
        "speed": _speed(steps, facts),
        "memory": {k: v for k, v in next(iter(results.get("memory") or ()), {}).items() if k != "rank"},
        "devices": list(results.get("devices") or ()),
        "ranks": list(results.get("ranks") or ()),
        "intervals": [
            {**row, "share": (row["total_s"] or 0.0) / run["wall_s"] if run.get("wall_s") else None}
            for row in results.get("intervals") or ()
        ],
        "scalars": {row["name"]: row for row in results.get("scalars") or ()},
        "facts": facts,
    }


def _values(steps: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in steps if row.get(name) is not None]


def _last(steps: Sequence[Row], name: str) -> Any:
    return next((row[name] for row in reversed(steps) if row.get(name) is not None), None)


# Learning ---------------------------------------------------------------------


def _learning(steps: Sequence[Row], run: Row, results: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    losses = _values(steps, "loss")
    updates = next(iter(results.get("updates") or ()), {})
    norms = spread(_values(steps, "grad_norm"))
    now, before = spread(losses[-LOSS_STEPS:]), spread(losses[-2 * LOSS_STEPS : -LOSS_STEPS])
    return {
        "loss": losses[-1] if losses else None, "loss_now": as_dict(now), "loss_before": as_dict(before),
        "trend": trend(now, before),
        "best_loss": run.get("best_loss"), "best_step": run.get("best_step"),
        "nonfinite_losses": run.get("nonfinite"), "skipped_steps": run.get("skipped"),
        "grad_norm": _last(steps, "grad_norm"), "grad_norm_usual": as_dict(norms),
        "lr": _last(steps, "lr"), "loss_scale": _last(steps, "loss_scale"),
        "training_mode": _last(steps, "training_mode"),
        "update_ratio": updates.get("update_ratio"), "update_step": updates.get("step"),
        "update_kind": updates.get("kind"),
        "curve": [[row["step"], row["loss"]] for row in results.get("curve") or ()],
    }


def trend(now: Spread | None, before: Spread | None) -> str | None:
    """`falling`, `rising` or `flat` (the intervals overlap); None if there are too few steps."""
    if now is None or before is None or min(now.size, before.size) < LOSS_STEPS // 2:
        return None
    if now.median + now.notch < before.median - before.notch:
        return "falling"
    if now.median - now.notch > before.median + before.notch:
        return "rising"
    return "flat"


# Speed ------------------------------------------------------------------------


def _speed(steps: Sequence[Row], facts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    usual = [row for row in steps if not row["sampled"] and row["step"] >= WARM_UP_STEPS]
    timed = [row for row in usual if not row["shadow"]]
    step = spread([worked_s(row) for row in usual])
    total = sum(worked_s(row) for row in timed)
    phases = {}
    for name in PHASES:
        values = _values(timed, name)
        found = spread(values)
        share = sum(values) / total if values and total > 0 else None
        mean = sum(values) / len(timed) if values else None
        phases[name] = None if found is None else {**(as_dict(found) or {}), "share": share, "mean": mean}
    samples, tokens = _rate(usual, "samples"), _rate(usual, "tokens")
    peak = number(facts.get("hardware", {}).get("peak_tflops"))
    parameters = number(facts.get("model", {}).get("parameters"))
    return {
        "step_s": as_dict(step), "phases": phases, "steps_per_s": 1 / step.median if step else None,
        "samples_per_s": samples, "tokens_per_s": tokens,
        "mfu": mfu(parameters, tokens, peak), "mfu_source": SOURCE, "peak_tflops": peak,
        "parameters": parameters,
    }


def worked_s(row: Row) -> float:
    """Time of a step without holds of the training thread, evaluations and checkpoints."""
    return float(row["wall_s"] or 0.0) - sum(float(row.get(name) or 0.0) for name in NOT_WORKED)


def _rate(steps: Sequence[Row], name: str) -> float | None:
    """Amount per second over the steps that have it; None if none does."""
    counted = [row for row in steps if row.get(name) is not None]
    seconds = sum(worked_s(row) for row in counted)
    return sum(row[name] for row in counted) / seconds if counted and seconds > 0 else None


def as_dict(found: Spread | None) -> dict[str, Any] | None:
    """A spread as a JSON object, with its notch."""
    return None if found is None else {**found._asdict(), "notch": found.notch}


def number(text: str | None) -> float | None:
    """A fact's value as a finite number; None if it is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
