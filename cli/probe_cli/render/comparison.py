"""Compares two runs by their summaries: figures with noise, facts, likely causes. Pure except for `tell`,
which requests the summaries and prints.

Two medians differ if their intervals (notches) do not overlap and the difference is not tiny
(`LEAST_RATIO`); learning figures are compared at the last step that both runs have. A slower phase is
attributed to related facts that differ, most likely first. A value missing in one run is unknown, not a
difference. Standard library only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from probe_cli.core import figures
from probe_cli.core.figures import duration, figure, share, short, size
from probe_cli.core.terminal import Output, escape_controls

if TYPE_CHECKING:
    from probe_cli.core.session import Session

LEAST_RATIO = 0.02
"""Smaller relative differences of two medians are ignored."""
STEP_RATIO = 0.05
"""The same limit for step times, which vary by this much from minute to minute."""
MOST_CAUSES = 3
_LONGEST, _BEFORE = 48, 16
"""Width of a fact, and the columns shown before the first difference."""
UNKNOWN = figures.UNKNOWN
Summary = Callable[[int | None], dict[str, Any]]
"""Returns the summary of a run, up to a step if one is given."""


class Difference(NamedTuple):
    """One line of a comparison. `differs` is None if one side is unknown; `note` states the noise."""

    section: str
    name: str
    a: str
    b: str
    differs: bool | None
    note: str = ""
    change: float | None = None
    """b / a - 1 of figures."""


class Comparison(NamedTuple):
    """All lines, and the conclusion."""

    lines: list[Difference]
    conclusion: str


PHASES = ("data_s", "forward_s", "backward_s", "optimizer_s", "comm_s", "other_s")
_COMPUTE = (
    r"(^|\.)(batch_size|micro_batch_size|block_size|seq_len|max_seq_len|n_layer|n_head|n_embd|hidden_size)$",
    r"^model\.", r"^amp\.", r"num_threads|NUM_THREADS", r"matmul_precision",
    r"^hardware\.(device|cpu|cpus)$", r"^torch$", r"compile", r"^CUDA_", r"deterministic",
    r"^hardware\.host$",
)
CAUSES: dict[str, tuple[str, ...]] = {
    "data_s": (
        r"num_workers$", r"prefetch_factor$", r"persistent_workers$", r"pin_memory$", r"(^|\.)dataset$",
        r"batch_size$", r"shuffle$", r"dataset_length$", r"^hardware\.(cpu|cpus)$", r"NUM_THREADS",
        r"^hardware\.host$",
    ),
    "forward_s": _COMPUTE,
    "backward_s": _COMPUTE,
    "optimizer_s": (r"^optimizer", r"^model\.", r"foreach|fused", *_COMPUTE),
    "comm_s": (r"world_size$", r"^(NCCL|GLOO|UCX|FI)_", r"^hardware\.host$"),
    "other_s": (r"clip|grad_norm", r"log|eval|save|checkpoint", r"NUM_THREADS"),
    "loss": (
        r"(^|\.)(lr|learning_rate|max_lr)$", r"^scheduler", r"warmup", r"weight_decay$", r"batch_size$",
        r"^optimizer", r"^model\.", r"^amp\.", r"dropout", r"clip|grad_norm", r"dataset", r"shuffle$",
        r"seed|^torch$|^git\.commit$|^git\.diff_hash$|^command\.script_hash$",
    ),
}
"""Patterns of facts related to a phase, most likely cause first."""
_OF_KIND = {
    "hyperparameter": "configuration", "seed": "configuration", "model": "configuration",
    "package": "environment", "hardware": "environment", "environment": "environment",
    "command": "code", "git": "code",
}
_PREFIXED = frozenset({"seed", "model", "hardware", "command", "git"})
"""Kinds shown as a prefix of the name."""
SECTIONS = ("learning", "speed", "memory", "configuration", "environment", "code")


def compare(a: Mapping[str, Any], b: Mapping[str, Any], ends: tuple[Mapping[str, Any], Mapping[str, Any]],
            names: tuple[str, str]) -> Comparison:
    """Compare two summaries up to the same last step; `ends` are the summaries of the whole runs."""
    lines = [
        *_learning(a, b, ends), *_speed(a["speed"], b["speed"]), *_memory(a["memory"], b["memory"]),
        *_facts(a["facts"], b["facts"]),
    ]
    return Comparison(lines, _conclusion(lines, names))


# Figures ------------------------------------------------------------------------


def _spreads(
    section: str, name: str, a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, shown: Any,
    least: float = LEAST_RATIO,
) -> Difference:
    """Two medians with their intervals."""
    if not a or not b:
        texts = [shown(one["median"]) if one else UNKNOWN for one in (a, b)]
        return Difference(section, name, texts[0], texts[1], None if a or b else False)
    middle = float(a["median"]), float(b["median"])
    change = middle[1] / middle[0] - 1 if middle[0] else None
    apart = abs(middle[1] - middle[0]) > float(a["notch"]) + float(b["notch"])
    noise = f"± {shown(a['notch'])} and {shown(b['notch'])}, of {a['size']} and {b['size']} steps"
    differs = apart and (change is None or abs(change) >= least) and min(a["size"], b["size"]) > 3
    return Difference(section, name, shown(middle[0]), shown(middle[1]), differs, noise, change)


def _numbers(section: str, name: str, a: Any, b: Any, shown: Any, least: float = LEAST_RATIO) -> Difference:
    first, second = figures.value(a), figures.value(b)
    if first is None or second is None:
        neither = first is None and second is None
        return Difference(section, name, shown(a), shown(b), False if neither else None)
    change = second / first - 1 if first else None
    same = first == second or (first != first and second != second)
    differs = not same and (change is None or not abs(change) < least)
    return Difference(section, name, shown(a), shown(b), differs, "", change)


def _pair(
    section: str, name: str, values: Sequence[Any], shown: Any, least: float = LEAST_RATIO
) -> Difference:
    return _numbers(section, name, values[0], values[1], shown, least)


def _learning(
    a: Mapping[str, Any], b: Mapping[str, Any], ends: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[Difference]:
    first, second = a["learning"], b["learning"]
    step = a["steps"]["last"]
    at = "loss" if step is None else f"loss at step {step:,}"
    last = [one["steps"]["last"] for one in ends]
    found = [
        _spreads("learning", at, first["loss_now"], second["loss_now"], figure),
        _spreads("learning", "gradient norm", first["grad_norm_usual"], second["grad_norm_usual"], figure),
        _numbers("learning", "learning rate then", first["lr"], second["lr"], figure, 1e-6),
        _numbers("learning", "update ratio", first["update_ratio"], second["update_ratio"], figure, 0.2),
        _numbers("learning", "updates skipped", first["skipped_steps"], second["skipped_steps"], figure),
        _pair("learning", "non-finite losses", [one["learning"]["nonfinite_losses"] for one in ends], figure),
        _pair("learning", "last step", last, figure, 0.0),
    ]
    if last[0] != last[1]:
        medians = [(one["learning"]["loss_now"] or {}).get("median") for one in ends]
        found.append(_pair("learning", "loss at the end", medians, figure))
    found.append(_pair("learning", "best loss", [one["learning"]["best_loss"] for one in ends], figure))
    scalars = sorted(set(ends[0]["scalars"]) | set(ends[1]["scalars"]))
    for name in scalars:
        values = [(one["scalars"].get(name) or {}).get("value") for one in ends]
        found.append(_pair("learning", f"{name} (logged)", values, figure))
    return found


def _speed(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    found = [_spreads("speed", "step", a["step_s"], b["step_s"], duration, STEP_RATIO)]
    p95 = [(one["step_s"] or {}).get("p95") for one in (a, b)]
    found.append(_pair("speed", "step p95", p95, duration, 0.25))
    total = max((float(one["step_s"]["median"]) for one in (a, b) if one["step_s"]), default=0.0)
    for name in PHASES:
        first, second = a["phases"].get(name), b["phases"].get(name)
        if first is None and second is None:
            continue
        line = _spreads("speed", name, first, second, duration, STEP_RATIO)
        if line.differs and first and second:
            moved = abs(float(first["median"]) - float(second["median"]))
            line = line._replace(differs=moved > LEAST_RATIO * total)
        found.append(line)
    for name, shown in (("samples_per_s", short), ("tokens_per_s", short), ("mfu", share)):
        found.append(_numbers("speed", name, a[name], b[name], shown, STEP_RATIO))
    return found


def _memory(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    names = ("rss_peak_bytes", "peak_allocated_bytes", "limit_bytes", "device_total_bytes")
    return [_numbers("memory", name, a.get(name), b.get(name), size, 0.05) for name in names]


# Facts --------------------------------------------------------------------------


def _facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    for kind, section in _OF_KIND.items():
        first, second = a.get(kind) or {}, b.get(kind) or {}
        known = bool(first), bool(second)
        for name in sorted({*first, *second}):
            values = first.get(name), second.get(name)
            shown = [_text(value, here) for value, here in zip(values, known, strict=True)]
            differs = values[0] != values[1] if all(known) else None
            called = f"{kind}.{name}" if kind in _PREFIXED else name
            found.append(Difference(section, called, shown[0], shown[1], differs, kind))
    return sorted(found, key=lambda line: SECTIONS.index(line.section))


def _text(value: str | None, known: bool) -> str:
    if value is not None:
        return value
    return "none" if known else UNKNOWN


def _related_facts(lines: Sequence[Difference], subject: str) -> list[Difference]:
    """The differing facts related to a phase, most likely first."""
    facts = [line for line in lines if line.differs and line.section in SECTIONS[3:]]
    chosen: list[Difference] = []
    for pattern in CAUSES[subject]:
        chosen += [line for line in facts if line not in chosen and re.search(pattern, line.name)]
    return chosen[:MOST_CAUSES]


# Conclusion ---------------------------------------------------------------------


def _conclusion(lines: Sequence[Difference], names: tuple[str, str]) -> str:
    said: list[str] = []
    step = next(line for line in lines if line.name == "step" and line.section == "speed")
    if step.differs and step.change is not None:
        said.append(_slower(lines, step, names[1]))
    loss = lines[0]
    if loss.differs:
        said.append(_learns(lines, loss, names[1]))
    if said:
        return ". ".join(said)
    unknown = [word for word, line in (("step time", step), ("loss", loss)) if UNKNOWN in (line.a, line.b)]
    if len(unknown) == 2:
        return "step time and loss are not known for both runs; only facts were compared"
    if unknown:
        known = "loss" if unknown == ["step time"] else "step time"
        return f"no difference in {known} beyond noise; {unknown[0]} is not known for both runs"
    return "no difference in step time or loss beyond noise"


def _slower(lines: Sequence[Difference], step: Difference, name: str) -> str:
    change = step.change or 0.0
    text = f"{name} is {_percent(change, 'slower', 'faster')}: step {step.a} → {step.b}"
    phases = [
        line for line in lines
        if line.section == "speed" and line.name in PHASES and line.differs and line.change is not None
        and line.change * change > 0
    ]
    phases.sort(key=lambda line: -abs(_seconds(line.b) - _seconds(line.a)))
    causes: list[Difference] = []
    for line in phases[:2]:
        text += f", {line.name} {line.a} → {line.b}"
        causes += [cause for cause in _related_facts(lines, line.name) if cause not in causes]
    return text + _causes_text(causes)


def _learns(lines: Sequence[Difference], loss: Difference, name: str) -> str:
    word = "higher" if (loss.change or 0.0) > 0 else "lower"
    text = f"{name} has a {word} {loss.name}: {loss.a} → {loss.b}"
    return text + _causes_text(_related_facts(lines, "loss"))


def _causes_text(causes: Sequence[Difference]) -> str:
    if not causes:
        return "; no related fact differs"
    return "; " + ", ".join(f"{line.name} {_cut(line.a)} → {_cut(line.b)}" for line in causes[:MOST_CAUSES])


def _cut(text: str) -> str:
    line = text.partition("\n")[0]
    if re.fullmatch(r"[0-9a-f]{40,}", line):
        return f"{line[:12]}…"
    return line if len(line) <= 40 else f"{line[:39]}…"


def _percent(change: float, more: str, less: str) -> str:
    if change >= 1:
        return f"{change + 1:.1f} times as slow" if more == "slower" else f"{change + 1:.1f} times"
    return f"{100 * abs(change):.0f} % {more if change > 0 else less}"


def _signed(change: float) -> str:
    """`+12 %`; from a factor of ten on `×217`."""
    return f"×{change + 1:,.0f}" if change >= 9 else f"{100 * change:+.0f} %"


def _seconds(text: str) -> float:
    number, _, unit = text.partition(" ")
    try:
        return float(number) * (1e-3 if unit == "ms" else 1.0)
    except ValueError:
        return 0.0


# Text -----------------------------------------------------------------------------


def as_dict(
    found: Comparison, ends: tuple[Mapping[str, Any], Mapping[str, Any]], names: tuple[str, str],
    everything: bool,
) -> dict[str, Any]:
    """The comparison as JSON."""
    shown = [line for line in found.lines if everything or line.differs]
    keys = ("name", "run", "pid", "state", "folder", "steps")
    runs = [
        {"endpoint": name, **{key: one.get(key) for key in keys}}
        for name, one in zip(names, ends, strict=True)
    ]
    return {
        "runs": runs, "conclusion": found.conclusion, "differences": [line._asdict() for line in shown],
        "unknown": [line.name for line in found.lines if line.differs is None],
    }


def comparison_lines(found: Comparison, everything: bool, out: Output) -> Iterator[str]:
    """The conclusion, then section by section."""
    yield out.style(escape_controls(found.conclusion), "bold")
    for section in SECTIONS:
        shown = [line for line in found.lines if line.section == section and (everything or line.differs)]
        hidden = [line for line in found.lines if line.section == section and line.differs is None]
        if shown:
            yield ""
            yield out.style(section, "bold")
            yield from _table(shown, out)
        if hidden and not everything and section in SECTIONS[:3]:
            yield out.style(f"  unknown for one run: {', '.join(line.name for line in hidden)}", "dim")


def tell(
    session: Session, names: tuple[str, str], summaries: tuple[Summary, Summary], everything: bool,
    as_json: bool,
) -> None:
    """Compare two runs at the last step that both have; print the differences and the summaries' notes."""
    ends = summaries[0](None), summaries[1](None)
    last = [one["steps"]["last"] for one in ends]
    a, b = ends
    if None not in last and last[0] != last[1]:
        until = min(last)
        a, b = (
            end if step == until else summary(until)
            for end, step, summary in zip(ends, last, summaries, strict=True)
        )
    found = compare(a, b, ends, names)
    if as_json:
        session.out.json(as_dict(found, ends, names, everything))
    else:
        session.out.lines(comparison_lines(found, everything, session.out))
    for name, one in zip(names, ends, strict=True):
        for note in one.get("notes") or ():
            session.note(f"{name}: {note}")


def _table(shown: list[Difference], out: Output) -> Iterator[str]:
    cells = [(line.name, *_shortened(line.a, line.b)) for line in shown]
    widths = [max(len(row[place]) for row in cells) for place in range(3)]
    for line, (name, a, b) in zip(shown, cells, strict=True):
        change = "" if line.change is None or not line.differs else _signed(line.change)
        note = line.note if line.section not in SECTIONS[3:] else ""
        text = f"  {name:<{widths[0]}}  {a:>{widths[1]}} → {b:<{widths[2]}}  {change:>7}  "
        yield (text + out.style(note, "dim")).rstrip()
        if line.name == "git.diff_summary" and line.differs:
            for one in (line.a, line.b):
                yield from (f"      {escape_controls(row)}" for row in one.splitlines()[:10])


def _shortened(*texts: str) -> tuple[str, ...]:
    """First lines, truncated; long ones with a common prefix start shortly before their first difference."""
    firsts = [escape_controls(text.partition("\n")[0].strip()) for text in texts]
    alike = sum(itertools.takewhile(bool, (len(set(signs)) == 1 for signs in zip(*firsts, strict=False))))
    skip = alike - _BEFORE if max(map(len, firsts)) > _LONGEST and alike > _BEFORE else 0
    cut = [f"…{text[skip:]}" if skip else text for text in firsts]
    return tuple(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…" for text in cut)
