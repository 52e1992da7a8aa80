"""Reads input at a prompt: multi-line editing, a history on disk, completion.

Runs in the command's main thread. Imports prompt_toolkit, and is therefore imported only for a prompt.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.output import create_output

from probe_cli.core.session import Session

Candidates = Callable[[str], Iterable[tuple[str, int]]]
"""Maps the text before the cursor to pairs (completion, number of characters that it replaces)."""


class LineReader:
    """One prompt. `is_whole`: whether Enter submits this text instead of starting another line."""

    def __init__(
        self, session: Session, name: str, is_whole: Callable[[str], bool], candidates: Candidates
    ) -> None:
        gc.enable()  # disabled for short commands; a prompt may stay open for days
        self._session: PromptSession[str] = PromptSession(
            history=_history(session, name),
            completer=_Completer(candidates),
            complete_while_typing=False,
            multiline=Condition(lambda: not is_whole(self._session.default_buffer.text)),
            prompt_continuation=lambda width, _line, _wrapped: " " * (width - 3) + "-> ",
            input=create_input(session.input),
            output=create_output(session.out.stream),
        )

    def inputs(self, prompt: str) -> Iterator[str]:
        """Yield one input after the other until Ctrl-D. Ctrl-C only discards the current input."""
        while True:
            try:
                text = self._session.prompt(prompt)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text.strip():
                yield text


class _Completer(Completer):
    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """See prompt_toolkit."""
        for text, replaced in self._candidates(document.text_before_cursor):
            yield Completion(text, start_position=-replaced)


def _history(session: Session, name: str) -> History:
    """A history file in PROBE_DIR, which is private to the user; in memory for a remote endpoint."""
    directory: Path | None = session.address.directory
    if directory is None or not directory.is_dir():
        return InMemoryHistory()
    path = directory / f"history.{name}"
    try:
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
