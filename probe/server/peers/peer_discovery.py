"""Candidates for a job's other hosts: from the peers file, agents' announcements and the job's environment.

Calls no host (`peer_client` does). Reads files: not on the event loop. Standard library only.
"""

from __future__ import annotations

import ipaddress
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
    """A server of the job. `url` is empty for this host, and for one that cannot be reached (`why` says why);
    `source` says how it is known; `ranks` are the ranks that it announced, if any."""

    name: str
    url: str
    source: str
    ranks: tuple[int, ...] = ()
    why: str = ""


def is_loopback(host: str) -> bool:
    """Whether `host` is certainly this machine; IPv6 addresses may be in brackets."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def url_of(text: str, settings: Settings) -> str | None:
    """The URL that `HOST:PORT` or `http[s]://HOST:PORT` means; None for anything else. The default is TLS."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or not 0 < int(found[3]) < 65536:
        return None
    plain = settings.insecure_no_tls or (is_loopback(found[2]) and not settings.tls_certificate)
    return f"{found[1] or ('http' if plain else 'https')}://{found[2].lower()}:{found[3]}"


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
                hint="Write one host per line, such as node2:7130, optionally with http:// or https://.",
            )
        found.append(Host(host_of(url), url, "peers"))
    return found


def from_recordings(
    processes: Iterable[Path], run: str, token: str, own_port: int | None, settings: Settings
) -> list[Host]:
    """Hosts of one run that were announced to the agents of this host's ranks, or derived from the job's
    environment."""
    announced: dict[str, Host] = {}
    derived: dict[str, Host] = {}
    for process in processes:
        known = announcement.read(process)
        for line in known.lines:
            host = _announced(line, run, token, settings)
            if host is not None:
                announced[host.name] = host
        for name, source in known.candidates:
            url = url_of(f"{name}:{own_port}", settings) if own_port else None
            if url is not None:
                derived.setdefault(name.lower(), Host(name, url, source))
    known_names = {name.lower() for name in announced} | {host_of(host.url) for host in announced.values()}
    return [*announced.values(), *(host for name, host in derived.items() if name not in known_names)]


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
        return Host(name, "", "store", ranks, "its server does not listen on TCP (PROBE_LISTEN)")
    if not announcement.proven(said, proof, token):
        return Host(name, "", "store", ranks, "it has another token: hosts must share PROBE_TOKEN_FILE")
    url = url_of(said.url, settings)
    if url is None:
        return Host(name, "", "store", ranks, "it announced an invalid address")
    return Host(name, url, "store", ranks)
