"""Options shared by several commands, each declared once."""

from __future__ import annotations

from typing import Annotated, Literal

from probe_cli.core.parameters import Option

SYMPTOMS = ("nan", "slow", "memory", "hang", "loss", "gradients", "data")
"""Arguments of `diagnose`."""

_FORMAT = Option("--format", help="Output format.")
TableFormat = Annotated[Literal["table", "json"], _FORMAT]
TextFormat = Annotated[Literal["text", "json"], _FORMAT]
VerdictFormat = Annotated[Literal["text", "json", "ndjson", "csv", "markdown", "parquet", "arrow"], _FORMAT]
WatchFormat = Annotated[Literal["table", "ndjson"], _FORMAT]
RowsFormat = Annotated[
    Literal["table", "json", "ndjson", "csv", "markdown", "parquet", "arrow"] | None,
    Option("--format", help="Output format (default: from the name of --output, else a table)."),
]
OutputFile = Annotated[
    str | None, Option("--output", "-o", metavar="FILE", help="Write the rows to FILE.")
]
ScreenFile = Annotated[
    str | None,
    Option("--output", "-o", metavar="FILE", help="Write to FILE, as JSON if its name ends in .json."),
]
File = Annotated[
    str | None, Option("--file", "-f", metavar="FILE", help="Read from FILE (`-`: stdin).")
]
Timeout = Annotated[
    float | None,
    Option("--timeout", metavar="S", min=0.001, help="Time limit in seconds (default: the server's)."),
]
Wait = Annotated[
    float | None,
    Option(
        "--wait", metavar="S", min=0.001,
        help="Seconds to wait for the step to end, even if the job is stalled (default: PROBE_ACT_WAIT_S).",
    ),
]
JobName = Annotated[str | None, Option("--name", metavar="JOB", help="Job name.")]
Force = Annotated[bool, Option("--force", help="Apply to one rank of a multi-rank job.")]
Ranks = Annotated[
    str | None, Option("--rank", metavar="SET", help="Only these ranks, e.g. 0,2-7 (default: all).")
]
Steps = Annotated[int, Option("--steps", metavar="N", min=1, help="Number of steps.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Overwrite an existing file.")]
