"""Destinations of alerts and automatic actions: from PROBE_NOTIFY, and stored in `PROBE_DIR/monitor.json`.

The file is private (0600), because URLs contain passwords and tokens. They are passed only to the delivering
process; users see `shown`. Used on the server's event loop, files on its threads. Standard library only.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from probe.base.errors import DestinationInvalid, SettingInvalid
from probe.diagnose.finding import SEVERITIES
from probe.diagnose.states import INFO, NOTICE
from probe.recording import checked, places

_log = logging.getLogger("probe.monitor")
FILE = "monitor.json"
_VERSION = 2
MOST_DESTINATIONS = 32
_LARGEST_BYTES = 1 << 20
_LONGEST_URL = 4096
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.I)
_ROUTED = re.compile(rf"({'|'.join(SEVERITIES[1:])})=(.*)", re.S)
_WITH_HOST = frozenset({
    "json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos", "ntfy", "ntfys",
    "gotify", "gotifys", "mmost", "mmosts", "rocket", "rockets", "matrix", "matrixs", "apprise", "apprises",
    "mqtt", "mqtts",
})
"""Schemes whose URLs have a host in the place where those of other schemes have a token."""


@dataclass(frozen=True)
class Destination:
    """An Apprise URL, and the minimum severity for it."""

    url: str
    least: str = NOTICE

    @classmethod
    def parse(cls, text: str) -> Destination:
        """`URL` or `SEVERITY=URL`. Raises `DestinationInvalid`, which does not repeat the URL."""
        routed = _ROUTED.fullmatch(text.strip())
        least, url = (routed[1], routed[2]) if routed else (NOTICE, text.strip())
        if len(url) > _LONGEST_URL or not url.isprintable() or not _URL.fullmatch(url):
            raise DestinationInvalid(f"not a destination URL: {shown(url)}")
        return cls(url, least)

    def wants(self, severity: str) -> bool:
        """Whether it gets messages of this severity."""
        return SEVERITIES.index(severity) >= SEVERITIES.index(self.least)

    @property
    def shown(self) -> str:
        """The URL without its secrets."""
        return shown(self.url)


def shown(url: str) -> str:
    """A URL without secrets: its scheme and, if it has one, its host."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9+.-]{0,31}", scheme, re.I):
        return "<not a URL>"
    if scheme.lower() not in _WITH_HOST:
        return f"{scheme}://…"
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return f"{scheme}://…"
    if not re.fullmatch(r"[A-Za-z0-9.:_-]{1,253}", host):
        return f"{scheme}://…"
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}{f':{port}' if port else ''}/…"


def from_setting(text: str) -> list[Destination]:
    """The destinations of PROBE_NOTIFY. Raises `SettingInvalid`."""
    try:
        return [Destination.parse(word) for word in text.split()]
    except DestinationInvalid as error:
        raise SettingInvalid(f"PROBE_NOTIFY: {error.message}", hint=error.hint) from None


@dataclass(frozen=True)
class Rule:
    """An automatic action, run when `recipe` opens an incident in `run`. `words` is how it was typed,
    `action` and `arguments` what that means."""

    run: str
    job: str
    recipe: str
    words: str
    action: str
    arguments: dict[str, Any] = field(default_factory=dict)
    now: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the rule: there is one for each run, recipe and action."""
        return self.run, self.recipe, self.action


@dataclass
class Config:
    """The content of `monitor.json`."""

    destinations: list[Destination] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)


class Store:
    """The file; read once, written as a whole at each change."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self.problem = ""
        """Why the file is not used; empty when it is, or there is none."""
        self.config = Config()
        try:
            self.config = _read(self._path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.problem = (
                f"{self._path} cannot be used, so alerts go only to PROBE_NOTIFY and there are no automatic "
                f"actions: {error}"
            )
            _log.error("%s", self.problem)

    def write(self) -> None:
        """Write the configuration. Blocks."""
        data = {"version": _VERSION, **asdict(self.config)}
        if self.problem:  # keep the unusable file for repair
            os.replace(self._path, self._path.with_name(f"{FILE}.damaged"))
            self.problem = ""
        places.write_whole(self._path, checked.sealed(FILE, data))


def _read(path: Path) -> Config:
    """The stored configuration. Raises `OSError`; `ValueError`, `KeyError` or `TypeError` if it is
    invalid."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError("it is not private, or belongs to another user")
    raw = checked.read_sealed(
        path, older=lambda facts: "version" not in facts, largest_bytes=_LARGEST_BYTES
    )
    config = Config(
        [Destination(one["url"], one["least"]) for one in raw["destinations"]],
        [Rule(**one) for one in raw["rules"]],
    )
    for one in config.destinations:
        if not isinstance(one.url, str) or one.least not in SEVERITIES:
            raise ValueError("it contains an invalid destination")
    for rule in config.rules:
        texts = (rule.run, rule.job, rule.recipe, rule.words, rule.action)
        if not all(isinstance(text, str) for text in texts) or not isinstance(rule.arguments, dict):
            raise ValueError("it contains an invalid rule")
    return config


def may_act(severity: str) -> bool:
    """Whether incidents of this severity may trigger actions: informational ones never do."""
    return SEVERITIES.index(severity) > SEVERITIES.index(INFO)
