"""Transports to a server: anything with the method `request`.

Unix sockets use `probe.base.wire` (the common case must start fast), TCP uses httpx and the token. Tests use
their own. The command's main thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from probe.base.errors import ServerUnavailable, TokenInvalid, TooLarge, UsageError, from_dict
from probe.base.settings import Settings
from probe.client.endpoints import Address, is_loopback
from probe.recording import places

if TYPE_CHECKING:
    import httpx

    from probe.base.wire import Reply

SERVER_START_WAIT_S = 15.0
"""Wait for a server that the command had to start."""
_LONGEST_TOKEN_BYTES = 4096


class Transport(Protocol):
    """Sends a request to a server and returns its response."""

    def request(self, method: str, target: str, body: object, timeout_s: float) -> Any:
        """Decoded JSON of the response; raises the `ProbeError` it describes, or an `EndpointError`."""


@runtime_checkable
class Following(Protocol):
    """A transport that yields the parts of an answer as they arrive."""

    def follow(self, target: str, timeout_s: float) -> Iterator[Any]:
        """Decoded lines of the response to a GET, the last of which is the answer; raises as `request`."""


class UnixTransport:
    """Sends requests to the server behind a unix socket of this user."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def request(self, method: str, target: str, body: object, timeout_s: float) -> Any:
        """See `Transport`."""
        from probe.base.wire import decode_answer, exchange, request_bytes

        with self._explained(timeout_s):
            return decode_answer(exchange(self.path, request_bytes(method, target, body), timeout_s))

    def follow(self, target: str, timeout_s: float) -> Iterator[Any]:
        """See `Following`."""
        from probe.base.wire import lines

        with self._explained(timeout_s):
            for line in lines(self.path, target, timeout_s):
                yield _decoded(line)

    @contextlib.contextmanager
    def _explained(self, timeout_s: float) -> Iterator[None]:
        """Turn errors of the connection into `ServerUnavailable`."""
        try:
            yield
        except TimeoutError:
            raise ServerUnavailable(
                f"no answer from the server at {self.path} within {timeout_s:g} s: it is stopped, or this "
                "machine is overloaded",
                hint="Retry, or request less at once; `probe doctor` checks the server.",
            ) from None
        except OSError as error:
            raise ServerUnavailable(f"no server answers at {self.path}: {error.strerror or error}") from None


    def forward(
        self, method: str, target: str, body: bytes, headers: dict[str, str], timeout_s: float
    ) -> Reply:
        """Forward a request and return the answer unchanged, errors too. Raises `ServerUnavailable`."""
        from probe.base.wire import exchange_raw

        try:
            return exchange_raw(self.path, method, target, body, headers, timeout_s)
        except TimeoutError:
            raise ServerUnavailable(f"no answer from {self.path} within {timeout_s:g} s") from None
        except OSError as error:
            what = error.strerror or error
            raise ServerUnavailable(f"no server answers at {self.path}: {what}") from None


def _decoded(line: bytes | str) -> Any:
    """One line of an answer in parts."""
    import json

    try:
        found = json.loads(line)
    except ValueError:
        raise ServerUnavailable("the server's answer was cut short") from None
    if isinstance(found, dict) and set(found) == {"error"}:
        raise from_dict(found, 500)
    return found


class TcpTransport:
    """Sends requests to the server at `url`, with a token. `certificate` is a PEM file to trust, or empty."""

    def __init__(self, url: str, token: str, certificate: str) -> None:
        self.url = url
        self._token = token
        self._certificate = certificate
        self._forwarding: httpx.Client | None = None

    def request(self, method: str, target: str, body: object, timeout_s: float) -> Any:
        """See `Transport`."""
        with self._client(timeout_s) as client:
            answer = client.request(method, self.url + target, json=body)
        return _answer(answer)

    def follow(self, target: str, timeout_s: float) -> Iterator[Any]:
        """See `Following`."""
        with self._client(timeout_s) as client, client.stream("GET", self.url + target) as answer:
            if answer.status_code >= 400:
                answer.read()
                _answer(answer)
            for line in answer.iter_lines():
                yield _decoded(line)

    @contextlib.contextmanager
    def _client(self, timeout_s: float) -> Iterator[httpx.Client]:
        """A client with the token; errors of the connection become `ServerUnavailable`."""
        import httpx

        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            # trust_env=False: a proxy or .netrc of the environment must not see the token.
            with httpx.Client(
                verify=self._verify(), trust_env=False, timeout=timeout_s, headers=headers
            ) as client:
                yield client
        except httpx.TimeoutException:
            raise ServerUnavailable(f"no answer from {self.url} within {timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise ServerUnavailable(f"no server answers at {self.url}: {error}", hint=self._hint()) from None

    def forward(
        self, method: str, target: str, body: bytes, headers: dict[str, str], timeout_s: float
    ) -> Reply:
        """As that of `UnixTransport`; one client for all requests, on any thread."""
        import httpx

        from probe.base.wire import Reply

        try:
            if self._forwarding is None:
                self._forwarding = httpx.Client(verify=self._verify(), trust_env=False)
            answer = self._forwarding.request(
                method, self.url + target, content=body, timeout=timeout_s,
                headers={**headers, "Authorization": f"Bearer {self._token}"},
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerUnavailable(f"no server answers at {self.url}: {error}", hint=self._hint()) from None
        given = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(answer.status_code, given, answer.content)

    def _verify(self) -> Any:
        if not self.url.startswith("https:"):
            return False
        import ssl

        try:
            return ssl.create_default_context(cafile=self._certificate or None)
        except OSError as error:
            raise UsageError(
                f"cannot use PROBE_TLS_CERTIFICATE={self._certificate}: {error}",
                hint="Set it to the server's PEM certificate.",
            ) from None

    def _hint(self) -> str:
        if self.url.startswith("https:"):
            return (
                "The job on that host needs PROBE_LISTEN. For a private certificate set "
                "PROBE_TLS_CERTIFICATE; for a server without TLS write http:// before the host."
            )
        return (
            "The job on that host needs PROBE_LISTEN; if the server uses TLS, write https:// before the host."
        )


def _answer(answer: httpx.Response) -> Any:
    """The JSON of a whole answer; raises the error that it describes."""
    try:
        decoded = answer.json()
    except ValueError:
        raise from_dict(None, answer.status_code) from None
    if answer.status_code >= 400:
        raise from_dict(decoded, answer.status_code)
    return decoded


def open_transport(
    address: Address, settings: Settings, wait_s: float | None = None
) -> UnixTransport | TcpTransport:
    """The transport to `address`; starts the local server if none runs and waits up to `wait_s` for it.

    Raises `ServerUnavailable`, or `TokenInvalid` for TCP without a usable token.
    """
    if address.url:
        return TcpTransport(address.url, read_token(address.url, settings), settings.tls_certificate)
    if address.socket:
        return UnixTransport(address.socket)
    from probe.boot.launch import ensure_server

    directory = address.directory or places.home(settings)
    ensure_server(directory, settings, wait_s=SERVER_START_WAIT_S if wait_s is None else wait_s)
    return UnixTransport(places.server_socket(directory))


def read_token(url: str, settings: Settings) -> str:
    """The token for the server at `url`, from PROBE_TOKEN_FILE or, for this host, PROBE_DIR/token."""
    if settings.token_file:
        path = Path(settings.token_file)
    else:
        from socket import gethostname

        host = url.partition("://")[2].rpartition(":")[0]
        # The token in PROBE_DIR is for this host's server; never send it to another.
        if not is_loopback(host) and host.lower() != gethostname().lower():
            raise TokenInvalid(f"no token for {host}")
        path = places.home(settings) / "token"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid not in (os.getuid(), 0):
                mode = f"mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}"
                raise TokenInvalid(f"{path} is not private ({mode})", hint=f"chmod 600 {path}")
            token = file.read(_LONGEST_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise TokenInvalid(f"cannot read the token {path}: {error.strerror}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise TokenInvalid(f"{path} contains no token")
    return token


def target(path: str, parameters: Mapping[str, str]) -> str:
    """A request target with its query string."""
    pairs = "&".join(f"{name}={percent_encoded(value)}" for name, value in parameters.items() if value)
    return f"{path}?{pairs}" if pairs else path


def percent_encoded(text: str) -> str:
    """`text` as a value in a query string. Here because urllib.parse costs 2 ms at each start."""
    if text.isascii() and text.isalnum():
        return text
    from urllib.parse import quote

    return quote(text, safe="", errors="surrogateescape")


def check_size(body: object) -> None:
    """Raise `TooLarge` for a body that servers refuse, instead of a broken pipe."""
    import json

    from probe.base.wire import LARGEST_BODY_BYTES

    size = len(json.dumps(body))
    if size > LARGEST_BODY_BYTES:
        raise TooLarge(
            f"request too large: {size:,} bytes (limit {LARGEST_BODY_BYTES:,})",
            hint="Put large data into a file that the job can read.",
        )
