"""`probe ENDPOINT COMMAND …` becomes `probe -t ENDPOINT COMMAND …`.

The first word that is neither an option nor a command is the endpoint. For a job
named like a command, use `-t`. Pure; the command's main thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from probe.base.errors import UsageError

ENDPOINT_OPTIONS = ("-t", "--endpoint")


def rewrite(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """The words with `-t` before the endpoint; raises `UsageError` for an unknown command.

    Words after the command are left alone.
    """
    position = 0
    named = False
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        takes_value = words[position] in ENDPOINT_OPTIONS
        named = named or takes_value or words[position].startswith(("-t", "--endpoint="))
        position += 2 if takes_value else 1
    options, rest = list(words[:position]), list(words[position:])
    if not rest or rest[0] in commands:
        return options + rest
    if named:
        raise _no_command(rest[0], commands)
    endpoint, rest = rest[0], rest[1:]
    if not rest or (rest[0] not in commands and rest[0] != "--help"):
        raise _no_command_after(endpoint, rest, commands)
    return [*options, "-t", endpoint, *rest]


def _near(word: str, commands: Collection[str]) -> list[str]:
    return difflib.get_close_matches(word, list(commands), n=2)


def _listed(commands: Collection[str]) -> str:
    return f"Commands: {', '.join(commands)}."


def _no_command(word: str, commands: Collection[str]) -> UsageError:
    near = _near(word, commands)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"no such command: {word!r}", hint=meant + _listed(commands))


def _no_command_after(endpoint: str, rest: Sequence[str], commands: Collection[str]) -> UsageError:
    if rest and not rest[0].startswith("-"):
        near_word, near_endpoint = _near(rest[0], commands), _near(endpoint, commands)
        if near_endpoint and not near_word:
            return _no_command(endpoint, commands)
        return _no_command(rest[0], commands)
    near = _near(endpoint, commands)
    if near:
        return _no_command(endpoint, commands)
    return UsageError(
        f"{endpoint!r} is taken as an endpoint, but no command follows",
        hint=f"For example `probe {endpoint} backtrace`. {_listed(commands)}",
    )
