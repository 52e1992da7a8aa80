"""docs/recipes.md: how to write a recipe, and the built-in recipes.

A tool of this repository; not part of the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.diagnose.recipes.recipe import Parameter

_HOW = """\
# Recipes

A recipe is a check on a recording: one SELECT, what its rows mean, and what to do about it. `diagnose` runs all
recipes on request, and the monitor runs them while jobs run. A recipe's file contains everything about it.

```sh
probe recipes
probe recipes show loss-spike
probe PID diagnose
probe PID diagnose loss
probe PID diagnose --all
```

`diagnose` shows the state of the process, then the findings, the worst first, and how many checks were clear or
could not be judged. A finding that another one explains follows its cause, in one line that begins with `hence`
(`explained_by` in JSON). `--all` adds informational findings (`info`) and the reason why a check could not be judged.

With a symptom (`nan`, `slow`, `memory`, `hang`, `loss`, `gradients`, `data`) it proceeds like a specialist: it runs
the recipes of that symptom in order, shows each result, and ends with the cause, or with what is unknown and how to
find out. Recipes with an order below 100 check whether the symptom is present, those from 100 on why: data first, then
gradients, the learning rate, numerics. The first one that finds something is the cause, unless another finding
explains it. If deep statistics are missing, `diagnose` requests them from the job for three steps;
`--no-watch` turns that off. The results are stored in probe.checks of the recording.

Each check is `found`, `clear` or `unknown`. It is `unknown`, with a reason, if what it needs was not recorded or its
SQL failed.

A recipe sees the newest rows: at least the last 32,768 of each table of each rank, and 2 MiB of tables that are
written rarely. With scope `rank` these are the rows of the lowest known rank, with scope `job` those of all ranks on
all hosts.

## Custom recipes

`PROBE_RECIPES` names a folder; the server reads it again when a file changes. A recipe with the name of a built-in
one replaces it. An invalid recipe is left out and reported with the line and the accepted values. To change only a
threshold, put a `parameters.toml` into that folder:

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

The rules on the state of a process have thresholds too: when a step is late, when a thread counts as busy. The section
`[stall-thresholds]` of `parameters.toml` overrides [them](#stall-thresholds); the server applies a change within a
second or two. `PROBE_STALL_S`, a setting of each job, remains the shortest time that counts as a stall.
`probe recipes show stall-thresholds` lists the values in force.

Lines that begin with `-- ` at the top of the file are TOML:

| key | meaning |
| --- | --- |
| `title` | the name of the finding |
| `severity` | `info`, `notice` or `alarm` |
| `symptoms` | one or more of `nan`, `slow`, `memory`, `hang`, `loss`, `gradients`, `data` |
| `what` | the finding in one line; `{column}` is replaced by the row's value or a parameter's, formatted as in Python; NULL becomes `?` |
| `order` | position among the checks of a symptom, 0 to 999; default 900 |
| `scope` | `rank` (default) or `job`: whose rows the SQL sees |
| `holds_s` | how many seconds the finding must last before the monitor opens an incident |
| `needs` | what must be recorded; shown when the result is unknown |
| `why` | lines of evidence; a line that uses a NULL column is left out |
| `next` | next commands; `{endpoint}` is filled in |
| `false_positives` | harmless situations that look the same |
| `deepen` | `gradients`, `activations` or `histograms`: deep statistics that can make an unknown result known |
| `explains` | recipes whose findings this one causes; `diagnose` lists them below it |
| `dated` | `true` if `step` is when the fault began; the recipe then explains only findings that began later |
| `effect` | `true` if the finding is an effect that many mistakes have (a plateau, gradients that grow): it is never called the cause, and where no other finding explains it, its evidence says that the cause was not found |
| `parameters` | a table for each `$name` of the SQL: `value`, `unit` and `source`, all three |
| `zone` | the shaded part of a curve on the page: `of` (`loss`, `grad_norm`, `lr`, `rate`, `rss` or `allocated`), `words`, and `sql` with rows of `ms`, `low` and `high`: from `ms` on, values between `low` and `high` are normal; NULL means no bound. The SQL may use `$rank`, `$from_ms`, `$to_ms` and `$width_ms`; one row for each bucket of that width is enough |

The rest is one SELECT over [the tables](tables.md). Each row is a finding; no rows means clear. These columns have a
meaning: `severity` overrides the recipe's; `subject` distinguishes findings (for example the name of a parameter);
`step`; `rank`; `over`, true for an event in the past whose effects have ended: it stays in the answer, but
explains no other finding; `unknown`, a text: the reason why the check cannot be judged, instead of a finding.

The SQL runs like any query: in a separate process that can read only this recording, with a deadline. At most 50 rows
are used. `NAME.cases.toml` next to a recipe holds its test cases: tables as SELECTs, and what the recipe must find in
them. They should cover the first steps, short runs, and pauses for evaluation and checkpoints. `tests/recipes` runs the
cases of the built-in recipes.
"""


def recipes_page() -> Iterator[str]:
    """docs/recipes.md, from the files in `recipes/`."""
    from probe.diagnose.recipes.library import built_in_folder, load

    library = load([built_in_folder()])
    yield from _HOW.splitlines()
    yield from ["", "## Built-in recipes", ""]
    yield from [
        "In the order in which they run. `probe recipes show NAME` also shows the SQL and the commands. As the source of "
        "a value, `practice` means guides and published runs, `ours` our own judgement.",
        "",
    ]
    for recipe in library.values():
        about = f"{recipe.severity}; {', '.join(recipe.symptoms)}; order {recipe.order}"
        if recipe.scope == "job":
            about += "; on all ranks"
        if recipe.holds_s:
            about += f"; opens an incident after {recipe.holds_s:g} s"
        yield from [f"### {recipe.name}", "", f"{_capital(recipe.title)} ({about}).", ""]
        yield from [f"- Needs: {recipe.needs}"] if recipe.needs else []
        yield from [f"- False positives: {recipe.false_positives}"] if recipe.false_positives else []
        yield from [f"- Explains: {', '.join(recipe.explains)}"] if recipe.explains else []
        yield ""
        if recipe.parameters:
            yield from _parameters(recipe.parameters)
    yield from ["## Stall thresholds", ""]
    yield from ["Thresholds of the rules on the state of a process; `parameters.toml` [overrides](#custom-recipes) them.", ""]
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
