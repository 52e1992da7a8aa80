"""One run of the command: its environment, its outputs, the endpoint that was named.

Made by `main`, handed to every command, so that a test can run the command with
its own environment, streams and transport. The command's main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from probe.base.errors import ServerUnavailable, UsageError
from probe.base.settings import Settings
from probe_cli.core import transport as transports
from probe_cli.core.endpoints import Address, parse
from probe_cli.core.terminal import Output, escape_controls

SPARE_S = 10.0
"""How much longer than the server's own deadline the command waits for its answer."""
PATIENCE_S = 60.0
"""A deadline that the server may have when the command names none."""


class Session:
    """What a command needs: `settings`, `address`, `ask`, `out`, `err`, `input`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        out: TextIO,
        err: TextIO,
        stdin: TextIO,
        dispatch: Callable[[Sequence[str], Session], int],
        transport: transports.Transport | None = None,
    ) -> None:
        self.environ = environ
        self.out = Output(out, environ)
        self.err = Output(err, environ)
        self.input = stdin
        self.dispatch = dispatch
        """Runs the command that words are, in a session."""
        self.named = ""
        self._settings: Settings | None = None
        self._transport = transport

    @property
    def settings(self) -> Settings:
        """Settings of this environment, read at first use; raises `SettingInvalid`."""
        if self._settings is None:
            self._settings = Settings(self.environ)
        return self._settings

    @property
    def has_own_transport(self) -> bool:
        """Whether questions travel over a transport that was handed in."""
        return self._transport is not None

    @property
    def address(self) -> Address:
        """Address of the endpoint that was named, else of PROBE_ENDPOINT, else of the only process."""
        return parse(self.named or self.settings.endpoint, self.settings)

    def connect(self, wait_s: float | None = None) -> None:
        """Find the server, or start it and wait up to `wait_s`; raises `ServerUnavailable`.

        Nothing has been asked when this raises."""
        if self._transport is None:
            self._transport = transports.open_transport(self.address, self.settings, wait_s)

    def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The server's answer to one question.

        `timeout_s` is the deadline asked of the server; None leaves it to the
        server. Entries of `body` that are None are left out.
        """
        sent = None if body is None else {name: value for name, value in body.items() if value is not None}
        if sent is not None:
            transports.check_size(sent)
        if self._transport is None:
            self.connect()
        assert self._transport is not None
        wait_s = max(PATIENCE_S, self.settings.query_timeout_s) if timeout_s is None else timeout_s
        target = transports.target(path, parameters or {})
        answer = self._transport.ask(method, target, sent, wait_s + SPARE_S)
        if not isinstance(answer, dict):
            raise ServerUnavailable(f"{path} was answered with something else than an object")
        return answer

    def no_endpoint(self, command: str) -> None:
        """Raise `UsageError` when an endpoint was named for a command that is about this machine."""
        if self.named:
            raise UsageError(
                f"`{command}` is about this machine and takes no endpoint", hint=f"Run `probe {command}`."
            )

    def note(self, text: str) -> None:
        """Say something that is not the result: one line on stderr."""
        self.err.line(f"probe: {escape_controls(text)}")

    def read_text(self, argument: str | None, file: str | None, what: str) -> str:
        """SQL or a snippet: the argument, the file, or stdin for `-` or nothing; raises `UsageError`."""
        if argument is not None and file is not None:
            raise UsageError(f"both {what} and -f were given", hint="Give one of them.")
        try:
            if file is not None and file != "-":
                text = Path(file).read_text(encoding="utf-8")
            elif argument is None or argument == "-":
                if self.input.isatty():
                    self.note(f"reading {what} from the terminal; Ctrl-D ends it")
                text = self.input.read()
            else:
                text = argument
        except OSError as error:
            raise UsageError(
                f"cannot read {file}: {error.strerror}", hint="Name a text file with -f."
            ) from None
        except UnicodeDecodeError:
            raise UsageError(
                f"{file or 'stdin'} is not UTF-8 text", hint="Name a text file with -f."
            ) from None
        if not text.strip():
            raise UsageError(f"no {what} given", hint="Give it as an argument, with -f FILE, or on stdin.")
        return text
