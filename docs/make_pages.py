"""`python docs/make_pages.py`: the pages of docs/ that are made from declarations (see `pages`).

`--check` writes nothing and fails when one of them is not what would be written.
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
        "live": "Looked up when a query names it",
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
        "What `diagnose` says of a process, and what probe.verdicts keeps. Each comes with a severity: "
        "`ok`, `notice` (worth knowing, may be as meant) or `alarm`; with its evidence, and with what to "
        "do next. [diagnose.md](diagnose.md) says how they are found.",
        "",
    ]
    yield from _grid(("state", "meaning"), ((f"`{state}`", means) for state, means in STATES.items()))


_GUARD = """\
`eval` looks at the syntax of a snippet before it runs, and over its shoulder while it runs. That protects a
run from mistakes. It is no sandbox: Python has none, and whoever may reach the socket of a job may run code
as the user who trains. Who that is, file modes and tokens decide, not the guard.

## Before it runs

Allow-list first: a snippet is `reading` when every call, attribute, operator and loop in it is known to
change nothing; all else is `changing`, also what is merely not known. Names are looked up as the objects
that they are in the job, so an alias (`D = dist`, `f = optimizer.step`) is seen through, and a method that
a class of the job's own overrides is not taken for the library's. Nothing is run for it: no property, no
`__getattr__`, no `__repr__`. A property, method or operator of any code but the standard library's, torch's
and numpy's is therefore `changing`, though it may well be harmless: the snippet then waits for the next
step boundary, and that is all.

What the snippet makes itself (a list, a counter, a clone of a tensor) it may change and still be `reading`;
what it takes from the job (an element of a list of the job's, a view of a tensor) it may not. Adding in
place (`+=`) counts as changing wherever the left side may be the job's tensor. So does going through a
`DataLoader`, a generator or a file of the job's (it takes from them) and drawing random numbers of any
kind.

Looking at gradients is a class of its own, `settled`. The thread that trains may read `.grad` between two
steps; beside it nobody may: with torch 2.13 a process in which one thread reads `.grad` in a loop while
another trains dies within seconds.

Numbers and sequences that constants make absurdly large (`3**10**9`, `[0] * 10**12`), and endless iterators
handed to a function written in C (`list(itertools.count())`), are refused, for nothing could stop them.

## While it runs

Before each line of Python beneath the snippet, the job's own functions included, the clock is looked at,
and twenty times a second how much memory was taken: at most four fifths of what was available. One
allocation that is larger than that fails with MemoryError. Each call is looked at before it happens, so
that a name that was put together, `functools.partial` or `map` do not get around what is refused. On the
training thread `time.sleep` is refused too.

What cannot be cut short, and is waited for:

- one call of C: a matrix product, a sort without a key, a read from a slow disk, a lock, a regular
  expression;
- a loop in a function of the job's (not of the snippet's) that catches BaseException and calls nothing.

What is not seen:

- a function written in C that is called by another function written in C under a name that was put
  together: `map` over `os._exit`, `operator.methodcaller` on a process group in C++, an operator of
  `torch.ops`;
- what threads and processes do that the snippet starts; the guard classes starting them as changing or
  refused;
- what objects of libraries do within: a hook on a module, a callback, a subclass of a tensor that lies;
- that something has changed between the look and the run: a snippet runs with the very objects that its
  names had when it was judged, but not with all that they held.

## Collectives

On one rank of several a collective is refused, before and while a snippet runs: the others would wait for it
for ever, or take it for their own next one. With `--together`, and the name of the job, every rank runs the
snippet at the same boundary, and what it calls on the default group is carried by a group of our own, made at
the first such call: on gloo whatever the job's is, from a connection of our own to the job's store, in none
of torch's tables, and closed at the snippet's end. The job's groups count nothing of it.

Before each call the ranks compare what they are about to call: the operation, its root, and the number of
elements and type of what is sent. Where that differs, where a rank's snippet has ended before, or a rank does
not come in time, the call is an exception in the snippet on every rank, and nothing is called: gloo would end
the process that receives more than it expects.

Refused there, and so only with `--force`, at the job's risk: a group that the snippet names, sending to one
rank, making or destroying groups, functional collectives, and what calls collectives by itself on the job's
groups (`backward`, a call of a wrapped model, `full_tensor` of a DTensor).
"""
_GUARD_OF = {
    "reading": "Everything that is known to change nothing.",
    "blocking": "These wait for something outside. So does importing a module that is neither loaded nor of "
    "the standard library.",
    "settled": "Refused with `--now`, and where several threads train; `--force` runs it all the same.",
    "changing": "Whatever is in no table; assignments to attributes and items of what the snippet did not "
    "make; and these, which say why.",
    "collective": "Other ranks would have to call the same at the same time. `backward` counts as collective "
    "where a process group exists.",
    "refused": "Never run, also not with `--force`. A variable of the job that is called `input` is that "
    "variable.",
}


def guard_page() -> Iterator[str]:
    """docs/guard.md, from `probe.job.snippets.guard.rules`."""
    from probe.job.snippets.guard.rules import CLASSES

    yield from ["# What a snippet may do", "", *_GUARD.splitlines(), "", "## The classes", ""]
    yield from ["A snippet has the class of the worst of its parts; the answer says which lines.", ""]
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
        yield "methods of what a reading call gave", _code(sorted(rules.PURE_METHODS)), "by their name"
        yield "methods of what the snippet made", _code(sorted(rules.OWN_METHODS)), "it is nobody else's"
    elif kind == rules.BLOCKING:
        yield "methods of what the snippet made", _code(sorted(rules.BLOCKING_METHODS)), "wait"
    elif kind == rules.SETTLED:
        prefixed = [f"{prefix}*" for prefix in rules.SETTLED_PREFIXES]
        settled = _code([*sorted(rules.SETTLED_ATTRIBUTES), *prefixed])
        yield "attributes of tensors and nodes of autograd's graph", settled, rules.LOOKS_AT_GRADIENTS
    elif kind == rules.CHANGING:
        yield from (("methods", f"`{name}`", why) for name, why in rules.CHANGING_METHODS.items())
    elif kind == rules.COLLECTIVE:
        for module in rules.COLLECTIVE_MODULES:
            yield f"`{module}`", "everything that is in no other table", "waits for the other ranks"
        for cls in rules.COLLECTIVE_CLASSES:
            yield f"`{cls}`", "calling one, or what holds one", "waits for the other ranks"
        yield "methods, by their name", _code(sorted(rules.COLLECTIVE_METHODS)), "wait for the other ranks"


def _code(names: Sequence[str]) -> str:
    return "everything" if "*" in names else f"`{' '.join(dict.fromkeys(names))}`"


def cli_page() -> Iterator[str]:
    """docs/cli.md, from the commands and the tree of errors."""
    from probe_cli.command_table import COMMANDS, command_group, module_of
    from probe_cli.core.endpoints import FORMS
    from probe_cli.core.exit_codes import errors_of, exit_codes

    group = command_group()
    yield from ["# The command", "", "`probe ENDPOINT COMMAND …`, or `probe -t ENDPOINT COMMAND …`.", ""]
    yield from _options(group)
    yield from ["## Endpoints", ""]
    yield from _grid(
        ("endpoint", "meaning"), ((f"`{form}`" if form else "none", means) for form, means in FORMS)
    )
    yield from [
        "Where no server answers and none can be started, `backtrace` and `eval` ask the process itself.",
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
    yield from ["Errors are two lines on stderr: `probe:` and what happened, `next:` and what to do.", ""]


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
