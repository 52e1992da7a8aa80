"""Which other hosts a job may have: the peers file, what the agents were told, the job's environment.

Nothing is asked here; `everywhere` does. Reads files: not for an event loop. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from probe.base.errors import SettingInvalid
from probe.base.redaction import redact
from probe.base.settings import Settings
from probe.recording import announcement

LONGEST_FILE_BYTES = 1 << 20
MOST_HOSTS = announcement.MOST_HOSTS
_WRITTEN = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})/?")


class Host(NamedTuple):
    """A server of the job. `url` is empty for the host that was asked, and for one that cannot be asked (then
    `why` says so); `source` says how it is known; `ranks` are those it said it has, if it said."""

    name: str
    url: str
    source: str
    ranks: tuple[int, ...] = ()
    why: str = ""


def scheme_of(host: str, settings: Settings) -> str:
    """What is spoken with a host for which nothing is written: TLS, unless it was said to do without."""
    plain = settings.insecure_no_tls or (is_loopback(host) and not settings.tls_certificate)
    return "http" if plain else "https"


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine for certain."""
    return re.fullmatch(r"localhost|127(\.\d{1,3}){3}|\[?::1\]?", host.lower()) is not None


def url_of(text: str, settings: Settings) -> str | None:
    """The URL that `HOST:PORT` or `http[s]://HOST:PORT` means; None for anything else."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or not 0 < int(found[3]) < 65536:
        return None
    return f"{found[1] or scheme_of(found[2], settings)}://{found[2].lower()}:{found[3]}"


def host_of(url: str) -> str:
    """The host in a URL that `url_of` made."""
    return url.partition("://")[2].rpartition(":")[0]


def from_file(settings: Settings) -> list[Host]:
    """The hosts in PROBE_PEERS. Raises `SettingInvalid` for a file that cannot be read, or a bad line."""
    if not settings.peers:
        return []
    try:
        with open(settings.peers, encoding="utf-8", errors="replace") as file:
            text = file.read(LONGEST_FILE_BYTES)
    except OSError as error:
        where = redact(settings.peers)
        raise SettingInvalid(f"PROBE_PEERS={where} cannot be read: {error.strerror}") from None
    found: list[Host] = []
    for number, line in enumerate(text.splitlines()[:MOST_HOSTS], 1):
        written = line.partition("#")[0].strip()
        if not written:
            continue
        url = url_of(written, settings)
        if url is None:
            where, what = redact(settings.peers), redact(written)[:80]
            raise SettingInvalid(
                f"PROBE_PEERS={where}, line {number}: {what!r} is not HOST:PORT",
                hint="One host a line, such as node2:7130; http:// or https:// may stand before it.",
            )
        found.append(Host(host_of(url), url, "peers"))
    return found


def from_recordings(
    processes: Iterable[Path], run: str, token: str, own_port: int | None, settings: Settings
) -> list[Host]:
    """Hosts of one run that the agents of this host's ranks were told of, or could work out."""
    announced: dict[str, Host] = {}
    worked_out: dict[str, Host] = {}
    for process in processes:
        known = announcement.read(process)
        for line in known.lines:
            host = _announced(line, run, token, settings)
            if host is not None:
                announced[host.name] = host
        for name, source in known.candidates:
            url = url_of(f"{name}:{own_port}", settings) if own_port else None
            if url is not None:
                worked_out.setdefault(name.lower(), Host(name, url, source))
    spoken = {name.lower() for name in announced} | {host_of(host.url) for host in announced.values()}
    return [*announced.values(), *(host for name, host in worked_out.items() if name not in spoken)]


def _announced(line: str, run: str, token: str, settings: Settings) -> Host | None:
    read = announcement.read_line(line)
    if read is None or read[0].run != run:
        return None
    said, proof = read
    name = said.host[:255]
    try:
        ranks = announcement.ranks_in(said.ranks)
    except ValueError:
        ranks = ()
    if not said.url:
        return Host(name, "", "store", ranks, "its server does not answer over TCP (PROBE_LISTEN)")
    if not announcement.proven(said, proof, token):
        return Host(name, "", "store", ranks, "it holds another token: let the hosts share PROBE_TOKEN_FILE")
    url = url_of(said.url, settings)
    if url is None:
        return Host(name, "", "store", ranks, "the address that it gave is none")
    return Host(name, url, "store", ranks)
