"""The Python prompt of `probe eval`: each input is one snippet, classified and supervised like any other.

Runs in the command's main thread.
"""

from __future__ import annotations

import builtins
import codeop
import keyword
import re
from collections.abc import Callable, Iterator

from probe.base.errors import ProbeError
from probe_cli.core.session import Session
from probe_cli.prompts.line_reader import LineReader

Names = Callable[[str], list[str]]
"""Completions after an expression and a dot; for an empty expression, the names that a snippet sees."""
_CHAIN = re.compile(r"(?:([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.)?([A-Za-z_]\w*)?$")
_LEAVE = ("exit", "quit", "exit()", "quit()")


class PythonPrompt:
    """Runs snippets until Ctrl-D. `run_snippet` runs one and writes its answer."""

    def __init__(self, session: Session, run_snippet: Callable[[str], object], names: Names) -> None:
        self._session = session
        self._run_snippet = run_snippet
        self._names = names
        self._reader = LineReader(session, "python", is_whole, self.candidates)

    def run(self) -> None:
        """Run until Ctrl-D."""
        session = self._session
        job = session.named or "the only live process"
        session.err.line(f"Python in {job}; each input is a separate snippet; names are not kept.")
        session.err.line("Code that changes the job runs between steps. Ctrl-C stops waiting, Ctrl-D leaves.")
        for text in self._reader.inputs(">>> "):
            if text.strip() in _LEAVE:
                return
            try:
                self._run_snippet(text.rstrip())
            except KeyboardInterrupt:
                session.note("stopped waiting; the snippet may still run")
            except ProbeError as error:
                session.report(error)
            session.out.stream.flush()
            session.err.stream.flush()

    def candidates(self, before: str) -> Iterator[tuple[str, int]]:
        """Complete names in the job, attributes of dotted names, keywords."""
        match = _CHAIN.search(before)
        if match is None:
            return
        of, word = match[1] or "", match[2] or ""
        found = self._names(of)
        if not of:
            found = [*found, *keyword.kwlist, *(name for name in dir(builtins) if not name.startswith("_"))]
        for name in sorted(dict.fromkeys(found)):
            if name.startswith(word) and name != word and (word or not name.startswith("_")):
                yield name, len(word)


def is_whole(text: str) -> bool:
    """Whether Enter runs the text, by Python's own rule: an empty line ends a block."""
    try:
        return codeop.compile_command(text.rstrip(" \t"), "<probe eval>", "single") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True  # the job reports the error
