"""Declarations of arguments and options, and a fast parser for plain command lines.

A command whose first parameter is `session` declares the others with `Option` and `Argument`. Importing
typer takes longer than most commands, so plain command lines are parsed here. Everything else (`--help`, an
error, `--`) is left to typer's click group, which `command_group` builds from the same declarations: a line
accepted here means the same there. Runs in the command's main thread; standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class Option:
    """An option with its names (`--limit`, `-l`); `min` is the smallest accepted value."""

    def __init__(
        self, *names: str, help: str, metavar: str | None = None, min: float | None = None
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.min = min


class Argument:
    """A positional argument."""

    def __init__(self, *, help: str, metavar: str) -> None:
        self.help = help
        self.metavar = metavar


class Parameter(NamedTuple):
    """One parameter of a command. `type`: the annotated type without None, `list[str]` if it can be given
    several times. `required`: it has no default."""

    name: str
    type: Any
    declared: Option | Argument
    required: bool


def parameters_of(command: Callable[..., Any]) -> list[Parameter] | None:
    """The parameters of a command; None unless all are declared with `Option` or `Argument`."""
    names = command.__code__.co_varnames[: command.__code__.co_argcount]
    if names[:1] != ("session",):
        return None
    hints = get_type_hints(command, include_extras=True)
    first_default = len(names) - len(command.__defaults__ or ())
    found = [_parameter(name, hints[name], n < first_default) for n, name in enumerate(names) if n]
    return [one for one in found if one is not None] if None not in found else None


def _parameter(name: str, hint: Any, required: bool) -> Parameter | None:
    kind, *more = get_args(_without_none(hint)) or (None,)  # Python 3.10 adds a None of its own
    if len(more) != 1 or not isinstance(more[0], (Option, Argument)):
        return None
    return Parameter(name, _without_none(kind), more[0], required)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    others = [one for one in get_args(hint) if one is not type(None)]
    return others[0] if len(others) == 1 else hint


def valued_and_most(parameters: Sequence[Parameter]) -> tuple[set[str], float]:
    """For `with_endpoint_first`: the options whose value is the next word, and the number of arguments."""
    options = [one for one in parameters if isinstance(one.declared, Option)]
    valued = {
        name for one in options if isinstance(one.declared, Option) and one.type is not bool
        for name in one.declared.names
    }
    arguments = [one for one in parameters if isinstance(one.declared, Argument)]
    return valued, float("inf") if any(one.type == list[str] for one in arguments) else len(arguments)


def plain_values(parameters: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any] | None:
    """Parse a plain command line into parameter values; None if it is not plain."""
    options = {
        name: one for one in parameters if isinstance(one.declared, Option) for name in one.declared.names
    }
    arguments = [one for one in parameters if isinstance(one.declared, Argument)]
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("-") and word != "-":
            name, given, value = word.partition("=")
            one = options.get(name)
            if one is None or (given and (one.type is bool or not name.startswith("--"))):
                return None
            if one.type is bool:
                values[one.name] = True
                continue
            if not given:
                if not left or (left[0].startswith("-") and left[0] != "-"):
                    return None
                value = left.pop(0)
        elif arguments:
            value = word
            one = arguments[0] if arguments[0].type == list[str] else arguments.pop(0)
        else:
            return None
        try:
            if one.type == list[str]:
                values.setdefault(one.name, []).append(value)
            else:
                values[one.name] = _converted(value, one)
        except ValueError:
            return None
    return values if all(one.name in values for one in parameters if one.required) else None


def _converted(text: str, one: Parameter) -> Any:
    """Convert text to the parameter's type; raises `ValueError` for a value it does not accept."""
    if get_origin(one.type) is Literal:
        if text not in get_args(one.type):
            raise ValueError
        return text
    if one.type not in (str, int, float):
        raise ValueError
    value = one.type(text)
    least = one.declared.min if isinstance(one.declared, Option) else None
    if least is not None and not value >= least:
        raise ValueError
    return value
