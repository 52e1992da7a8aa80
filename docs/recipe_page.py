"""docs/recipes.md: how a recipe is written, and every one that comes with probe.

A tool of this repository; not part of the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.diagnose.recipes.recipe import Parameter

_HOW = """\
# Recipes

A recipe is a question about a recording: one SELECT, what its rows mean, and what to do about it. `diagnose` asks
them all, the monitor asks them while jobs run, and neither knows more than what is in their files.

```sh
probe recipes
probe recipes show loss-spike
probe PID diagnose
probe PID diagnose loss
probe PID diagnose --all
```

`diagnose` first says how the process is, then what was found, the worst first, and how many checks were clear or
could not be judged. `--all` adds what is no more than a fact (`info`), and why the others could not be judged.

With a symptom (`nan`, `slow`, `memory`, `hang`, `loss`, `gradients`, `data`) it goes the way of a specialist: the
recipes of that symptom in their order, each with its result, and at the end a cause, or what is not known and what
to do to know it. Orders below 100 say that the symptom is there, those from 100 on why: data first, then gradients,
the learning rate, numerics. The first that is found is the cause, unless its recipe says that it follows from another
one. Where deep statistics are missing, the job is asked for those of three steps (`--no-watch`: it is not). What was
checked is kept in probe.checks of the recording.

Not found, clear and unknown are different things: a recipe is unknown when what it needs was not recorded, or when
its SQL failed, and then it says so.

A recipe sees the newest rows, at least 32,768 of each table of each rank and 2 MiB of those that are written rarely,
where there are so many. With the scope `rank` these are the rows of the lowest rank that is known, with `job` those
of all ranks, on other hosts too.

## One of your own

`PROBE_RECIPES` names a folder; the server reads it again when a file changes. A recipe with the name of a built-in
one takes its place. One that is not understood is left out and told of, with the line and what is accepted. Only a
threshold is to be different? Then `parameters.toml` in that folder says so:

```python
from pathlib import Path

folder = Path("my-recipes")
folder.mkdir()
(folder / "parameters.toml").write_text("[loss-spike]\\nsigmas = 8.0\\n[stall-thresholds]\\nwarm_up_s = 1800\\n")
(folder / "evaluation-slow.sql").write_text('''\\
-- title = "evaluation takes long"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 530
-- needs = "steps with the time that is in no phase"
-- what = "evaluation took {longest:.1f} s at step {step}, {ratio:.0%} of the time of all steps"
-- why = ["{pauses} steps had more than {pause_s} s in no phase"]
-- next = ["probe {endpoint} query \\\\"SELECT step, other_s FROM python.steps WHERE other_s > {pause_s}\\\\""]
-- [parameters.pause_s]
-- value = 10.0
-- unit = "s"
-- source = "ours: our evaluations take a minute"
-- [parameters.most]
-- value = 0.2
-- unit = "ratio"
-- source = "ours"
SELECT count(*) AS pauses, arg_max(step, other_s) AS step, max(other_s) AS longest,
    sum(other_s) / (SELECT sum(wall_s) FROM python.steps) AS ratio
FROM python.steps WHERE other_s > $pause_s
HAVING ratio > $most
''')

import duckdb
from probe.diagnose.recipes.local_query import make_tables, run_on
from probe.diagnose.recipes.library import built_in_folder, load

library = load([built_in_folder(), folder])
assert not library.problems
assert library["loss-spike"].parameters["sigmas"].value == 8.0
assert library.stall_thresholds.warm_up_s == 1800.0  # compiling takes half an hour

connection = duckdb.connect()
make_tables(connection)
connection.execute("INSERT INTO python.steps BY NAME SELECT 7 AS step, 60.0 AS wall_s, 55.0 AS other_s")
[check] = run_on(connection, [library["evaluation-slow"]], "4242")
assert check.findings[0].what == "evaluation took 55.0 s at step 7, 92% of the time of all steps"
```

The rules that judge a process rather than a recording have thresholds too: when a step is late, when a thread counts
as busy. The section `[stall-thresholds]` of `parameters.toml` overrides them as it does those of recipes; the server
applies a change within a second or two. `PROBE_STALL_S`, a setting of each job, stays the least time that is a stall.

`probe recipes show stall-thresholds` lists those in force; [all of them](#stall-thresholds) are below.

Lines that begin with `-- ` at the top of the file are TOML:

| key | meaning |
| --- | --- |
| `title` | the finding's name |
| `severity` | `info`, `notice` or `alarm` |
| `symptoms` | one or more of `nan`, `slow`, `memory`, `hang`, `loss`, `gradients`, `data` |
| `what` | the finding in one line; `{column}` is filled in from the row, or from a parameter, formatted as in Python; `?` is NULL |
| `order` | place among the checks of a symptom, 0 to 999; 900 when it is left out |
| `scope` | `rank` (when it is left out) or `job`: whose rows are there |
| `holds_s` | the monitor: seconds for which it must be found before it is an incident |
| `needs` | what must be recorded; said when the answer is unknown |
| `why` | evidence, a line each; a line with a column that is NULL is left out |
| `next` | commands, a line each; `{endpoint}` is filled in |
| `false_positives` | what looks like it and is not |
| `deepen` | `gradients`, `activations` or `histograms`: deep statistics that help when the answer is unknown |
| `follows` | recipes of which this one is a consequence where they found something too |
| `parameters` | a table for each `$name` of the SQL: `value`, `unit` and `source`, all three |

The rest is one SELECT over [the tables](tables.md). Each row is a finding, no row is all clear. Columns that mean
something: `severity` instead of the recipe's; `subject` tells findings apart (the name of a parameter); `step`;
`rank`; `unknown`, a text: then the row is no finding, but why there can be none.

It runs as any SQL from outside does: in a process that may read this recording and nothing else, with a deadline. At
most 50 rows are looked at. A recipe that must be quiet on the first steps, on short runs and in pauses for evaluation
and checkpoints has cases beside it that say so, `NAME.cases.toml`: tables as SELECTs, and what is to be found in them;
`tests/recipes` runs those of the built-in ones.
"""


def recipes_page() -> Iterator[str]:
    """docs/recipes.md, from the files in `recipes/`."""
    from probe.diagnose.recipes.library import built_in_folder, load

    library = load([built_in_folder()])
    yield from _HOW.splitlines()
    yield from ["", "## Those that come with probe", ""]
    yield from ["In the order of their checks. `probe recipes show NAME` has the SQL and the commands, too.", ""]
    for recipe in library.values():
        about = f"{recipe.severity}; {', '.join(recipe.symptoms)}; order {recipe.order}"
        if recipe.scope == "job":
            about += "; over all ranks"
        if recipe.holds_s:
            about += f"; an incident after {recipe.holds_s:g} s"
        yield from [f"### {recipe.name}", "", f"{_capital(recipe.title)} ({about}).", ""]
        yield from [f"- needs {recipe.needs}"] if recipe.needs else []
        yield from [f"- not to be confused with: {recipe.false_positives}"] if recipe.false_positives else []
        yield ""
        if recipe.parameters:
            yield from _parameters(recipe.parameters)
    yield from ["## Stall thresholds", ""]
    yield from ["Of the rules on a process; `parameters.toml` overrides them as [above](#one-of-your-own).", ""]
    yield from _parameters(library.stall_parameters)


def _parameters(parameters: Mapping[str, Parameter]) -> Iterator[str]:
    yield "| parameter | value | unit | source |"
    yield "| --- | --- | --- | --- |"
    for name, one in parameters.items():
        cells = (f"`{name}`", f"{one.value}", one.unit, one.source)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
