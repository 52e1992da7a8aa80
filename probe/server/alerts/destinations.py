"""Where alerts go and what is done automatically: from PROBE_NOTIFY, and kept in `PROBE_DIR/monitor.json`.

The file is private (0600): URLs hold passwords and tokens. They are handed to the process that delivers and
shown to nobody: what people see is `shown`. Used on the server's event loop, files on its threads. Standard
library only.
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
"""Schemes whose URL names a host where others have a token."""


@dataclass(frozen=True)
class Destination:
    """A URL that Apprise delivers to, and the least severity that goes there."""

    url: str
    least: str = NOTICE

    @classmethod
    def parse(cls, text: str) -> Destination:
        """`URL` or `SEVERITY=URL`. Raises `DestinationInvalid`, which does not repeat the URL."""
        routed = _ROUTED.fullmatch(text.strip())
        least, url = (routed[1], routed[2]) if routed else (NOTICE, text.strip())
        if len(url) > _LONGEST_URL or not url.isprintable() or not _URL.fullmatch(url):
            raise DestinationInvalid(f"not the URL of a destination: {shown(url)}")
        return cls(url, least)

    def wants(self, severity: str) -> bool:
        """Whether what is so severe goes there."""
        return SEVERITIES.index(severity) >= SEVERITIES.index(self.least)

    @property
    def shown(self) -> str:
        """What people may see of it."""
        return shown(self.url)


def shown(url: str) -> str:
    """A URL without what may be secret: its scheme and, where it names one, its host."""
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
    """Done automatically: when `recipe` opens an incident in `run`, the job is asked for an action. `words`
    is how it was typed, `action` and `arguments` what that means."""

    run: str
    job: str
    recipe: str
    words: str
    action: str
    arguments: dict[str, Any] = field(default_factory=dict)
    now: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """One rule for each run, recipe and action."""
        return self.run, self.recipe, self.action


@dataclass
class Kept:
    """What `monitor.json` holds."""

    destinations: list[Destination] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)


class Store:
    """The file; read once, written whole at each change."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self.problem = ""
        """Why the file is not used; empty when it is, or there is none."""
        self.kept = Kept()
        try:
            self.kept = _read(self._path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.problem = (
                f"{self._path} is not used, so alerts go only where PROBE_NOTIFY says, and nothing is done "
                f"automatically: {error}"
            )
            _log.error("%s", self.problem)

    def write(self) -> None:
        """Keep what is there now. Blocks."""
        data = {
            "version": _VERSION, "destinations": [asdict(one) for one in self.kept.destinations],
            "rules": [asdict(one) for one in self.kept.rules],
        }
        if self.problem:  # what could not be used is kept for who wants to mend it
            os.replace(self._path, self._path.with_name(f"{FILE}.damaged"))
            self.problem = ""
        places.write_whole(self._path, checked.sealed(FILE, data))


def _read(path: Path) -> Kept:
    """What is kept. Raises `OSError`, or `ValueError`, `KeyError`, `TypeError` for what is not as written."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError("it is not private, or not ours")
    raw = checked.read_sealed(
        path, older=lambda facts: "version" not in facts, largest_bytes=_LARGEST_BYTES
    )
    kept = Kept(
        [Destination(one["url"], one["least"]) for one in raw["destinations"]],
        [Rule(**one) for one in raw["rules"]],
    )
    for one in kept.destinations:
        if not isinstance(one.url, str) or one.least not in SEVERITIES:
            raise ValueError("it holds a destination that is none")
    for rule in kept.rules:
        texts = (rule.run, rule.job, rule.recipe, rule.words, rule.action)
        if not all(isinstance(text, str) for text in texts) or not isinstance(rule.arguments, dict):
            raise ValueError("it holds a rule that is none")
    return kept


def may_act(severity: str) -> bool:
    """Whether something may be done automatically about what is so severe: never about a mere fact."""
    return SEVERITIES.index(severity) > SEVERITIES.index(INFO)
