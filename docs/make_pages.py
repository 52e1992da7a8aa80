"""`python docs/make_pages.py`: writes the pages of docs/ that are generated from declarations (see `pages`).

`--check` writes nothing and fails if one of them is stale.
A tool of this repository; not part of the command.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        "ring": "Rows are written as they happen",
        "journal": "Rows are written as they happen",
        "live": "Rows are collected when a query names the table",
    }
    yield from [
        "# Tables",
        "",
        "NULL means not measured. `probe tables NAME` describes a table in the terminal.",
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
        "These environment variables are read once, when a process starts. `probe config` shows their values.",
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
The guard checks code (a snippet) that `eval` is asked to run in a job: it reads the syntax tree before the
snippet runs, and watches the snippet while it runs. This protects a run from mistakes. It is not a sandbox:
Python has none, and anyone who can reach the socket of a job can run code as the user who trains. Access is
controlled by file modes and tokens, not by the guard.

## Before it runs

The guard is an allow-list: a snippet is `reading` if every call, attribute, operator and loop in it is known
to change nothing. Everything else is `changing`, including calls that are merely unknown. Names are resolved
to the objects they refer to in the job, so the guard sees through aliases (`D = dist`, `f = optimizer.step`)
and can tell a library's method from one that a class of the job overrides. The guard itself executes nothing:
no property, no `__getattr__`, no `__repr__`. Properties, methods and operators of any code but the standard
library, torch and NumPy are therefore `changing`, even if they are harmless. Such a snippet waits for the
next step boundary.

The guard reads the tree from top to bottom. For each variable and container, the guard tracks every value assigned to
it. If it finds another value after the variable was read (in a loop, in a function), it reads the tree again.

A snippet may change objects that it created (a list, a counter, a clone of a tensor) and still be `reading`.
It may not change objects that it took from the job (an element of a list, a view of a tensor). Nor may it
change its own tensors in ways that affect the job: `set_`, or in-place random numbers. Three more things are
`changing`: `+=` if the left side may be a tensor of the job; iterating over a `DataLoader`, a generator or a
file of the job, which consumes it; and drawing random numbers of any kind.

Reading gradients has a separate class, `settled`. The training thread may read `.grad` between two steps. No
other thread may: with torch 2.13, a process in which one thread reads `.grad` in a loop while another trains
dies within seconds.

Extremely large constants (`3**10**9`, `[0] * 10**12`) and endless iterators passed to a C function
(`list(itertools.count())`) are refused, because nothing could stop them.

### Compared with the first guard

The first guard was an interpreter of 2,600 lines. The table counts the snippets in each class, by the first
guard and by this one, for the snippets that `tests/control/judged.py` had for the first guard. No snippet has
a milder class than before. The file has {more} more snippets now; most of them hide a change.

| class | first guard | now |
| --- | --- | --- |
{classes}

These snippets only read, but now wait for a step boundary:

{waits}

Some snippets that the first guard classified as `reading` do change something, and are now `changing`:
`torch.empty(3).uniform_()`, `torch.nn.functional.relu(x, True)`, `torch.add(x, 1, **{{'out': x}})`, `w.data
= x` followed by `w.zero_()`, `raise ValueError(thing)` where the thing has its own `__str__`.

## While it runs

The watch checks the time limit before each line of Python that the snippet runs, including lines in functions of
the job. Twenty times a second it checks how much memory the snippet has taken; the limit is four fifths of
what was available. A single larger allocation fails with MemoryError. The watch sees each call before it
happens, so a name built at run time, `functools.partial` or `map` cannot bypass a refusal. On the training
thread `time.sleep` is refused too.

The watch cannot interrupt the following, and waits until they end:

- a single C call: a matrix product, a sort without a key, a read from a slow disk, a lock, a regular
  expression;
- a loop in a function of the job (not of the snippet) that catches BaseException and calls nothing.

The watch does not see:

- a C function called by another C function under a name built at run time: `map` over `os._exit`,
  `operator.methodcaller` on a process group in C++, an operator of `torch.ops`;
- what happens in threads and processes that the snippet starts; the guard classifies starting them as
  `changing` or `refused`;
- what objects of libraries do internally: a hook on a module, a callback, a tensor subclass that misreports;
- changes between reading and running: a snippet runs with the objects that its names referred to when it was
  read, but the contents of those objects may have changed.

## Collectives

If a snippet runs on only one of several ranks, collectives are refused, before and while it runs: it would
wait for the other ranks for ever, or they would match its call with their own next collective. With
`--together` and the name of the job, every rank runs the snippet at the same step boundary. Its calls on the
default group then use a separate group, which probe creates at the first such call. This group always uses
gloo, has its own connection to the job's store, is in none of torch's tables, and is closed when the snippet
ends. The job's groups are not affected.

Before each call, the ranks compare the operation, its root, and the number and type of the elements. If these
differ, if the snippet of a rank has ended, or if a rank does not arrive in time, the call raises an exception
in the snippet on every rank, and the collective is not called: gloo would end a process that receives more
than it expects.

Also refused with `--together`, unless `--force` is given: using a group that the snippet names, sending to
one rank, creating or destroying groups, functional collectives, and calls that use the job's own groups
(`backward`, calling a wrapped model, `full_tensor` of a DTensor).
"""
_GUARD_OF = {
    "reading": "Everything that is known to change nothing.",
    "blocking": "These calls wait for something outside the job. So does importing a module that is neither "
    "loaded nor part of the standard library.",
    "settled": "Refused with `--now`, and if several threads train, unless `--force` is given.",
    "changing": "Everything that is in no table on this page, assignments to attributes and items of objects "
    "that the snippet did not create, and the following.",
    "collective": "The other ranks would have to make the same call at the same time. `backward` counts as "
    "collective if a process group exists.",
    "refused": "Never run, not even with `--force`. If the job has a variable named `input`, the name means "
    "that variable and is not refused.",
}


def guard_page() -> Iterator[str]:
    """docs/guard.md, from `probe.job.snippets.guard.rules`."""
    from probe.job.snippets.guard.rules import CLASSES

    yield from ["# Guard: which code `eval` may run", "", *_compared(_GUARD).splitlines(), ""]
    yield from [
        "## The classes", "",
        "A snippet has the class of its most severe part. The answer names the lines that determine it.", "",
    ]
    yield from _grid(("class", "meaning"), ((f"`{kind}`", means) for kind, means in CLASSES.items()))
    for kind in CLASSES:
        yield from [f"## {kind.capitalize()}", "", _GUARD_OF[kind], ""]
        yield from _grid(("owner", "names", "reason"), _rules_of(kind))


def _compared(text: str) -> str:
    """The text, with the classes that the snippets of the tests have and had."""
    judged: dict[str, Any] = runpy.run_path(str(FOLDER.parent / "tests" / "control" / "judged.py"))
    before: dict[str, int] = judged["FIRST_GUARD"]
    waits: tuple[str, ...] = judged["READS_BUT_WAITS"]
    moved = {"reading": -len(waits), "changing": len(waits)}
    rows = [f"| `{kind}` | {count} | {count + moved.get(kind, 0)} |" for kind, count in before.items()]
    more = sum(map(len, judged["EXPECTED"].values())) - sum(before.values())
    shown = ["- `" + code.replace("\n", "; ") + "`" for code in waits]
    return text.format(more=more, classes="\n".join(rows), waits="\n".join(shown))


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
        pure, own = _code(sorted(rules.PURE_METHODS)), _code(sorted(rules.OWN_METHODS))
        yield "methods of the result of a reading call", pure, "reads; matched by name"
        yield "methods of objects that the snippet created", own, "only the snippet has them"
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
            yield f"`{cls}`", "calling it, or an object that contains it", "waits for the other ranks"
        yield "methods, matched by name", _code(sorted(rules.COLLECTIVE_METHODS)), "wait for the other ranks"


def _code(names: Sequence[str]) -> str:
    return "everything" if "*" in names else f"`{' '.join(dict.fromkeys(names))}`"


def cli_page() -> Iterator[str]:
    """docs/cli.md, from the commands and the tree of errors."""
    from probe.client.endpoints import FORMS
    from probe_cli.command_group import command_group
    from probe_cli.command_table import GROUPS, INSTEAD, SAME_AS, module_of
    from probe_cli.core.exit_codes import errors_of, exit_codes

    group = command_group()
    yield from ["# Command reference", "", "`probe ENDPOINT COMMAND …`; also `probe COMMAND ENDPOINT …` and `probe -t ENDPOINT COMMAND …`. "
                "`probe` alone lists what is running and what to do next.", ""]
    yield from _options(group)
    yield from ["## Endpoints", ""]
    yield from _grid(
        ("endpoint", "meaning"), ((f"`{form}`" if form else "none", means) for form, means in FORMS)
    )
    yield from [
        "If no server answers and none can be started, `backtrace`, `eval` and actions talk to the process directly.",
        "",
    ]
    for title, names in GROUPS.items():
        yield from [f"## {title}", ""]
        for name in names:
            command = group.get_command(None, name)
            yield from [f"### probe {name}", "", command.help or "", ""]
            yield from _options(command)
            yield from ["```sh", *module_of(name).EXAMPLES, "```", ""]
    yield from _other_words(SAME_AS, INSTEAD)
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


def _other_words(same_as: Mapping[str, str], instead: Mapping[str, str]) -> Iterator[str]:
    """Words of other tools."""
    yield from ["## Aliases and unknown words", "", "These words are aliases of the command beside them:", ""]
    meant: dict[str, list[str]] = {}
    for word, command in same_as.items():
        meant.setdefault(command, []).append(f"`{word}`")
    yield from _grid(("word", "command"), ((", ".join(words), f"`{name}`") for name, words in meant.items()))
    yield from [
        "These words are not commands; `probe` answers with the command to type instead: "
        + ", ".join(f"`{word}`" for word in instead)
        + ". For an unknown word, it suggests at most three commands. It suggests a command that changes a "
        "job only if no other command is likely.",
        "",
    ]


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
        yield from _grid(("argument", "meaning"), rows)


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
