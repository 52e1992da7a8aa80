"""Parsing endpoints: which server, over which transport, for which process.

`FORMS` lists the syntax. Standard library only; the command's main thread.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from probe.base.errors import EndpointUnknown, UsageError
from probe.base.settings import Settings
from probe.recording import places

_TCP = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.%]+\]|[^/:\[\]]+):(\d{1,5})(?:/(.*))?$", re.DOTALL)
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")

FORMS: tuple[tuple[str, str], ...] = (
    ("", "the only live process"),
    ("PID", "a process on this machine"),
    ("JOB, JOB/RANK", "a job by name, or one of its ranks; JOB@FOLDER if two folders use the name"),
    ("/PATH, ./PATH", "a recording folder"),
    ("X.tar.zst, X.tar.gz, X.tar.zst/RANK", "a bundle written by `bundle`, or one of its ranks"),
    ("DIR/server.sock, DIR/agents/PID.sock", "the server of another PROBE_DIR, or one of its processes"),
    ("ANY.sock, ANY.sock/JOB/RANK", "any server listening there, e.g. a forwarded socket"),
    (
        "HOST:PORT, HOST:PORT/JOB/RANK",
        "a server over TCP, with its token; uses TLS except for loopback or with PROBE_INSECURE_NO_TLS=1; "
        "a prefix http:// or https:// overrides that",
    ),
)
"""(syntax, meaning); TLS by default so that no token is sent in clear text by accident."""


class Address(NamedTuple):
    """The server (that of `directory`, behind the socket, or at the URL), and the `endpoint` there."""

    endpoint: str
    directory: Path | None = None
    socket: Path | None = None
    url: str = ""

    @property
    def local_pid(self) -> tuple[Path, int] | None:
        """(directory, pid) of an endpoint that is a PID on this machine."""
        pid = self.endpoint.strip()
        if self.directory is None or not (pid.isascii() and pid.isdigit()):
            return None
        return self.directory, int(pid)


def parse(text: str, settings: Settings) -> Address:
    """The address in `text`; raises `UsageError`, or `EndpointUnknown` for a missing folder. A bundle is
    unpacked on its first use; see `bundle.opening` for the errors."""
    if text.partition(".tar.")[1]:
        from probe.bundle import opening

        bundle = opening.named(text)
        if bundle is not None:
            return Address(str(opening.unpacked(*bundle, settings)), directory=places.home(settings))
    if text.startswith(("http://", "https://")) or not text.startswith(("/", ".", "~")):
        found = _TCP.match(text)
        if found:
            return _tcp(found, settings)
        if text.startswith(("http://", "https://")):
            raise UsageError(f"invalid endpoint {text!r}", hint="Write http://HOST:PORT/ENDPOINT.")
    if text.endswith(".sock") or ".sock/" in text:
        return _socket(text)
    if _is_recording(text):
        path = Path(os.path.abspath(os.path.expanduser(text)))
        if not path.is_dir():
            raise EndpointUnknown(f"no such folder: {path}")
        return Address(str(path), directory=places.home(settings))
    return Address(text, directory=places.home(settings))


def names_agent(word: str, address: Address) -> bool:
    """Whether a word is the PID of a process with an agent on this machine, not just a number."""
    if address.directory is None or not (word.isascii() and word.isdigit()):
        return False
    return (address.directory / "agents" / f"{word}.sock").exists()


def _is_recording(text: str) -> bool:
    """`job/1` is a rank, unless it is the path of a recording."""
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return True
    return "/" in text and os.path.exists(os.path.join(text, "meta.json"))


def _socket(text: str) -> Address:
    head, _, endpoint = text.partition(".sock")
    path = Path(os.path.abspath(os.path.expanduser(head + ".sock")))
    endpoint = endpoint.lstrip("/")
    if path.name == "server.sock":
        return Address(endpoint, directory=path.parent)
    if path.parent.name == "agents" and path.stem.isdigit():
        return Address(path.stem, directory=path.parent.parent)
    return Address(endpoint, socket=path)


def _tcp(found: re.Match[str], settings: Settings) -> Address:
    scheme, host, port, endpoint = found.groups()
    if not 0 < int(port) < 65536:
        raise UsageError(f"invalid port {port}", hint="Ports range from 1 to 65535.")
    if not scheme:
        plain = settings.insecure_no_tls or (is_loopback(host) and not settings.tls_certificate)
        scheme = "http" if plain else "https"
    return Address(endpoint or "", url=f"{scheme}://{host}:{port}")


def is_loopback(host: str) -> bool:
    """Whether `host` (as written in an endpoint) is certainly this machine."""
    return _LOOPBACK.fullmatch(host.lower()) is not None
