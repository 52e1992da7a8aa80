"""Tokens of the TCP listener: one for each role, in files that only their owner can read.

Called when the server starts, and on its threads. Standard library only.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from probe.base.errors import SettingInvalid
from probe.base.settings import Settings
from probe.recording import places
from probe.server.runtime.access import OPERATOR, VIEWER

_SHORTEST_TOKEN = 43
"""Characters: 256 bits in base64."""


def load_tokens(settings: Settings, directory: Path) -> dict[str, str]:
    """The token of each TCP role. Raises `SettingInvalid`, also when both are equal."""
    tokens = {
        OPERATOR: load_token(settings.token_file, directory / "token"),
        VIEWER: load_token(settings.viewer_token_file, directory / "token.viewer"),
    }
    if tokens[OPERATOR] == tokens[VIEWER]:
        raise SettingInvalid(
            "the viewer's token equals the operator's, so viewers could act on jobs",
            hint="Name another file in PROBE_VIEWER_TOKEN_FILE, or unset it: one is created in PROBE_DIR.",
        )
    return tokens


def load_token(named: str, usual: Path) -> str:
    """The token in the file that a setting names, or in the usual one, which is created if missing.

    Raises `SettingInvalid` when others can read the file, or the token is too short.
    """
    path = Path(named) if named else usual
    if not named and not path.exists():
        places.write_whole(path, secrets.token_urlsafe(32).encode() + b"\n")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise SettingInvalid(f"the token file {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SettingInvalid(f"the token file {path} is not a regular file")
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
            raise SettingInvalid(
                f"the token file {path} can be read by others",
                hint=f"Run chmod 600 {path}, and change the token.",
            )
        token = file.read(4096).strip()
    if len(token) < _SHORTEST_TOKEN or not re.fullmatch(r"[A-Za-z0-9_\-+/=.]+", token):
        raise SettingInvalid(
            f"the token in {path} is too short, or has characters that a token cannot have",
            hint="Create one with python -c 'import secrets; print(secrets.token_urlsafe(32))'.",
        )
    return token
