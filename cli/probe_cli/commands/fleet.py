"""`probe fleet`: query, diagnose and compare the runs of an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from probe.base.errors import UsageError
from probe_cli.core.options import File, OutputFile, RowsFormat
from probe_cli.core.parameters import Argument, Option
from probe_cli.core.session import Session
from probe_cli.core.wait_line import waiting

if TYPE_CHECKING:
    from probe.diagnose.recipes.library import Library
    from probe.diagnose.recipes.recipe import Recipe
    from probe.fleet.fleet_runs import Fleet, Plan, Run
    from probe.fleet.per_run import Answering
    from probe.fleet.run_checks import Judged
    from probe.fleet.unsealed import Source
    from probe_cli.render.row_output import Format

EXAMPLES = (
    "probe fleet /shared/probe runs --since 2026-03-01",
    'probe fleet /shared/probe query "SELECT run, MEDIAN(wall_s) FROM python.steps GROUP BY run" --job gpt',
    "probe fleet /shared/probe report --since 4w",
    "probe fleet /shared/probe diagnose",
    "probe fleet /shared/probe compare gpt-0001 gpt-0002",
)
RUNS = """
SELECT job, run, attempt, count(*) AS ranks, count(DISTINCT host) AS hosts,
    make_timestamp_ns(min(started_ns)) AS started,
    round((max(coalesce(ended_ns, last_t_ns)) - min(started_ns)) / 3.6e12, 2) AS hours, max(steps) AS steps,
    CASE WHEN bool_or(state = 'dead') THEN 'dead' WHEN bool_or(state = 'failed') THEN 'failed'
        WHEN bool_or(state = 'running') THEN 'running' ELSE 'finished' END AS state,
    arg_min(how, rank) FILTER (state NOT IN ('finished', 'running')) AS how
FROM archive.processes GROUP BY job, run, attempt ORDER BY started DESC, job, run, attempt
"""
HOSTS = """
SELECT host, count(DISTINCT (run, attempt)) AS runs, count(*) AS processes,
    count(*) FILTER (state = 'failed') AS failed, count(*) FILTER (state = 'dead') AS dead,
    round(sum(coalesce(ended_ns, last_t_ns) - started_ns) / 3.6e12, 2) AS rank_hours,
    make_timestamp_ns(max(coalesce(ended_ns, last_t_ns))) AS last_seen
FROM archive.processes GROUP BY host ORDER BY dead + failed DESC, host
"""
_ASKS = Literal["query", "runs", "hosts", "report", "diagnose", "compare"]
_UNITS_S = {"h": 3600, "d": 86400, "w": 7 * 86400}
_MOST_NOTES = 20
_MOST_OF_ONE = 3
"""Findings shown per run without `--all`."""


def is_endpoint(_word: str, _words: Sequence[str], _session: Session) -> bool:
    """Never: the first word is the archive."""
    return False


def command(
    session: Session,
    url: Annotated[
        str, Argument(metavar="URL", help="The archive: a folder, s3://…, gs://… or az://….")
    ],
    ask: Annotated[
        _ASKS, Argument(metavar="query|runs|hosts|report|diagnose|compare", help="What to do."),
    ],
    words: Annotated[
        list[str] | None,
        Argument(metavar="[SQL|RUN]...", help="SQL for `query` (`-`: stdin); runs for the others."),
    ] = None,
    job: Annotated[list[str] | None, Option("--job", metavar="JOB", help="Only this job.")] = None,
    run: Annotated[list[str] | None, Option("--run", metavar="RUN", help="Only this run.")] = None,
    host: Annotated[list[str] | None, Option("--host", metavar="HOST", help="Only this host.")] = None,
    since: Annotated[
        str | None,
        Option("--since", metavar="TIME", help="Only runs active since then: 12h, 7d, 2w or 2026-03-01."),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        Option("--recipe", metavar="NAME", help="With diagnose and report: only this recipe."),
    ] = None,
    file: File = None,
    everything: Annotated[
        bool, Option("--all", help="With diagnose, report, compare: show everything.")
    ] = False,
    explain: Annotated[
        bool, Option("--explain", help="With query: show which files it would open, and do not run it.")
    ] = False,
    per_run: Annotated[
        str | None,
        Option(
            "--per-run", metavar="SQL",
            help="With query: run this SQL on each run; the query reads the results as table per_run.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        Option(
            "--ray", metavar="ADDRESS", help="Run per-run work on this Ray cluster (`local`: start one here)."
        ),
    ] = None,
    live: Annotated[
        bool,
        Option("--live", help="Include rows of live runs that are not archived yet, from their servers."),
    ] = False,
    server: Annotated[
        list[str] | None,
        Option(
            "--server", metavar="HOST:PORT",
            help="Like --live; also query this server, in addition to PROBE_DIR's and PROBE_PEERS.",
        ),
    ] = None,
    output_format: RowsFormat = None,
    output: OutputFile = None,
    limit: Annotated[
        int, Option("--limit", metavar="N", min=1, help="Maximum number of rows.")
    ] = 10_000,
    timeout: Annotated[
        float, Option("--timeout", metavar="S", min=0.1, help="Time limit of a statement, in seconds.")
    ] = 60.0,
) -> None:
    """Query, diagnose and compare the runs of an archive.

    `query` runs SQL over every table of every run; `runs` and `hosts` list them; `report` shows which
    hosts, jobs and runs stand out; `diagnose` runs the recipes on each run; `compare` compares two runs.
    """
    from probe.archive.store import open_store
    from probe.fleet.fleet_runs import Fleet, Limits, Narrowing, memory_for_queries
    from probe.fleet.per_run import Workers
    from probe.fleet.ray_tasks import Over

    session.no_endpoint("fleet")
    named = [*(run or ()), *(words or () if ask in ("runs", "hosts", "report") else ())]
    narrowing = Narrowing(job or (), named, host or (), None if since is None else _since_ns(since))
    limits = Limits(timeout, memory_for_queries(), rows=limit)
    given = words or []
    if ray is not None and ask not in ("query", "diagnose"):
        raise UsageError(f"--ray works with `query --per-run` and `diagnose`, not with `{ask}`")
    if per_run is None and ray is not None and ask == "query":
        raise UsageError("`query --ray` needs a query to run on each run", hint="Add --per-run SQL.")
    if (live or server) and (per_run is not None or explain or ray is not None):
        raise UsageError("--live and --server cannot be combined with --per-run, --ray or --explain")
    store = open_store(url, session.environ)
    source = _live_rows(session, server or []) if live or server else None
    with Fleet(store, narrowing, limits, source) as fleet:
        answering: Answering = Workers(fleet) if ray is None else Over(ray, store.url, timeout)
        if ask == "compare":
            _compare(session, fleet, given, everything, output_format)
        elif ask == "report":
            _report(session, fleet, recipe or [], everything, output_format, output)
        elif ask == "diagnose":
            _diagnose(session, fleet, answering, given, recipe or [], everything, output_format, output)
        else:
            if ask == "query" and len(given) > 1:
                raise UsageError("expected one SQL statement", hint="Put it in quotes.")
            listed = {"runs": RUNS, "hosts": HOSTS}
            sql = listed.get(ask) or session.read_text(given[0] if given else None, file, "SQL")
            content = b"" if per_run is None else _answers_of_runs(session, fleet, answering, per_run)
            _query(session, fleet, sql, content, explain and per_run is None, output_format, output)


def _since_ns(text: str) -> int:
    """Parse `--since` into wall time in nanoseconds; raises `UsageError`."""
    import time
    from datetime import datetime, timezone

    number, unit = text[:-1], text[-1:]
    if unit in _UNITS_S and number.replace(".", "", 1).isdigit():
        return time.time_ns() - int(float(number) * _UNITS_S[unit] * 1e9)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"invalid time {text!r}", hint="For example 12h, 7d, 2w or 2026-03-01.") from None
    return int((found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp() * 1e9)


def _answers_of_runs(session: Session, fleet: Fleet, answering: Answering, sql: str) -> bytes:
    """Run a statement on each run and return the rows as the Arrow stream that the outer statement reads. A
    run that fails is left out with a note."""
    from probe.fleet import per_run

    runs = fleet.runs()
    with waiting(session.err, "planning the statement"):
        asks = per_run.asks_about(fleet, runs, sql)
    answers: dict[int, per_run.Answer] = {}
    waits = answering.each(asks)
    while len(answers) < len(asks):
        with waiting(session.err, f"querying the runs: {len(answers):,} of {len(asks):,} answered"):
            place, answer = next(waits)
        answers[place] = answer
    failed = {place: one.error for place, one in answers.items() if one.error is not None}
    if failed and len(failed) == len(asks):
        raise next(iter(failed.values()))
    for place, error in sorted(failed.items()):
        session.note(f"{runs[place].name} is left out: {error.message}")
    for place, answer in sorted(answers.items()):
        if answer.head.get("truncated"):
            session.note(f"{runs[place].name}: only its first {per_run.MOST_ROWS:,} rows are used")
    kept = [place for place in sorted(answers) if place not in failed]
    return per_run.together([runs[place] for place in kept], [answers[place].body for place in kept])


def _live_rows(session: Session, given: Sequence[str]) -> Source:
    """The source of live rows: the servers that the user named, and those in the settings."""
    from probe.client.live_rows import LiveRows, named_servers

    servers, notes = named_servers(given, session.settings)
    for note in notes:
        session.note(note)
    return LiveRows(servers)


def _query(
    session: Session, fleet: Fleet, sql: str, content: bytes, explain: bool, output_format: Format | None,
    output: str | None,
) -> None:
    from probe.client.answer import Answer
    from probe_cli.commands.query import say_about
    from probe_cli.render.row_output import chosen_format, write_rows

    chosen = chosen_format(output_format, output, session.out)
    if explain:
        with waiting(session.err, "planning the statement"):
            plan = fleet.plan(sql)
        opened = [
            [table, one.name, one.size_bytes] for table, files in plan.files.items() for one in sorted(files)
        ]
        columns = [("table", "VARCHAR"), ("file", "VARCHAR"), ("bytes", "BIGINT")]
        write_rows(session, Answer(columns, opened, False, None, []), chosen, output)
        _say_opened(session, fleet, plan)
        return
    with waiting(session.err, "reading the archive"):
        answered = fleet.query(sql, content)
    answer = Answer.parse(answered.body)
    write_rows(session, answer, chosen, output)
    say_about(session, answer, count=chosen == "table" and output in (None, "-"))


def _say_opened(session: Session, fleet: Fleet, plan: Plan) -> None:
    from probe_cli.core.figures import size

    for table, files in plan.files.items():
        every = fleet.catalog.listing(table)
        if every or files:
            opened, total = (size(sum(one.size_bytes for one in found)) for found in (files, every))
            session.note(f"{table}: opens {len(files):,} of {len(every):,} files, {opened} of {total}")


# Recipes ------------------------------------------------------------------------


def _report(
    session: Session, fleet: Fleet, names: Sequence[str], everything: bool, output_format: Format | None,
    output: str | None,
) -> None:
    from probe.diagnose.finding import worst_first
    from probe.diagnose.recipes.library import of_fleets
    from probe.fleet.run_checks import judge_fleet
    from probe_cli.render.row_output import write_records
    from probe_cli.render.verdict_lines import verdict_lines

    checks, notes = [], []
    for recipe in _chosen(of_fleets(session.settings.recipes), names):
        with waiting(session.err, f"{recipe.name}: reading the archive"):
            check, more = judge_fleet(fleet, recipe)
        checks.append(check)
        notes += more
    found = worst_first(one for check in checks for one in check.findings)
    if output_format is not None or output is not None:
        rows = [
            {**said, "why": "\n".join(said["why"]), "next": "\n".join(said["next"])}
            for said in (one.as_dict() for one in found)
        ]
        write_records(session, rows, output_format, output)
    else:
        for one in found:
            session.out.lines(verdict_lines(one.as_dict(), session.out))
    clear = [check.recipe.name for check in checks if check.state == "clear"]
    session.note(f"{len(fleet.runs()):,} runs; clear: {', '.join(clear) or 'no recipe'}")
    for check in checks:
        if check.state == "unknown":
            session.note(f"{check.recipe.name} could not be judged: {check.reason}")
    for note in dict.fromkeys(notes):
        session.note(note)


def _chosen(library: Library, names: Sequence[str]) -> list[Recipe]:
    """The recipes of these names, or all; raises `RecipeUnknown`."""
    from probe.diagnose.recipes.library import unknown_name

    for name in names:
        if name not in library:
            raise unknown_name(name, library)
    return [one for one in library.values() if not names or one.name in names]


def _diagnose(
    session: Session, fleet: Fleet, answering: Answering, runs: Sequence[str], names: Sequence[str],
    everything: bool,
    output_format: Format | None, output: str | None,
) -> None:
    from probe.diagnose.recipes.library import installed
    from probe.fleet.run_checks import judge
    from probe_cli.render.row_output import write_records

    recipes = _chosen(installed(session.settings.recipes), names)
    chosen = [fleet.run(name) for name in runs] or fleet.runs()
    judged: list[Judged] = []
    waits = judge(fleet, chosen, recipes, answering)
    while len(judged) < len(chosen):
        with waiting(session.err, f"running the recipes: {len(judged):,} of {len(chosen):,} runs done"):
            judged.append(next(waits))
    judged.sort(key=lambda one: -one.worst)
    if output_format is not None or output is not None:
        rows = [row for one in judged for row in _rows(one, everything)]
        write_records(session, rows, output_format, output)
    else:
        for one in judged:
            session.out.lines(_lines(session, one, everything))
        _say_judged(session, judged)
    for note in list(dict.fromkeys(note for one in judged for note in one.notes))[:_MOST_NOTES]:
        session.note(note)


def _rows(judged: Judged, everything: bool) -> Iterator[dict[str, Any]]:
    run = judged.run
    for found in judged.findings:
        if everything or found.severity != "info":
            said = found.as_dict()
            yield {
                "job": run.job, "run": run.run, "attempt": run.attempt, **said,
                "why": "\n".join(said["why"]), "next": None,
            }


def _lines(session: Session, judged: Judged, everything: bool) -> Iterator[str]:
    from probe_cli.core.terminal import escape_controls
    from probe_cli.render.verdict_lines import verdict_lines

    shown = [one for one in judged.findings if everything or one.severity != "info"]
    if not shown:
        return
    run = judged.run
    hosts = sorted({str(one["host"]) for one in run.processes})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    title = f"{run.name} of {run.job}, {run.date}, {len(run.processes)} ranks on {where}"
    yield session.out.style(escape_controls(title), "bold")
    for one in shown if everything else shown[:_MOST_OF_ONE]:
        yield from verdict_lines(one.as_dict(), session.out)
    if not everything and len(shown) > _MOST_OF_ONE:
        yield f"  and {len(shown) - _MOST_OF_ONE} more: `probe fleet URL diagnose {run.name} --all`"
    yield ""


def _say_judged(session: Session, judged: Sequence[Judged]) -> None:
    clear = sum(not any(found.severity != "info" for found in one.findings) for one in judged)
    session.note(f"{len(judged):,} runs judged, nothing found in {clear:,}")
    failed: dict[str, int] = {}
    for one in judged:
        for check in one.checks:
            if check.failed:
                failed[check.reason] = failed.get(check.reason, 0) + 1
    for reason, count in sorted(failed.items(), key=lambda pair: -pair[1])[:5]:
        session.note(f"{count:,} checks did not run: {reason}")


# Comparison ---------------------------------------------------------------------


def _compare(
    session: Session, fleet: Fleet, given: Sequence[str], everything: bool, output_format: Format | None
) -> None:
    from probe.fleet.run_checks import summary
    from probe_cli.render.comparison import tell

    if len(given) != 2:
        raise UsageError("compare takes two runs", hint="`probe fleet URL compare RUN RUN`.")
    if output_format not in (None, "table", "json"):
        raise UsageError(f"compare has no format {output_format}", hint="Use --format json.")
    runs = [fleet.run(name) for name in given]

    def read(run: Run, until: int | None) -> dict[str, Any]:
        with waiting(session.err, "reading the runs"):
            return summary(fleet, run, until)

    summaries = partial(read, runs[0]), partial(read, runs[1])
    tell(session, (given[0], given[1]), summaries, everything, output_format == "json")
