"""Tokens of the TCP listener: one for each role, in a file that only its owner can read.

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
"""Characters of 256 bits in base64."""


def load_tokens(settings: Settings, directory: Path) -> dict[str, str]:
    """The token of each role that TCP knows. Raises `SettingInvalid` when both are the same one, too."""
    tokens = {
        OPERATOR: load_token(settings.token_file, directory / "token"),
        VIEWER: load_token(settings.viewer_token_file, directory / "token.viewer"),
    }
    if tokens[OPERATOR] == tokens[VIEWER]:
        raise SettingInvalid(
            "the viewer's token is the operator's, so it would let its holder act",
            hint="Name another file in PROBE_VIEWER_TOKEN_FILE, or none: one is made in PROBE_DIR.",
        )
    return tokens


def load_token(named: str, usual: Path) -> str:
    """The token in the file that a setting names, or in the usual one, made when it is not there.

    Raises `SettingInvalid` when others could have read the file or it holds too little.
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
        raise SettingInvalid(f"the token file {path} is no file")
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
            raise SettingInvalid(
                f"the token file {path} can be read by others",
                hint=f"chmod 600 {path}, and change the token.",
            )
        token = file.read(4096).strip()
    if len(token) < _SHORTEST_TOKEN or not re.fullmatch(r"[A-Za-z0-9_\-+/=.]+", token):
        raise SettingInvalid(
            f"the token in {path} is too short, or not plain text",
            hint="python -c 'import secrets; print(secrets.token_urlsafe(32))' makes a good one.",
        )
    return token
