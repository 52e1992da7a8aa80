"""Session: environment, streams, endpoint and transport of one run of the command.

`main` creates it and passes it to every command, so that tests can supply their own
environment, streams and transport. Runs in the command's main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from probe.base.errors import ProbeError, UsageError
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.core.wait_line import beside, waiting

if TYPE_CHECKING:  # `probe --help` sends no request and must not wait for these imports
    from probe.base.settings import Settings
    from probe.client.connection import Connection
    from probe.client.endpoints import Address
    from probe.client.transport import Transport


_DOING = {
    "/v1/diagnose": "inspecting the process, then running the checks",
    "/v1/summary": "reading the recording",
    "/v1/backtrace": "reading the stacks",
    "/v1/ranks": "querying the hosts of the job",
    "/v1/prune": "examining the recordings",
    "/v1/detach": "removing probe from the process",
    "/v1/monitor": "querying the monitor",
}
"""Text of the wait line by path; other paths get a generic one."""


class Session:
    """Everything a command needs: `settings`, `address`, `request`, `out`, `err`, `input`."""

    runs_later = False
    """Whether the command is stored and runs later, when an event happens (`monitor --on`)."""

    def __init__(
        self,
        environ: Mapping[str, str],
        out: TextIO,
        err: TextIO,
        stdin: TextIO,
        dispatch: Callable[[Sequence[str], Session], int],
        transport: Transport | None = None,
    ) -> None:
        self.environ = environ
        self.out = Output(out, environ)
        self.err = Output(err, environ)
        self.input = stdin
        self.dispatch = dispatch
        """Runs a command line in a session."""
        self.named = ""
        self._settings: Settings | None = None
        self._transport = transport
        self._brought = transport is not None

    @property
    def settings(self) -> Settings:
        """Settings of this environment, parsed on first use; raises `SettingInvalid`."""
        if self._settings is None:
            from probe.base.settings import Settings

            self._settings = Settings(self.environ)
        return self._settings

    @property
    def has_own_transport(self) -> bool:
        """Whether a transport was passed in."""
        return self._brought

    @property
    def address(self) -> Address:
        """The endpoint given, else PROBE_ENDPOINT, else the only live process."""
        from probe.client.endpoints import parse

        return parse(self.named or self.settings.endpoint, self.settings)

    @property
    def endpoint(self) -> str:
        """The endpoint of requests, see `Asker`."""
        return self.address.endpoint

    def connect(self, wait_s: float | None = None) -> None:
        """Find the server, or start it and wait up to `wait_s`; raises `ServerUnavailable`.

        No request has been sent if this raises."""
        self._transport = self._connection().open(wait_s)

    def request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Send one request and return the server's response, see `Connection.request`."""
        connection = self._connection()
        what = _DOING.get(path) or f"waiting for the server to answer {path.rpartition('/')[2]}"
        with waiting(self.err, what):
            answer = connection.request(method, path, parameters, body, timeout_s)
        self._transport = connection.open()
        return answer

    def forget_server(self) -> None:
        """Drop a server that no longer answers: the next request finds one, or starts it."""
        if not self._brought:
            self._transport = None

    def beside(self, stream: TextIO, **environ: str) -> Session:
        """A session on the same endpoint that writes to `stream` while this one draws on the terminal;
        `environ` is added to its environment."""
        brought = self._transport if self._brought else None
        found = Session({**self.environ, **environ}, stream, stream, self.input, self.dispatch, brought)
        found.named = self.named
        return found

    def begin(self, path: str, parameters: Mapping[str, str], what: str) -> Iterator[dict[str, Any]]:
        """Send a GET on its own thread; the returned iterator waits for the parts of the response,
        `{"part": …}`, and then for the response. `what`: text of the wait line."""
        import queue
        import threading
        import time

        from probe.base.isolation import capture

        self.connect()
        connection = self._connection()
        arrived: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()

        def ask() -> None:
            def put_all() -> None:
                for one in connection.follow(path, parameters):
                    arrived.put(one)

            arrived.put(capture(put_all)[1])

        threading.Thread(target=ask, name="asking", daemon=True).start()

        def parts() -> Iterator[dict[str, Any]]:
            began_s, text = time.monotonic(), what
            while True:
                with waiting(self.err, text, since_s=began_s):
                    one = arrived.get()
                if isinstance(one, BaseException):
                    raise one
                if one is None:
                    return
                if "part" in one:
                    text = f"{what}: {one['part']['judged']} of {one['part']['of']} done"
                yield one

        return parts()

    def _connection(self) -> Connection:
        from probe.client.connection import Connection

        return Connection(self.address, self.settings, self._transport)

    def no_endpoint(self, command: str) -> None:
        """Raise `UsageError` if an endpoint was given to a command that takes none."""
        if self.named:
            raise UsageError(
                f"`{command}` takes no endpoint", hint=f"Run `probe {command}`."
            )

    def report(self, error: ProbeError) -> None:
        """Write an error to stderr: what happened, and what to do next."""

        def shown(text: str) -> str:
            return escape_controls(text, "\n\t") if self.err.terminal else text

        first, *more = self._fitted(f"probe: {shown(error.message)}")
        self.err.line(self.err.style("probe:", "red") + first.removeprefix("probe:"))
        self.err.lines(more)
        if error.hint:
            self.err.line(f"  next: {shown(error.hint)}")

    def may_prompt(self) -> bool:
        """Whether a prompt can open: stdin and stdout are terminals and its library is installed; if only
        the library is missing, write a note."""
        if not (self.input.isatty() and self.out.terminal):
            return False
        from importlib.util import find_spec

        if find_spec("prompt_toolkit") is None:
            self.note("no prompt: `pip install prompt_toolkit` where probe is installed")
            return False
        return True

    def note(self, text: str) -> None:
        """Write a note to stderr, wrapped to the width of a terminal."""
        with beside(self.err):
            self.err.lines(self._fitted(f"probe: {escape_controls(text)}"))

    def _fitted(self, text: str) -> list[str]:
        """Text as lines, wrapped to the terminal's width; unchanged elsewhere."""
        width = self.err.width
        if width is None or "\n" in text or len(text) <= width:
            return [text]
        import textwrap

        return textwrap.wrap(
            text, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )

    def read_text(self, argument: str | None, file: str | None, what: str) -> str:
        """SQL or a snippet: the argument, the file, or stdin for `-` or nothing; raises `UsageError`."""
        if argument is not None and file is not None:
            raise UsageError(f"{what} and -f are mutually exclusive")
        try:
            if file is not None and file != "-":
                with open(file, encoding="utf-8") as opened:
                    text = opened.read()
            elif argument is None or argument == "-":
                if self.input.isatty():
                    self.note(f"reading {what} from the terminal; end with Ctrl-D")
                text = self.input.read()
            else:
                text = argument
        except OSError as error:
            raise UsageError(
                f"cannot read {file}: {error.strerror}", hint="Give a text file with -f."
            ) from None
        except UnicodeDecodeError:
            raise UsageError(
                f"{file or 'stdin'} is not UTF-8 text", hint="Give a text file with -f."
            ) from None
        if not text.strip():
            raise UsageError(f"no {what} given", hint="Give it as an argument, with -f FILE, or on stdin.")
        return text
