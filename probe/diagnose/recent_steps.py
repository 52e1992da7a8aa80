"""Figures of a process's last steps for live views: computed from the rows of its ring, without a query.

The equivalent query costs twenty times the processor time. Runs in threads of the server; the command imports
the constants, so numpy is imported in functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER

if TYPE_CHECKING:
    from probe.recording.reader import Rows

PARTS = 8
PART_STEPS = 32
"""The last steps are read in this many parts of this many steps: one column of a curve per part. The newest
part gives the rate."""
PHASES = ("data", "forward", "backward", "optimizer", "comm", "other")
NOT_WORKED = ("held_s", "eval_s", "checkpoint_s")
"""Parts of a step's time excluded from its rate."""
CURVES = ("loss", "lr", "grad_norm", "rss_bytes", "allocated_bytes")


def figures(rows: Rows) -> dict[str, Any] | None:
    """Figures of the last `PARTS` * `PART_STEPS` rows of python.steps: `loss`, `step_s` and `memory_bytes` of
    the newest part, `curve` (mean loss of each part, oldest first), `shares` of the phases in timed steps;
    None for values not measured. None before the first step."""
    if not len(rows):
        return None
    newest, curve = rows[-PART_STEPS:], [_mean_loss(part) for part in _parts(rows)]
    held = _last(newest, "allocated_bytes")
    return {
        "loss": _last(newest, "loss"), "curve": curve, "step_s": _worked_s(newest), "shares": _shares(rows),
        "memory_bytes": _last(newest, "rss_bytes") if held is None else held,
    }


def together(rows: Rows, amount: str) -> dict[str, Any] | None:
    """Merge rows of python.steps into one: first and last step, `t_ns` of the last, number of `bad` steps
    (loss or norm not finite), and least, mean and largest finite value of each of `CURVES` and of `rate`:
    `amount` ("tokens", "samples" or "1") per second; its mean is over the whole time. None for values not
    measured, and without rows."""
    if not len(rows):
        return None
    curves = {name: _three(_known(rows, name)) for name in CURVES}
    bad = _bad(rows, "loss") | _bad(rows, "grad_norm")
    return {
        "first_step": int(rows[0]["step"]), "step": int(rows[-1]["step"]), "t_ns": int(rows[-1]["t_ns"]),
        "bad": int(bad.sum()), **curves, "rate": _rate(rows, amount),
    }


def _parts(rows: Rows) -> list[Rows]:
    """Split into parts of `PART_STEPS`, counted from the newest row; oldest part first."""
    ends = range(len(rows), 0, -PART_STEPS)
    return [rows[max(0, end - PART_STEPS) : end] for end in ends][::-1]


def _is_known(rows: Rows, column: str) -> Any:
    """Mask of the rows with a value in a column; all False if the ring has no such column."""
    import numpy as np

    if column not in (rows.dtype.names or ()):
        return np.zeros(len(rows), np.bool_)
    values = rows[column]
    null = NULL_DOUBLE if values.dtype.kind == "f" else NULL_INTEGER
    return values != (NULL_BOOLEAN if values.dtype.itemsize == 1 else null)


def _known(rows: Rows, column: str) -> Any:
    """The values of a column that are not NULL."""
    has = _is_known(rows, column)
    return rows[column][has] if has.any() else []


def _bad(rows: Rows, column: str) -> Any:
    """Mask of the rows with a value that is not finite."""
    import numpy as np

    has = _is_known(rows, column)
    return has & ~np.isfinite(rows[column]) if has.any() else has


def _last(rows: Rows, column: str) -> Any:
    """The newest value of a column that is not NULL, as a Python value; None without one."""
    found = _known(rows, column)
    return found[-1].item() if len(found) else None


def _finite(values: Any) -> Any:
    import numpy as np

    return values[np.isfinite(values)] if len(values) else values


def _mean_loss(rows: Rows) -> float | None:
    found = _finite(_known(rows, "loss"))
    return float(found.mean()) if len(found) else None


def _three(values: Any) -> list[float] | None:
    """Least, mean and largest finite value."""
    found = _finite(values)
    return [float(found.min()), float(found.mean()), float(found.max())] if len(found) else None


def _worked_s(rows: Rows) -> float | None:
    """Mean time of a step without the `NOT_WORKED` parts."""
    timed = rows[_is_known(rows, "wall_s")]
    if not len(timed):
        return None
    apart_s = sum(float(sum(_known(timed, name))) for name in NOT_WORKED)
    return (float(timed["wall_s"].sum()) - apart_s) / len(timed)


def _shares(rows: Rows) -> dict[str, float]:
    """The share of each phase in the steps that were timed and not sampled."""
    timed = rows
    for name in ("shadow", "sampled"):
        timed = timed[timed[name] == 0] if name in (timed.dtype.names or ()) else timed[:0]
    sums_s = {
        name: float(found.sum()) for name in PHASES if len(found := _known(timed, f"{name}_s"))
    }
    whole_s = sum(sums_s.values())
    return {name: one / whole_s for name, one in sums_s.items()} if whole_s > 0 else {}


def _rate(rows: Rows, amount: str) -> list[float] | None:
    """The least rate of a step, the rate over all steps, and the largest rate of a step."""
    import numpy as np

    has = _is_known(rows, "wall_s") & (rows["wall_s"] > 0)
    has &= np.True_ if amount == "1" else _is_known(rows, amount)
    if not has.any():
        return None
    walls_s = rows["wall_s"][has]
    done = np.ones(len(walls_s)) if amount == "1" else rows[amount][has]
    each = done / walls_s
    return [float(each.min()), float(done.sum() / walls_s.sum()), float(each.max())]
