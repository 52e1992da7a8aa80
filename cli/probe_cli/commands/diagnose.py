"""`probe diagnose`: verdict on a process or a job, with evidence and next steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from probe_cli.core.options import SYMPTOMS, OutputFile, VerdictFormat
from probe_cli.core.parameters import Argument, Option
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output
from probe_cli.render.verdict_lines import safe, verdict_lines, wrapped

EXAMPLES = (
    "probe PID diagnose",
    "probe PID diagnose loss",
    "probe JOB diagnose --all --format json",
    "probe PID diagnose --exit-code || echo look at it",
    "probe PID diagnose -o findings.csv",
)
_OUTCOMES = {"found": ("yellow",), "clear": ("green",), "unknown": ("dim",)}
ALARM = 1
"""Exit code with `--exit-code` if any verdict is an alarm."""
_MOST_OF_ONE = 3
"""Findings shown per recipe without `--all`."""
_OF_CHECKS = ("findings", "judged", "unknown", "own_recipes", "diagnosis_id")
"""Keys of the answer that come from the checks."""
_DEEP_S = 60.0
"""Time limit with a symptom, whose checks may wait for steps of the job."""


def is_endpoint(word: str, _words: Sequence[str], _session: Session) -> bool:
    """Whether the only argument is an endpoint, not a (misspelt) symptom: `probe diagnose JOB`."""
    import difflib

    return not difflib.get_close_matches(word.lower(), SYMPTOMS, n=1)


def command(
    session: Session,
    symptom: Annotated[
        str | None,
        Argument(
            metavar="[SYMPTOM]", help=f"Run the checks for {', '.join(SYMPTOMS[:-1])} or {SYMPTOMS[-1]}."
        ),
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="Include findings of severity info and checks that could not be judged.")
    ] = False,
    no_watch: Annotated[
        bool, Option("--no-watch", help="With a symptom: do not collect deep statistics in the job.")
    ] = False,
    log: Annotated[
        str | None,
        Option("--log", metavar="FILE", help="Diagnose the log of a run (`-`: stdin) instead of a job."),
    ] = None,
    exit_code: Annotated[
        bool, Option("--exit-code", help="Exit with 1 if there is an alarm, for scripts.")
    ] = False,
    output: OutputFile = None,
    output_format: VerdictFormat = "text",
) -> int:
    """Show what is wrong, why, and what to do next.

    With a symptom: every relevant check with its result, then the cause or what remains unknown.
    """
    if log is not None:
        from probe_cli.core.log_diagnosis import diagnose_log

        answer = diagnose_log(session, log)
    else:
        asked = {"endpoint": session.address.endpoint, "deep": "0" if no_watch else "1"}
        if symptom is not None:
            asked["symptom"] = symptom
        if symptom is None and output_format == "text" and session.out.terminal and output is None:
            answer = _streamed(session, asked, everything)
        else:
            answer = session.request("GET", "/v1/diagnose", asked, timeout_s=_DEEP_S if symptom else None)
    _show(session, answer, log, everything, output_format, output)
    judged = (answer, answer.get("conclusion") or {}, *(answer.get("findings") or ()))
    return ALARM if exit_code and any(one.get("severity") == "alarm" for one in judged) else 0


def _streamed(session: Session, asked: Mapping[str, str], everything: bool) -> dict[str, Any]:
    """Print the answer as it arrives, then return it: first the state, then each finding as soon as no
    outstanding check can explain it."""
    checks = session.begin("/v1/diagnose", {**asked, "part": "checks"}, "running the checks")
    state = session.request("GET", "/v1/diagnose", {**asked, "part": "state"})
    session.out.lines(verdict_lines(state, session.out))
    session.out.stream.flush()
    shown: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for found in checks:
        if "part" in found:
            findings = found["part"]["findings"]
            session.out.lines(_listed(findings, session.out, everything, shown[-1:]))
            session.out.stream.flush()
            shown += findings
    told = {(one["recipe"], one["subject"]) for one in shown}
    left = [one for one in found.get("findings") or () if (one["recipe"], one["subject"]) not in told]
    session.out.lines(_listed(left, session.out, everything, shown[-1:]))
    of_checks = {name: value for name, value in found.items() if name in _OF_CHECKS}
    return {**state, **of_checks, "notes": [*state["notes"], *found["notes"]], "all_shown": True}


def _listed(
    findings: Sequence[Mapping[str, Any]], out: Output, everything: bool, before: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Lines of findings that follow `before`; a consequence not directly below its cause names it."""
    above = "" if not before else before[-1].get("explained_by") or before[-1]["recipe"]
    for one in _few([dict(one) for one in findings if everything or one["severity"] != "info"], everything):
        cause = one.get("explained_by")
        if cause and cause != above:
            one["what"] = f"{one['what']} (from {cause})"
        above = cause or one["recipe"]
        yield from verdict_lines(one, out)


def _show(
    session: Session, answer: dict[str, Any], log: str | None, everything: bool,
    output_format: Literal["text", "json", "ndjson", "csv", "markdown", "parquet", "arrow"],
    output: str | None,
) -> None:
    if output_format == "json" and output is None:
        session.out.json(answer)
        return
    if output_format != "text" or output is not None:
        from probe_cli.render.row_output import write_records

        given = None if output_format == "text" else output_format
        write_records(session, _rows(answer, of_process=log is None), given, output)
        return
    if log is not None:
        for one in answer["findings"]:
            session.out.lines(verdict_lines(one, session.out))
    else:
        lines = _checks_and_conclusion if "conclusion" in answer else _verdict_and_findings
        session.out.lines(lines(answer, session.out, everything))
    for note in answer.get("notes") or ():
        session.note(str(note))
    own = session.settings.recipes
    if own and own != answer.get("own_recipes", own):
        running = f"with {answer['own_recipes']}" if answer["own_recipes"] else "without it"
        session.note(f"PROBE_RECIPES={own} has no effect: the server was started {running}")


def _rows(answer: Mapping[str, Any], *, of_process: bool) -> list[dict[str, Any]]:
    """Rows for the verdict on the process or job and each finding; `why` and `next` become one text each."""
    found = [*([answer] if of_process else []), *(answer.get("findings") or ())]
    names = ("recipe", "state", "severity", "rank", "step", "what", "why", "next", "explained_by")
    return [
        {
            name: "\n".join(value) if isinstance(value, list) else value
            for name, value in ((name, one.get(name)) for name in names)
        }
        for one in found
    ]


def _verdict_and_findings(answer: dict[str, Any], out: Output, everything: bool) -> Iterator[str]:
    """The verdict on the process and the findings, in the answer's order; then the count of checks."""
    found = list(answer.get("findings") or ())
    found.insert(answer.get("position") or 0, answer)
    shown = [one for one in found if one is answer or everything or one["severity"] != "info"]
    for one in _few(shown, everything) if not answer.get("all_shown") else ():
        yield from verdict_lines(one, out)
    if everything:
        for one in answer.get("unknown") or ():
            yield from wrapped(f"UNKNOWN  {safe(one['title'])}: {safe(one['reason'])}", out)
    yield from _counts(answer, out, everything)


def _counts(answer: Mapping[str, Any], out: Output, everything: bool) -> Iterator[str]:
    judged = answer.get("judged")
    if not isinstance(judged, dict) or not sum(judged.values()):
        return
    hidden = sum(one["severity"] == "info" for one in answer["findings"])
    parts = [f"{judged['clear']} checks clear"]
    if hidden and not everything:
        parts.append(f"{hidden} informational")
    if judged["unknown"]:
        parts.append(f"{judged['unknown']} could not be judged")
    more = len(parts) > 1 and not everything
    line = ", ".join(parts) + (": `diagnose --all` lists them" if more else "")
    yield from (out.style(part, "dim") for part in wrapped(line, out, ""))


def _checks_and_conclusion(answer: dict[str, Any], out: Output, everything: bool) -> Iterator[str]:
    """All checks of a symptom, the findings except the cause, and the conclusion."""
    conclusion = answer["conclusion"]
    checks = answer["checks"]
    width = max((len(str(check["check_name"])) for check in checks), default=0)
    if answer.get("position") is not None:
        yield from verdict_lines(answer, out)
    for check in checks:
        outcome = f"{check['outcome']:<7}"
        start = f"{check['number']:>3}  {outcome}  {safe(check['check_name']):<{width}}  "
        text = safe(check["title"] if check["outcome"] == "clear" else check["what"])
        lines = wrapped((start + text).rstrip(), out, " " * len(start))
        coloured = out.style(outcome, *_OUTCOMES.get(str(check["outcome"]), ()))
        yield lines[0].replace(outcome, coloured, 1)
        yield from lines[1:]
    cause = next((one for one in answer["findings"] if one["recipe"] == conclusion["cause"]), None)
    of_cause = [] if cause is None else [
        one for one in answer["findings"] if one.get("explained_by") == cause["recipe"]
    ]
    for one in _few(answer["findings"], everything):
        if one is not cause and one not in of_cause:  # the conclusion has the cause
            yield from verdict_lines(one, out)
    yield from verdict_lines(conclusion, out)
    for one in _few(of_cause, everything):
        yield from verdict_lines(one, out)


def _few(findings: list[dict[str, Any]], everything: bool) -> Iterator[dict[str, Any]]:
    """At most `_MOST_OF_ONE` findings per recipe, unless `everything`; the last tells how many more exist."""
    counts = Counter(one.get("recipe") for one in findings)
    shown: Counter[str | None] = Counter()
    for one in findings:
        name = one.get("recipe")
        shown[name] += 1
        left = counts[name] - _MOST_OF_ONE
        if everything or shown[name] < _MOST_OF_ONE or left <= 0:
            yield one
        elif shown[name] == _MOST_OF_ONE:
            yield {**one, "what": f"{one['what']} (and {left} more: --all)"}
