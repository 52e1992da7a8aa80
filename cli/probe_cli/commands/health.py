"""`probe health`: one screen about a run: learning, speed, memory, problems, next steps.

All figures come from one answer of the server (`GET /v1/summary`); this module formats it.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from probe_cli.core import figures
from probe_cli.core.figures import UNKNOWN, duration, figure, share, short, size
from probe_cli.core.options import ScreenFile, TextFormat
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, cut, escape_controls
from probe_cli.render.process_state import state_text, time_left_parts
from probe_cli.render.verdict_lines import verdict_lines

EXAMPLES = (
    "probe PID health",
    "probe JOB health --format json",
    "probe PID health -o health.json",
)
_PHASES = ("data", "forward", "backward", "optimizer", "comm", "other")
_PLURAL = ("evaluation", "prediction", "checkpoint")
_MOST_FINDINGS = 5
_LABEL = 11
_WIDTH = 100
"""Columns without a terminal."""
_SLOWER_RATIO = 1.05
"""A rank slower than the median by this factor is reported."""


def command(
    session: Session,
    watch: Annotated[
        float | None, Option("--watch", metavar="S", min=0.2, help="Refresh every S seconds.")
    ] = None,
    output: ScreenFile = None,
    output_format: TextFormat = "text",
) -> None:
    """Show learning, speed, memory and problems of a run."""
    while True:
        asked = {"endpoint": session.address.endpoint, "findings": "1"}
        answer = session.request("GET", "/v1/summary", asked)
        if output is not None:
            _to_file(session, answer, output, output_format)
        elif output_format == "json":
            session.out.json(answer)
        else:
            if watch is not None and session.out.terminal:
                session.out.stream.write("\x1b[H\x1b[2J")
            session.out.lines(lines(answer, session.out))
            for note in answer.get("notes") or ():
                session.note(str(note))
        if watch is None:
            return
        session.out.stream.flush()
        time.sleep(watch)


def _to_file(session: Session, answer: dict[str, Any], output: str, output_format: str) -> None:
    from probe_cli.render.row_output import write_file

    text = io.StringIO()
    if output_format == "json" or output.endswith(".json"):
        json.dump(answer, text, ensure_ascii=False)
    else:
        text.writelines(f"{line}\n" for line in lines(answer, Output(text, {})))
    write_file(output, text.getvalue().encode("utf-8", "backslashreplace"))
    session.note(f"written to {output}")


def lines(answer: dict[str, Any], out: Output) -> Iterator[str]:
    """The lines of the screen."""
    width = out.width or _WIDTH
    yield _title(answer, out)
    yield from _line("time", [escape_controls(part) for part in time_left_parts(_lead(answer))], width, out)
    if answer["steps"]["last"] is None and not _unread(answer):
        yield from _line("memory", _memory(answer["memory"]), width, out)
        yield from _findings(answer, out)
        return
    for label, parts in (
        ("loss", _loss(answer["learning"])),
        ("", _curve(answer["learning"], width)),
        ("gradients", _gradients(answer["learning"])),
        ("rate", _rate(answer["learning"])),
        ("speed", _speed(answer["speed"])),
        ("memory", _memory(answer["memory"])),
        ("device", _devices(answer["devices"])),
        ("ranks", _ranks(answer)),
    ):
        yield from _line(label, parts, width, out)
    yield from _phases(answer["speed"], width, out)
    yield from _line("between", _intervals(answer.get("intervals") or ()), width, out)
    yield from _findings(answer, out)


def _lead(answer: dict[str, Any]) -> dict[str, Any]:
    """The figures of the lowest rank, whose remaining time is shown."""
    return {**answer, "step": answer["steps"]["last"]}


def _unread(answer: dict[str, Any]) -> bool:
    """Whether the query for the last finished step failed."""
    return "run" in (answer.get("unread") or ())


def _title(answer: dict[str, Any], out: Output) -> str:
    steps = answer["steps"]
    colours = {"running": "green", "starting": "yellow", "finished": "dim"}
    colour = colours.get(str(answer.get("state")), "red")
    state = escape_controls(state_text({**answer, "state": answer.get("state") or UNKNOWN}))
    parts = [
        out.style(escape_controls(str(answer.get("name") or answer.get("job"))), "bold"),
        f"pid {answer['pid']}" if answer.get("pid") else "", out.style(state, colour),
        "" if _unread(answer) else "no step yet" if steps["last"] is None else f"step {steps['last']:,}",
    ]
    return "  ".join(part for part in parts if part)


def _line(label: str, parts: Sequence[str], width: int, out: Output) -> Iterator[str]:
    """Label and parts, wrapped to the width."""
    row = ""
    for part in parts:
        longer = f"{row}   {part}" if row else part
        if row and len(longer) > width - _LABEL:
            yield out.style(f"{label:<{_LABEL}}", "bold") + row
            label, longer = "", part
        row = longer
    if row:
        yield out.style(f"{label:<{_LABEL}}", "bold") + cut(row, max(20, width - _LABEL))


def _loss(learning: dict[str, Any]) -> list[str]:
    now, before = learning["loss_now"], learning["loss_before"]
    if learning["loss"] is None:
        return [UNKNOWN]
    parts = [figure(now["median"] if now else learning["loss"])]
    if now and before:
        parts[0] += f" (before: {figure(before['median'])})"
        parts.append(learning["trend"] or "too early for a trend")
    if learning["best_loss"] is not None:
        parts.append(f"best {figure(learning['best_loss'])} at step {learning['best_step']:,}")
    if learning["nonfinite_losses"]:
        parts.append(f"NaN or infinite in {learning['nonfinite_losses']:,} steps")
    return parts


def _curve(learning: dict[str, Any], width: int) -> list[str]:
    values = [figures.value(loss) for _, loss in learning["curve"]]
    line = figures.sparkline(values, max(10, min(48, width - _LABEL)))
    return [line] if line else []


def _gradients(learning: dict[str, Any]) -> list[str]:
    norm, usual = learning["grad_norm"], learning["grad_norm_usual"]
    text = f"norm {figure(norm)}"
    if usual and usual["size"] > 1:
        text += f" (usual {figure(usual['median'])})"
    ratio = f"update ratio {figure(learning['update_ratio'])}"
    if learning["update_ratio"] is not None:
        ratio += f" ({learning['update_kind']}, step {learning['update_step']:,})"
    return [text, ratio]


def _rate(learning: dict[str, Any]) -> list[str]:
    parts = [f"lr {figure(learning['lr'])}"]
    if learning["loss_scale"] is not None:
        parts.append(f"loss scale {figure(learning['loss_scale'])}")
    if learning["skipped_steps"]:
        parts.append(f"{learning['skipped_steps']:,} updates skipped")
    if learning["training_mode"] is False:
        parts.append("the model is in eval mode")
    return parts


def _speed(speed: dict[str, Any]) -> list[str]:
    step = speed["step_s"]
    if step is None:
        return [UNKNOWN]
    parts = [f"{duration(step['median'])} a step (median; p95 {duration(step['p95'])})"]
    for name in ("samples", "tokens"):
        if speed[f"{name}_per_s"] is not None:
            parts.append(f"{short(speed[f'{name}_per_s'])} {name}/s")
    if speed["mfu"] is not None:
        parts.append(f"MFU {100 * speed['mfu']:.1f} % (estimated)")
    return parts


def _memory(memory: dict[str, Any]) -> list[str]:
    if not memory:
        return [UNKNOWN]
    parts = [f"{size(memory['rss_bytes'])} resident"]
    if memory["available_bytes"] is not None:
        parts.append(f"{size(memory['available_bytes'])} of {size(memory['limit_bytes'])} available")
    if memory["allocated_bytes"] is not None:
        parts.append(
            f"device {size(memory['allocated_bytes'])} (peak {size(memory['peak_allocated_bytes'])}) "
            f"of {size(memory['device_total_bytes'])}"
        )
    return parts


def _devices(devices: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{one['name']}: {share(one['utilization_ratio'])} busy"
        + (f", throttled: {one['throttled']}" if one["throttled"] else "")
        for one in devices[:4]
    ]


def _ranks(answer: dict[str, Any]) -> list[str]:
    found = [one for one in answer["ranks"] if one["step_s"] is not None]
    if len(found) < 2:
        return []
    ordered = sorted(found, key=lambda one: float(one["step_s"]))
    middle = float(ordered[len(ordered) // 2]["step_s"])
    slowest = ordered[-1]
    parts = [f"{len(found)}: {duration(ordered[0]['step_s'])} to {duration(slowest['step_s'])} a step"]
    if middle > 0 and slowest["step_s"] > _SLOWER_RATIO * middle:
        parts.append(f"rank {slowest['rank']} takes {100 * (slowest['step_s'] / middle - 1):.0f} % longer")
    behind = max(one["step"] for one in found) - min(one["step"] for one in found)
    if behind:
        parts.append(f"{behind:,} steps apart")
    return parts


def _phases(speed: dict[str, Any], width: int, out: Output) -> Iterator[str]:
    """One bar per measured phase: its share of the step time, and its mean, so that both columns add up."""
    label = "mean step"
    room = max(8, min(40, width - _LABEL - 32))
    measured = [(name, speed["phases"].get(f"{name}_s")) for name in _PHASES]
    known = [(name, found) for name, found in measured if found is not None and found["share"] is not None]
    means = figures.durations([found.get("mean", found["median"]) for _, found in known])
    for (name, found), mean in zip(known, means, strict=True):
        bar = figures.bar(found["share"], room)
        text = f"{name:<10} {share(found['share']):>5}  {mean:>8}  {bar}"
        yield out.style(f"{label:<{_LABEL}}", "bold") + text
        label = ""


def _intervals(found: Sequence[dict[str, Any]]) -> list[str]:
    """Evaluations, checkpoints and other intervals: count, duration, share of the run's time."""
    parts = []
    for one in found:
        text = f"{one['count']:,} {one['kind']}{'s' if one['count'] > 1 and one['kind'] in _PLURAL else ''}"
        if one["ended"]:
            text += f" of {duration(one['median_s'])}" + (" (median)" if one["ended"] > 1 else "")
        if one["share"]:
            text += f", {share(one['share'])} of the time"
        parts.append(text + (", one under way" if one["pending_ns"] else ""))
    return parts


def _findings(answer: dict[str, Any], out: Output) -> Iterator[str]:
    """Problems and next steps, in the order of the answer."""
    found = list(answer.get("findings") or ())
    if answer.get("position") is not None:
        found.insert(answer["position"], answer["verdict"])
    found = [one for one in found if one["severity"] != "info"]
    yield ""
    for one in found[:_MOST_FINDINGS]:
        yield from verdict_lines(one, out)
    if len(found) > _MOST_FINDINGS:
        yield f"and {len(found) - _MOST_FINDINGS} more: see `diagnose`"
    for reason in answer.get("unjudged") or ():
        yield f"{out.style('UNKNOWN', 'yellow')}  problems not judged: {escape_controls(reason)}"
    if _unread(answer):
        yield f"{out.style('UNKNOWN', 'yellow')}  the recording could not be read in time: try again"
    elif answer["steps"]["last"] is None:
        yield f"{out.style('TOO EARLY', 'yellow')}  no step has finished yet: nothing can be judged so far"
        if not found:
            whom = answer.get("pid") or answer.get("name")
            yield f"  next   probe {whom} backtrace"
            yield f"         probe {whom} diagnose"
    elif not found and not answer.get("unjudged"):
        judged = "the monitor found" if answer.get("judged") == "monitor" else "the recipes found"
        yield f"{out.style('OK', 'green')}  {judged} no problems"
