"""Splits a command line into endpoint and command: `probe ENDPOINT COMMAND …`, `probe COMMAND ENDPOINT …`.

The first word that is neither an option nor a command is the endpoint. For a job named like a command, use
`-t`. A misspelt word never runs anything: at most three commands are suggested, and a command that changes a
job only for a near-certain typo. Pure, standard library only; runs in the command's main thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from probe.base.errors import UsageError

if TYPE_CHECKING:
    from probe_cli.core.session import Session

ENDPOINT_OPTIONS = ("-t", "--endpoint")
HELP_OPTIONS = frozenset({"--help", "-h", "--version", "-V"})
ALL_COMMANDS = "All commands: `probe --help`."
MOST_GUESSES = 3
_NEAR = 0.7
"""Least difflib similarity of a word and a suggested command: `atach` suggests `attach`, but not `watch`."""
_SHORTEST_ACTING = 4
"""Least length of a word for which a command that changes a job is suggested."""
_SQL = frozenset({"select", "from", "with", "show", "describe", "summarize", "explain", "values", "pivot"})
_NUMBER = r"[-+]?(\d+\.\d*|\.\d+|\d+(\.\d*)?e[-+]?\d+)"  # compiled on use, which is rare
"""A number that is not an integer: neither a PID nor, most likely, a job, but the value of an option."""
_CODE = r"[(=\[]|\s[-+*/]\s"


class Vocabulary(NamedTuple):
    """The commands; aliases of commands; other words with a hint what to type instead; the commands that
    change a job."""

    commands: Collection[str]
    same_as: Mapping[str, str]
    instead: Mapping[str, str]
    acting: Collection[str]


class CommandLine(NamedTuple):
    """Options before the command, the command (empty: none), the words after it."""

    options: list[str]
    command: str
    rest: list[str]

    @property
    def words(self) -> list[str]:
        """The whole line, with the endpoint as an option."""
        return [*self.options, *([self.command] if self.command else []), *self.rest]

    @property
    def endpoint(self) -> str | None:
        """The endpoint among the options, None if there is none."""
        for place, word in enumerate(self.options):
            if word in ENDPOINT_OPTIONS:
                return "".join(self.options[place + 1 : place + 2])
            for option in ENDPOINT_OPTIONS:
                if word.startswith(option):
                    return word.removeprefix(option).removeprefix("=")
        return None

    def addressed_to(self, place: int) -> CommandLine:
        """This line with the word at `place` of `rest` as the endpoint."""
        rest = [*self.rest[:place], *self.rest[place + 1 :]]
        return CommandLine([*self.options, "-t", self.rest[place]], self.command, rest)


def read(words: Sequence[str], known: Vocabulary) -> CommandLine:
    """Parse a command line up to its command; raises `UsageError` for an unknown command.

    Leaves the words after the command alone."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        position += 2 if words[position] in ENDPOINT_OPTIONS else 1
    line = CommandLine(list(words[:position]), "", list(words[position:]))
    if not line.rest:
        return line
    first, *rest = line.rest
    other_tools = first in known.same_as and known.same_as[first] != "run"
    if _command(first, known) and not (other_tools and rest and rest[0] in known.commands):  # a job's name
        return line._replace(command=_command(first, known), rest=rest)
    if first == "help" and rest and _command(rest[0], known):
        return line._replace(command=_command(rest[0], known), rest=["--help"])
    if first in ("help", "version"):
        return CommandLine([*line.options, f"--{first}"], "", [])
    if line.endpoint is not None:
        raise unknown_command(first, rest, line.endpoint, known)
    if not rest:
        return _endpoint_alone(line, first, known)
    command = _command(rest[0], known)
    if command:
        return CommandLine([*line.options, "-t", first], command, rest[1:])
    if rest[0] in HELP_OPTIONS:
        return CommandLine([*line.options, "-t", first], "", rest)
    raise _neither(first, rest, known)


def _command(word: str, known: Vocabulary) -> str:
    return word if word in known.commands else known.same_as.get(word, "")


def _endpoint_alone(line: CommandLine, word: str, known: Vocabulary) -> CommandLine:
    answered = word in known.instead or word.endswith(".py") or _is_text(word)
    if answered or (not word.isdigit() and guesses(word, known)):
        raise unknown_command(word, [], None, known)
    return CommandLine([*line.options, "-t", word], "", [])


def _neither(first: str, rest: Sequence[str], known: Vocabulary) -> UsageError:
    """The error for two words that are both no command; guesses which of them was meant as the command."""
    second = rest[0]
    if second.startswith("-"):
        if first in known.instead or first.endswith(".py") or guesses(first, known):
            return unknown_command(first, [], None, known)
        return UsageError(
            f"{first!r} is taken as an endpoint, but no command follows",
            hint=f"For example `probe {first} backtrace`. {ALL_COMMANDS}",
        )
    first_fits = first in known.instead or bool(guesses(first, known)) or _is_text(first)
    second_fits = second in known.instead or bool(guesses(second, known))
    first_meant = second.isdigit() or first.endswith(".py") or (first_fits and not second_fits)
    if first_meant and not first.isdigit():
        return unknown_command(first, rest, None, known)
    return unknown_command(second, rest[1:], first, known)


def unknown_command(word: str, rest: Sequence[str], endpoint: str | None, known: Vocabulary) -> UsageError:
    """The error for a word that is not a command, with a hint what to type instead."""
    if endpoint is None and rest and rest[0].isdigit():
        endpoint = rest[0]
    whom = endpoint or "PID"
    message = f"no such command: {word!r}"
    if word in known.instead:
        return UsageError(message, hint=f"{known.instead[word].format(endpoint=whom)} {ALL_COMMANDS}")
    if word.partition(" ")[0].lower() in _SQL:
        return UsageError(message, hint=f'SQL is given to `query`: `probe {whom} query "SELECT …"`.')
    if word.endswith(".py"):
        return UsageError(message, hint=f"`probe run python {word}` starts it with probe.")
    if _is_text(word):
        return UsageError(message, hint=f"`eval` runs Python: `probe {whom} eval CODE`.")
    before = "" if endpoint is None else f"{endpoint} "
    near = [f"`probe {before}{command}`" for command in guesses(word, known)]
    meant = f"Did you mean {_either(near)}? " if near else ""
    return UsageError(message, hint=meant + ALL_COMMANDS)


def _is_text(word: str) -> bool:
    """Whether the word looks like SQL or Python and not like a command."""
    return word.partition(" ")[0].lower() in _SQL or re.search(_CODE, word) is not None


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def guesses(word: str, known: Vocabulary) -> list[str]:
    """At most three commands that a misspelt word may mean, best match first."""
    import difflib

    typed = word.lower().replace("_", "-")
    words = [*known.commands, *known.same_as]
    near = difflib.get_close_matches(typed, words, n=2 * MOST_GUESSES, cutoff=_NEAR)
    found = dict.fromkeys(known.same_as.get(one, one) for one in near)
    safe = [one for one in found if one not in known.acting or _slipped(typed, one)]
    return safe[:MOST_GUESSES]


def _slipped(typed: str, command: str) -> bool:
    """Whether a word is the command with one typo that rarely produces another word: two letters swapped,
    one missing, one doubled. `step` and `shop` are not typos of `stop`."""
    if typed == command:
        return True
    if len(typed) < _SHORTEST_ACTING:
        return False
    places = range(len(command))
    slips = {
        *(command[:at] + command[at + 1] + command[at] + command[at + 2 :] for at in places[:-1]),
        *(command[:at] + command[at + 1 :] for at in places),
        *(command[: at + 1] + command[at:] for at in places),
    }
    return typed in slips


# An endpoint after the command -----------------------------------------------


def with_endpoint_first(
    line: CommandLine, valued: Collection[str], most: float, module: ModuleType, session: Session
) -> CommandLine:
    """Turn `probe COMMAND ENDPOINT …` into `probe ENDPOINT COMMAND …`; other lines are returned unchanged.
    `valued` and `most`: see `endpoint_after`; `module`: the command's module; its `is_endpoint` decides which
    words are endpoints."""
    if line.endpoint is not None or line.command == "run" or all(word.startswith("-") for word in line.rest):
        return line
    is_endpoint = getattr(module, "is_endpoint", _is_pid)
    place = endpoint_after(line.rest, valued, most, lambda word: is_endpoint(word, line.rest, session))
    return line if place is None else line.addressed_to(place)


def _is_pid(word: str, _rest: Sequence[str], _session: Session) -> bool:
    """The default `is_endpoint`, for commands whose arguments are never bare numbers."""
    return word.isascii() and word.isdigit()


def endpoint_after(
    rest: Sequence[str], valued: Collection[str], most: float, is_endpoint: Callable[[str], bool]
) -> int | None:
    """Index of the endpoint among the words after a command, None without one.

    `valued`: options whose value is the next word. `most`: number of positional arguments of the command. The
    first positional is the endpoint if there are more than `most`, or if `is_endpoint` accepts it."""
    places: list[int] = []
    place = 0
    while place < len(rest):
        word = rest[place]
        if word == "--":
            places += range(place + 1, len(rest))
            break
        if word.startswith("-") and word != "-":
            place += word in valued
        else:
            places.append(place)
        place += 1
    if not places:
        return None
    first = rest[places[0]]
    if not first or re.fullmatch(_NUMBER, first, re.IGNORECASE):
        return None
    return places[0] if len(places) > most or is_endpoint(first) else None
