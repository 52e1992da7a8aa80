"""`python docs/make_pages.py`: writes the pages of docs/ that are generated from declarations (see `pages`).

`--check` writes nothing and fails if one of them is stale.
A tool of this repository; not part of the command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
_MADE = "<!-- Made by `python docs/make_pages.py`; change the declaration, not this file. -->"


def pages() -> dict[str, str]:
    """Text of every generated page by its file name."""
    from recipe_page import recipes_page

    made = {
        "tables.md": tables_page(), "settings.md": settings_page(), "cli.md": cli_page(),
        "verdicts.md": verdicts_page(), "guard.md": guard_page(), "recipes.md": recipes_page(),
    }
    return {name: "\n".join([_MADE, "", *lines]).rstrip() + "\n" for name, lines in made.items()}


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of the pages in `folder` that are missing or not up to date."""
    found: list[str] = []
    for name, text in pages().items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(name)
    return found


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(headings)
    yield "|" + " --- |" * len(headings)
    yield from (_row(row) for row in rows)
    yield ""


def tables_page() -> Iterator[str]:
    """docs/tables.md, from `probe.tables`."""
    from probe.recording.tables import COMMON, TABLES

    sources = {
        "ring": "Written as it happens",
        "journal": "Written as it happens",
        "live": "Collected when a query names it",
    }
    yield from [
        "# Tables",
        "",
        "NULL means not measured. `probe tables NAME` shows the same in a terminal.",
        "",
    ]
    yield from ["Every table also has these columns:", ""]
    headings = ("column", "type", "unit", "meaning")
    yield from _grid(headings, ((f"`{c.name}`", c.type, c.unit, c.doc) for c in COMMON))
    for table in TABLES:
        yield from [f"## {table.full_name}", "", f"One row per {table.doc}.", f"{sources[table.source]}.", ""]
        yield from _grid(headings, ((f"`{c.name}`", c.type, c.unit, c.doc) for c in table.columns))
        yield from ["```sql", table.example, "```", ""]


def settings_page() -> Iterator[str]:
    """docs/settings.md, from `probe.settings`."""
    from probe.base.settings import SETTINGS

    yield from ["# Settings", ""]
    yield from [
        "Environment variables, read once when a process starts. `probe config` shows their values.",
        "",
    ]
    yield from _grid(
        ("variable", "default", "unit", "meaning"),
        ((f"`{s.env}`", f"`{s.default}`" if s.default else "", s.unit, s.help) for s in SETTINGS),
    )


def verdicts_page() -> Iterator[str]:
    """docs/verdicts.md, from `probe.diagnose.states`."""
    from probe.diagnose.states import STATES

    yield from [
        "# Verdicts",
        "",
        "The states that `diagnose` reports and probe.verdicts stores. Each verdict has a severity: `ok`, "
        "`notice` (worth knowing, may be intended) or `alarm`; its evidence; and the next commands. "
        "[diagnose.md](diagnose.md) explains how they are determined.",
        "",
    ]
    yield from _grid(("state", "meaning"), ((f"`{state}`", means) for state, means in STATES.items()))


_GUARD = """\
`eval` analyses a snippet before it runs and watches it while it runs. This protects a run from mistakes. It is not
a sandbox: anyone who can reach a job's socket can run code as the user who trains. File modes and tokens control
that, not the guard.

## Before it runs

The guard works from an allow-list: a snippet is `reading` if every call, attribute, operator and loop in it is
known to change nothing; everything else, including anything unknown, is `changing`. Names are resolved to the job's
objects, so aliases (`D = dist`, `f = optimizer.step`) are recognized, and a method that one of the job's classes
overrides is not mistaken for the library's. The analysis runs nothing: no property, no `__getattr__`, no `__repr__`.
A property, method or operator defined outside the standard library, torch and numpy is therefore `changing`, even if
it is harmless: the snippet then waits for the next step boundary.

A snippet may change what it creates itself (a list, a counter, a clone of a tensor) and still be `reading`, but not
what belongs to the job (an element of one of its lists, a view of a tensor). In-place addition (`+=`) counts as
changing if the left side may be a tensor of the job. So do iterating over a `DataLoader`, generator or file of the job,
which consumes from it, and drawing random numbers.

Reading gradients is a class of its own, `settled`. Only the training thread may read `.grad`, between two steps: with
torch 2.13, a process in which one thread reads `.grad` in a loop while another trains dies within seconds.

Constant expressions with absurdly large results (`3**10**9`, `[0] * 10**12`) and endless iterators passed to a C
function (`list(itertools.count())`) are refused, because nothing could stop them.

## While it runs

The time limit is checked before each line of Python that the snippet runs, including the job's own functions. Memory
is checked twenty times a second: the snippet may take at most four fifths of what was available, and a single larger
allocation fails with MemoryError. Each call is checked before it happens, so computed names, `functools.partial` and
`map` do not bypass a refusal. On the training thread `time.sleep` is refused too.

These cannot be interrupted, so the time limit takes effect only after them:

- one call of C: a matrix product, a sort without a key, a read from a slow disk, a lock, a regular
  expression;
- a loop in a function of the job (not of the snippet) that catches BaseException and calls nothing.

The guard does not see:

- a C function that another C function calls under a computed name: `map` over `os._exit`, `operator.methodcaller`
  on a process group in C++, an operator of `torch.ops`;
- what threads and processes started by the snippet do; starting them counts as changing or refused;
- what library objects do internally: a hook on a module, a callback, a misbehaving tensor subclass;
- changes between analysis and execution: a snippet runs with the objects that its names referred to during the
  analysis, but their contents may have changed.

## Collectives

On a single rank of a multi-rank job, collectives are refused, both before and while a snippet runs: the other ranks
would wait forever, or match the call with their own next collective. With `--together` and the name of the job, every
rank runs the snippet at the same boundary, and its calls on the default group go to a separate process group. That
group is created at the first such call. It always uses gloo, over a separate connection to the job's store, appears in
none of torch's tables, and is closed when the snippet ends. The job's groups are not affected.

Before each call the ranks compare the operation, its root, and the number of elements and type of the data. If these
differ, if a rank's snippet has already ended, or if a rank does not arrive in time, the call raises an exception in the
snippet on every rank and nothing is called: gloo would end the process that receives more than it expects.

These are refused even then; `--force` allows them at the job's risk: groups named by the snippet, sends to a single
rank, creating or destroying groups, functional collectives, and anything that itself calls collectives on the job's
groups (`backward`, calling a wrapped model, `full_tensor` of a DTensor).
"""
_GUARD_OF = {
    "reading": "Known to change nothing.",
    "blocking": "May wait for something outside the process, as does importing a module that is neither loaded "
    "nor in the standard library.",
    "settled": "Refused with `--now`, and if several threads train; `--force` allows it.",
    "changing": "Anything in no table, assignments to attributes and items of objects that the snippet did not "
    "create, and the following.",
    "collective": "The other ranks would have to make the same call at the same time. `backward` counts as "
    "collective if a process group exists.",
    "refused": "Never run, not even with `--force`. If the job has a variable called `input`, that variable is "
    "meant.",
}


def guard_page() -> Iterator[str]:
    """docs/guard.md, from `probe.job.snippets.guard.rules`."""
    from probe.job.snippets.guard.rules import CLASSES

    yield from ["# Rules for snippets", "", *_GUARD.splitlines(), "", "## The classes", ""]
    yield from ["A snippet gets the class of its worst part; the answer names the lines.", ""]
    yield from _grid(("class", "meaning"), ((f"`{kind}`", means) for kind, means in CLASSES.items()))
    for kind in CLASSES:
        yield from [f"## {kind.capitalize()}", "", _GUARD_OF[kind], ""]
        yield from _grid(("of", "what", "why"), _rules_of(kind))


def _rules_of(kind: str) -> Iterator[tuple[str, str, str]]:
    """Rows about one class of snippets: what is called by name, and methods of what is not known."""
    import probe.job.snippets.guard.rules as rules

    together: dict[tuple[str, str], list[str]] = {}
    for group in rules.GROUPS:
        if group.kind == kind:
            together.setdefault((group.of, group.why), []).extend(group.names)
    for (of, why), names in together.items():
        yield f"`{of}`", _code(names), why
    if kind == rules.READING:
        yield "methods of the result of a reading call", _code(sorted(rules.PURE_METHODS)), "matched by name"
        yield "methods of objects that the snippet created", _code(sorted(rules.OWN_METHODS)), "they belong to the snippet"
    elif kind == rules.BLOCKING:
        yield "methods of objects that the snippet created", _code(sorted(rules.BLOCKING_METHODS)), "wait"
    elif kind == rules.SETTLED:
        prefixed = [f"{prefix}*" for prefix in rules.SETTLED_PREFIXES]
        settled = _code([*sorted(rules.SETTLED_ATTRIBUTES), *prefixed])
        yield "attributes of tensors and nodes of autograd's graph", settled, rules.LOOKS_AT_GRADIENTS
    elif kind == rules.CHANGING:
        yield from (("methods", f"`{name}`", why) for name, why in rules.CHANGING_METHODS.items())
    elif kind == rules.COLLECTIVE:
        for module in rules.COLLECTIVE_MODULES:
            yield f"`{module}`", "everything not in another table", "waits for the other ranks"
        for cls in rules.COLLECTIVE_CLASSES:
            yield f"`{cls}`", "calling it, or an object that holds it", "waits for the other ranks"
        yield "methods, matched by name", _code(sorted(rules.COLLECTIVE_METHODS)), "wait for the other ranks"


def _code(names: Sequence[str]) -> str:
    return "everything" if "*" in names else f"`{' '.join(dict.fromkeys(names))}`"


def cli_page() -> Iterator[str]:
    """docs/cli.md, from the commands and the tree of errors."""
    from probe_cli.command_table import COMMANDS, command_group, module_of
    from probe_cli.core.endpoints import FORMS
    from probe_cli.core.exit_codes import errors_of, exit_codes

    group = command_group()
    yield from ["# Command reference", "", "`probe ENDPOINT COMMAND …`, or `probe -t ENDPOINT COMMAND …`.", ""]
    yield from _options(group)
    yield from ["## Endpoints", ""]
    yield from _grid(
        ("endpoint", "meaning"), ((f"`{form}`" if form else "none", means) for form, means in FORMS)
    )
    yield from [
        "If no server answers and none can be started, `backtrace`, `eval` and actions talk to the process directly.",
        "",
    ]
    yield from ["## Commands", ""]
    for name in COMMANDS:
        command = group.get_command(None, name)
        yield from [f"### probe {name}", "", command.help or "", ""]
        yield from _options(command)
        yield from ["```sh", *module_of(name).EXAMPLES, "```", ""]
    yield from ["## Exit codes", ""]
    yield from _grid(
        ("code", "meaning", "errors"),
        (
            (
                str(code),
                meaning,
                ", ".join(f"`{error}`" for error in errors_of(code)) if 1 < code < 100 else "",
            )
            for code, meaning in exit_codes()
        ),
    )
    yield from ["An error is two lines on stderr: `probe:` with what happened, `next:` with what to do.", ""]


def _options(command: Any) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        words = sorted([*parameter.opts, *parameter.secondary_opts], key=len)
        if parameter.param_type_name == "argument":
            words = [parameter.metavar or parameter.name.upper()]
        elif not parameter.is_flag:
            choices = getattr(parameter.type, "choices", None)
            words[-1] += " " + ("|".join(choices) if choices else parameter.metavar)
        rows.append(("`" + ", ".join(words) + "`", parameter.help or ""))
    if rows:
        yield from _grid(("word", "meaning"), rows)


def main(words: Sequence[str]) -> int:
    """Write the pages, or with `--check` say which are stale; returns the exit code."""
    if words == ["--check"]:
        found = stale()
        for name in found:
            sys.stderr.write(f"docs/{name} is stale: run `python docs/make_pages.py`\n")
        return 1 if found else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
