from __future__ import annotations

from inspect import signature

import pytest

from probe.base.errors import UsageError
from probe_cli.command_group import command_group
from probe_cli.command_table import COMMANDS, INSTEAD, SAME_AS, VOCABULARY, module_of
from probe_cli.core.arguments import endpoint_after, guesses, read
from probe_cli.core.parameters import parameters_of, plain_values

HARMLESS = (
    "top", "step", "steps", "shop", "tap", "state", "start", "stats", "stack", "detail", "details", "batch",
    "search", "match", "cause", "parse", "because", "use", "result", "results", "assume", "prone", "run",
    "under", "until", "loss", "lrs", "chip", "lip", "cli", "clock", "point", "checkpoints", "reaction",
    "fractions", "skip", "spike", "scale", "guard", "tune", "atach", "attahc", "attach-now", "pruned-model",
    "spot", "opts", "tops",
)
"""Words that somebody types who wants to look."""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], []),
        (["ps"], ["ps"]),
        (["4242", "query", "SELECT 1"], ["-t", "4242", "query", "SELECT 1"]),
        (["gpt/1", "backtrace", "--all-threads"], ["-t", "gpt/1", "backtrace", "--all-threads"]),
        (["node1:8080", "eval", "-f", "x.py"], ["-t", "node1:8080", "eval", "-f", "x.py"]),
        (["-t", "4242", "query", "ps"], ["-t", "4242", "query", "ps"]),
        (["--endpoint=4242", "ps"], ["--endpoint=4242", "ps"]),
        (["-t", "query", "query", "SELECT 1"], ["-t", "query", "query", "SELECT 1"]),
        (["query", "query"], ["query", "query"]),
        (["run", "python", "train.py", "-t", "3"], ["run", "python", "train.py", "-t", "3"]),
        (["--help"], ["--help"]),
        (["4242", "--help"], ["-t", "4242", "--help"]),
        (["--version"], ["--version"]),
        (["4242"], ["-t", "4242"]),
        (["gpt"], ["-t", "gpt"]),
        (["4242", "bt"], ["-t", "4242", "backtrace"]),
        (["summary", "query", "SELECT 1"], ["-t", "summary", "query", "SELECT 1"]),
        (["launch", "query"], ["run", "query"]),
        (["help"], ["--help"]),
        (["help", "ls"], ["ps", "--help"]),
    ],
)
def test_the_first_word_that_is_no_command_is_the_endpoint(words: list[str], meant: list[str]) -> None:
    assert read(words, VOCABULARY).words == meant


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["4242", "qurey", "SELECT 1"], "'qurey'", "Did you mean `probe 4242 query`?"),
        (["qurey", "SELECT 1"], "'qurey'", "Did you mean `probe query`?"),
        (["qurey", "4242"], "'qurey'", "Did you mean `probe 4242 query`?"),
        (["-t", "4242", "backtrac"], "'backtrac'", "Did you mean `probe 4242 backtrace`?"),
        (["backtrac"], "'backtrac'", "Did you mean `probe backtrace`?"),
        (["4242", "--all-threads"], "no command follows", "`probe 4242 backtrace`"),
        (["4242", "zzz"], "'zzz'", "All commands: `probe --help`."),
        (["4242", "stpo"], "'stpo'", "Did you mean `probe 4242 stop`?"),
        (["4242", "loss"], "'loss'", "`probe 4242 diagnose loss`"),
        (["4242", "SELECT 1"], "'SELECT 1'", "`probe 4242 query"),
        (["4242", "print(1)"], "'print(1)'", "`probe 4242 eval CODE`"),
        (["train.py", "--epochs"], "'train.py'", "`probe run python train.py`"),
    ],
)
def test_a_word_that_is_no_command_is_answered_with_what_to_type(
    words: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(words, VOCABULARY)
    assert message in str(caught.value) and hint in caught.value.hint
    assert caught.value.hint.count("`probe") <= 4, "three guesses and --help"


def test_no_harmless_word_is_answered_with_a_command_that_changes_the_job() -> None:
    for word in HARMLESS:
        assert not VOCABULARY.acting.intersection(guesses(word, VOCABULARY)), word
    assert guesses("puase", VOCABULARY) == ["pause"], "one slip of a long word is understood"
    assert "stop" in VOCABULARY.acting and "detach" in VOCABULARY.acting and "ps" not in VOCABULARY.acting


def test_other_words_run_no_command_that_they_do_not_name() -> None:
    assert set(SAME_AS.values()) <= set(COMMANDS) and not set(SAME_AS) & set(COMMANDS)
    assert not VOCABULARY.acting.intersection(SAME_AS.values())
    assert not set(INSTEAD) & {*COMMANDS, *SAME_AS}


@pytest.mark.parametrize(
    ("rest", "most", "place"),
    [
        (["4242"], 0, 0), (["train", "--native"], 0, 0), (["--format", "json", "train"], 0, 2),
        (["--format=json", "train"], 0, 1), (["0.5"], 0, None), (["1e-4"], 0, None),
        (["7", "SELECT 1"], 1, 0), (["train", "SELECT 1"], 1, 0), (["SELECT 1"], 1, None), (["7"], 1, 0),
        (["-"], 1, None),
        (["--", "-x", "y"], 1, 1), (["a", "b", "c"], float("inf"), None), ([], 0, None), ([""], 0, None),
    ],
)
def test_an_endpoint_after_the_command_is_the_argument_too_many(
    rest: list[str], most: float, place: int | None
) -> None:
    assert endpoint_after(rest, {"--format"}, most, str.isdigit) == place


PLAIN = (
    "ps", "ps --all --format=json", "query", "query SELECT_1", "query -",
    "query -f x.sql --limit 3 --timeout 0.5", "query SELECT_1 --format csv -o out.csv --limit=1_000",
    "query --limit 2 --limit 3", "query --output=-", "backtrace --native --all-threads --json",
    "eval 1 --wait 1e1 --at-step", "eval --file=look.py", "diagnose", "diagnose loss --all --exit-code",
    "diagnose --log=-", "health --watch 2 --format json",
    "fleet /shared/probe query SELECT_1 --job a --job=b --limit 5", "fleet s3://b/p runs r1 r2 --since 7d",
)
NOT_PLAIN = (
    "ps --al", "ps --all=yes", "ps -a", "ps 7", "query --limit 0", "query --limit x", "query --limit",
    "query --limit --all", "query --format xml", "query -fx.sql", "query -- SELECT_1", "query a b",
    "query -x", "query --help", "health --watch nan", "fleet /shared/probe", "fleet /shared/probe ask",
)


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_the_same_as_to_typer(line: str) -> None:
    name, *rest = line.split()
    declared = parameters_of(module_of(name).command)
    assert declared is not None
    values = plain_values(declared, rest)
    assert values is not None
    given = command_group().get_command(None, name).make_context(name, list(rest)).params
    # Several values are a tuple until typer calls the command, then a list, or None without any.
    meant = {key: (list(one) or None) if type(one) is tuple else one for key, one in given.items()}
    unsaid = signature(module_of(name).command).parameters
    assert meant == {key: values.get(key, unsaid[key].default) for key in meant}
    assert all(type(value) is type(meant[key]) for key, value in values.items())


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_a_line_with_a_mistake_is_left_to_typer(line: str) -> None:
    name, *rest = line.split()
    declared = parameters_of(module_of(name).command)
    assert declared is not None
    assert plain_values(declared, rest) is None
