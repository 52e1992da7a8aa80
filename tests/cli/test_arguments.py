from __future__ import annotations

import pytest

from probe.base.errors import UsageError
from probe_cli.command_table import COMMANDS
from probe_cli.core.arguments import rewrite


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
    ],
)
def test_the_first_word_that_is_no_command_is_the_endpoint(words: list[str], meant: list[str]) -> None:
    assert rewrite(words, COMMANDS) == meant


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["4242", "qurey", "SELECT 1"], "'qurey'", "Did you mean query?"),
        (["qurey", "SELECT 1"], "'qurey'", "Did you mean query?"),
        (["-t", "4242", "backtrac"], "'backtrac'", "Did you mean backtrace?"),
        (["backtrac"], "'backtrac'", "Did you mean backtrace?"),
        (["4242"], "no command follows", "`probe 4242 backtrace`"),
        (["4242", "--all-threads"], "no command follows", "`probe 4242 backtrace`"),
        (["4242", "zzz"], "'zzz'", "Commands: ps, ranks, run"),
    ],
)
def test_an_unknown_command_names_the_near_ones(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        rewrite(words, COMMANDS)
    assert hint in caught.value.hint
