"""`probe export`: export a recording to TensorBoard, W&B, MLflow or CSV.

Exports step figures, logged values, gradients per parameter, histograms and verdicts, queried page by page.
The other tool is imported on use and obeys its own settings (`WANDB_MODE=offline`,
`MLFLOW_TRACKING_TOKEN` …). A repeated export replaces the earlier one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import typer

from probe.base.errors import EndpointUnknown, PackageMissing, UsageError
from probe.client.answer import Answer
from probe.recording.places import safe_name
from probe_cli.core.act_client import one_of
from probe_cli.core.session import Session
from probe_cli.core.wait_line import Progress, waiting

EXAMPLES = ("probe PID export --csv curves",)
PAGE_ROWS = 20_000
STEP_COLUMNS = (
    "loss", "grad_norm", "lr", "loss_scale", "wall_s", "data_s", "forward_s", "backward_s", "optimizer_s",
    "comm_s", "samples", "tokens", "rss_bytes", "allocated_bytes", "reserved_bytes",
)
GRADIENT_COLUMNS = ("norm", "abs_max", "zero_ratio", "weight_norm", "update_ratio")
_OURS = ".probe"
_LARGEST_BATCH = 1000
_TABLES = ("python.steps", "python.scalars", "python.gradients", "python.histograms", "probe.verdicts")
_RANKS = (
    "SELECT DISTINCT rank, run, attempt FROM python.steps"
    " WHERE attempt = (SELECT max(attempt) FROM python.steps) ORDER BY rank"
)


class Scalar(NamedTuple):
    """One number of one step."""

    tag: str
    step: int
    t_s: float
    value: float


class Histogram(NamedTuple):
    """A histogram of a tensor at one step."""

    tag: str
    step: int
    t_s: float
    counts: list[float]
    edges: list[float]


class Text(NamedTuple):
    """A verdict."""

    tag: str
    step: int
    t_s: float
    text: str


Item = Scalar | Histogram | Text


class Writer(Protocol):
    """Writes the items of one rank, which arrive table by table."""

    def write(self, item: Item) -> None:
        """Write one item."""

    def close(self) -> str:
        """Finish; returns where it was written."""


def command(
    context: typer.Context,
    tensorboard: Annotated[
        str | None, typer.Option("--tensorboard", metavar="DIR", help="Write TensorBoard event files to DIR.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="Write a W&B run, online or offline.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Write an MLflow run (server or folder).")
    ] = None,
    files: Annotated[
        str | None, typer.Option("--csv", metavar="DIR", help="Write one CSV file per rank to DIR.")
    ] = None,
) -> None:
    """Export to TensorBoard, W&B, MLflow or CSV. Replaces an earlier export of the same run."""
    session: Session = context.obj
    one_of(tensorboard=tensorboard, wandb=wandb, mlflow=mlflow, csv=files)
    ranks = _rows(session, _RANKS)
    if not ranks:
        raise EndpointUnknown("nothing to export: no step is recorded yet")
    several = len(ranks) > 1
    in_files = tensorboard is not None or files is not None
    for row in ranks if in_files else ranks[:1]:
        rank, name = int(row["rank"]), f"{safe_name(row['run'])}-rank{row['rank']}"
        writer: Writer
        if tensorboard is not None:
            writer = TensorBoard(Path(tensorboard) / name)
        elif files is not None:
            writer = Csv(Path(files) / f"{name}.csv")
        elif wandb is not None:
            writer = Wandb(wandb, name)
        else:
            writer = MLflow(str(mlflow), name)
        count = 0
        with waiting(session.err, f"reading rank {rank}") as progress:
            for item in items(session, rank, progress):
                writer.write(item)
                count += 1
            progress.what = f"writing rank {rank}: {count:,} values"
            place = writer.close()
        session.out.line(f"{count:,} values of rank {rank} written to {place}")
    if several and not in_files:
        session.note(f"only rank {ranks[0]['rank']} was exported; use `probe JOB/RANK export` for others")


# Reading -----------------------------------------------------------------------------


def items(session: Session, rank: int, progress: Progress) -> Iterator[Item]:
    """All items of one rank, table by table."""
    if session.err.moves:  # a progress bar is only visible there
        counts = ", ".join(f"(SELECT count(*) FROM {table} WHERE rank = {rank})" for table in _TABLES)
        progress.total = sum(Answer.query(session, f"SELECT {counts}").rows[0])

    def paged(sql: str) -> Iterator[dict[str, Any]]:
        progress.what = f"reading {sql.rpartition(' ')[2]} of rank {rank}"
        for row in _paged(session, sql, rank):
            progress.done += 1
            yield row

    columns = ", ".join(STEP_COLUMNS)
    for row in paged(f"SELECT step, t_ns, {columns} FROM python.steps"):
        for name in STEP_COLUMNS:
            yield from _scalar(f"train/{name}", row, name)
    logged = "SELECT coalesce(logged_step, step) AS step, t_ns, name, value FROM python.scalars"
    for row in paged(logged):
        yield from _scalar(str(row["name"]), row, "value")
    columns = ", ".join(GRADIENT_COLUMNS)
    for row in paged(f"SELECT step, t_ns, param, {columns} FROM python.gradients"):
        for name in GRADIENT_COLUMNS:
            yield from _scalar(f"gradients/{row['param']}/{name}", row, name)
    yield from _histograms(paged("SELECT step, t_ns, kind, name, counts, edges FROM python.histograms"))
    for row in paged("SELECT step, t_ns, state, severity, what, why FROM probe.verdicts"):
        text = "\n\n".join(filter(None, [f"**{row['severity']}: {row['state']}** {row['what']}", row["why"]]))
        yield Text("verdicts", _step(row), row["t_ns"] / 1e9, text)


def _histograms(rows: Iterable[dict[str, Any]]) -> Iterator[Histogram]:
    for row in rows:
        if row["counts"] is None or row["edges"] is None:
            continue
        counts, edges = ([float(one) for one in json.loads(row[name])] for name in ("counts", "edges"))
        if len(edges) == len(counts) + 1:
            yield Histogram(f"{row['kind']}s/{row['name']}", _step(row), row["t_ns"] / 1e9, counts, edges)


def _step(row: dict[str, Any]) -> int:
    return 0 if row["step"] is None else int(row["step"])


def _scalar(tag: str, row: dict[str, Any], column: str) -> Iterator[Scalar]:
    """One item, none for NULL (not measured); NaN and infinity arrive as strings."""
    value = row[column]
    if value is not None and row["t_ns"] is not None:
        yield Scalar(tag, _step(row), row["t_ns"] / 1e9, float(value))


def _paged(session: Session, sql: str, rank: int) -> Iterator[dict[str, Any]]:
    """All rows of a statement in time order, queried page by page."""
    offset = 0
    while True:
        page = f"{sql} WHERE rank = {rank} ORDER BY t_ns LIMIT {PAGE_ROWS} OFFSET {offset}"
        rows = _rows(session, page)
        yield from rows
        offset += len(rows)
        if not rows or len(rows) < PAGE_ROWS // 2:
            return


def _rows(session: Session, sql: str) -> list[dict[str, Any]]:
    return Answer.query(session, sql, PAGE_ROWS).records()


# Writing -----------------------------------------------------------------------------


@contextlib.contextmanager
def _errors_of(tool: str, kind: type[BaseException]) -> Iterator[None]:
    """Report errors of the other tool without a traceback."""
    try:
        yield
    except kind as error:
        raise UsageError(f"{tool}: {error}", hint=f"Check the settings of {tool}.") from None


def _missing(what: str, package: str) -> PackageMissing:
    return PackageMissing(f"{what} is not installed in this Python", hint=f"pip install {package}")


class TensorBoard:
    """Writes one event file into a folder per rank; replaces the files of earlier exports."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise _missing("TensorBoard", "tensorboard") from None
        self._events, self._summaries, self._tensors = event_pb2, summary_pb2, tensor_pb2
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._before = sorted(folder.glob(f"events.out.tfevents.*{_OURS}"))
            self._writer = EventFileWriter(str(folder), filename_suffix=_OURS)
        except OSError as error:
            raise UsageError(f"cannot write {folder}: {error.strerror}") from None

    def write(self, item: Item) -> None:
        """See `Writer`."""
        made = self._summaries.Summary()
        value = made.value.add(tag=item.tag)
        if isinstance(item, Scalar):
            value.simple_value = item.value
        elif isinstance(item, Histogram):
            value.histo.CopyFrom(self._histogram(item))
        else:
            value.metadata.plugin_data.plugin_name = "text"
            value.tensor.CopyFrom(self._tensors.TensorProto(dtype=7, string_val=[item.text.encode()]))
        self._writer.add_event(self._events.Event(wall_time=item.t_s, step=item.step, summary=made))

    def _histogram(self, item: Histogram) -> Any:
        middles = [(one + other) / 2 for one, other in zip(item.edges, item.edges[1:], strict=False)]
        pairs = list(zip(item.counts, middles, strict=True))
        return self._summaries.HistogramProto(
            min=item.edges[0], max=item.edges[-1], num=sum(item.counts),
            sum=sum(count * middle for count, middle in pairs),
            sum_squares=sum(count * middle * middle for count, middle in pairs),
            bucket_limit=item.edges[1:], bucket=item.counts,
        )

    def close(self) -> str:
        """See `Writer`."""
        self._writer.close()
        for path in self._before:  # deleted only once the replacement is complete
            path.unlink(missing_ok=True)
        return str(self._folder)


class Csv:
    """Writes one line per number: tag, step, time, value. Histograms and verdicts need `query`."""

    def __init__(self, path: Path) -> None:
        import csv

        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        self._lines = csv.writer(self._file)
        self._lines.writerow(("tag", "step", "t_s", "value"))

    def write(self, item: Item) -> None:
        """See `Writer`."""
        if isinstance(item, Scalar):
            self._lines.writerow((item.tag, item.step, repr(item.t_s), repr(item.value)))

    def close(self) -> str:
        """See `Writer`."""
        self._file.close()
        return str(self._path)


class Wandb:
    """A W&B run of the same name; online or offline according to W&B's settings."""

    def __init__(self, project: str, name: str) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("W&B", "wandb") from None
        self._wandb = wandb
        with _errors_of("W&B", wandb.Error):
            self._run = wandb.init(project=project, id=safe_name(name, 100), name=name, resume="allow")
        self._by_step: dict[int, dict[str, Any]] = {}
        self._texts: list[tuple[int, str]] = []

    def write(self, item: Item) -> None:
        """See `Writer`. W&B needs steps in order, so they are logged at the end."""
        if isinstance(item, Text):
            self._texts.append((item.step, item.text))
            return
        values = self._by_step.setdefault(item.step, {})
        if isinstance(item, Scalar):
            values[item.tag] = item.value
        else:
            values[item.tag] = self._wandb.Histogram(np_histogram=(item.counts, item.edges))

    def close(self) -> str:
        """See `Writer`."""
        for step, values in sorted(self._by_step.items()):
            self._run.log(values, step=step)
        if self._texts:
            self._run.summary["verdicts"] = [f"step {step}: {text}" for step, text in self._texts]
        where = str(self._run.url or self._run.dir)
        self._run.finish()
        return where


class MLflow:
    """An MLflow run of the same name in the experiment `probe`; only new steps are added."""

    def __init__(self, uri: str, name: str) -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _missing("MLflow", "mlflow") from None
        self._metric = Metric
        self._error = MlflowException
        with _errors_of("MLflow", MlflowException):
            self._client = MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name("probe")
            experiment = self._client.create_experiment("probe") if found is None else found.experiment_id
            runs = self._client.search_runs([experiment], f"tags.`probe.run` = '{name}'", max_results=1)
            self._run = runs[0] if runs else self._client.create_run(
                experiment, run_name=name, tags={"probe.run": name}
            )
        self._until = float(self._run.data.tags.get("probe.until", "0"))
        self._latest = self._until
        self._waiting: list[Any] = []
        self._texts: list[str] = []
        self._uri = uri

    def write(self, item: Item) -> None:
        """See `Writer`. MLflow keeps old values, so values already exported are skipped."""
        if isinstance(item, Text):
            self._texts.append(f"step {item.step}: {item.text}")
        elif isinstance(item, Scalar) and item.t_s > self._until:
            self._latest = max(self._latest, item.t_s)
            metric = self._metric(_plain_name(item.tag), item.value, int(item.t_s * 1e3), item.step)
            self._waiting.append(metric)
            if len(self._waiting) >= _LARGEST_BATCH:
                self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        with _errors_of("MLflow", self._error):
            for start in range(0, len(waiting), _LARGEST_BATCH):
                self._client.log_batch(self._run.info.run_id, metrics=waiting[start : start + _LARGEST_BATCH])

    def close(self) -> str:
        """See `Writer`."""
        self._flush()
        run_id = self._run.info.run_id
        with _errors_of("MLflow", self._error):
            if self._texts:
                self._client.log_text(run_id, "\n\n".join(self._texts), "verdicts.md")
            self._client.set_tag(run_id, "probe.until", repr(self._latest))
            self._client.set_terminated(run_id)
        return f"{self._uri} (run {run_id})"


def _plain_name(tag: str) -> str:
    """The tag with characters that MLflow does not allow replaced by `_`."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in tag)

