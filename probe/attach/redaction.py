"""Secrets in the local variables of frames, replaced before anybody sees them.

Two tables: names of variables and keys whose value is nobody's business, and shapes of values that
are secrets under any name. A value is the text of a repr, maybe cut short by the tool that read it.
Pure functions; standard library only. Not complete by nature: a secret in an innocent variable that
looks like any other text stays.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"
LONGEST_VALUE = 200
"""Characters of a value that are shown."""
_LONGEST_READ = 10 * LONGEST_VALUE

_WORDS = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "apikey",
    "credential", "credentials", "creds", "auth", "authorization", "bearer", "cookie", "cookies", "jwt",
})
"""A name is secret when one of its words is one of these …"""
_PAIRS = (
    "api_key", "access_key", "private_key", "secret_key", "signing_key", "encryption_key", "auth_key",
    "account_key", "ssh_key", "session_id", "session_key", "connection_string", "amz_signature",
)
"""… or when these follow each other."""
_OF_A_TEXT = frozenset({
    "n", "num", "count", "max", "min", "len", "length", "id", "ids", "idx", "index", "type", "types", "bos",
    "eos", "pad", "unk", "sep", "cls", "mask", "special", "per", "size", "start", "end", "new", "added",
    "next", "prev", "previous", "last", "first", "current", "text", "image", "emb", "embed", "embedding",
    "embeddings", "dim", "vocab", "logits", "prob", "probs", "loss", "position", "seq", "word", "list",
})
"""Beside one of these, `token` means a piece of text that a model reads."""
_NO_SECRETS = frozenset({"PWD"})
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _long(start: str, signs: str = "A-Za-z0-9", least: int = 16) -> re.Pattern[str]:
    """A known start and what follows it: much, or less where the tool cut it short."""
    return re.compile(rf"\b(?:{start})(?:[{signs}]{{{least},}}|[{signs}]{{4,}}(?=\.\.\.|…))")


_SHAPES = (
    # PEM: to the end when the tool cut it short.
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)", re.DOTALL),
    _long("AKIA|ASIA", "0-9A-Z", 12),  # Amazon
    _long("gh[pousr]_"),
    _long("github_pat_|glpat-", r"\w-"),
    _long("hf_"),  # Hugging Face
    _long("sk-", r"\w-"),  # OpenAI, Anthropic
    _long("sk_live_|sk_test_", least=10),  # Stripe
    _long("xox[a-z]-", "A-Za-z0-9-", 8),  # Slack
    _long("AIza", r"\w-", 20),  # Google
    re.compile(r"\beyJ[\w-]{6,}(?:(?:\.[\w-]*){1,2}|(?=…))"),  # JSON web tokens
    re.compile(r"(?<=\bBearer )[\w.~+/=-]{6,}|(?<=\bBasic )[A-Za-z0-9+/=]{8,}", re.IGNORECASE),
)
_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/'\"@<]*@")
_KEY = re.compile(
    r"""(?P<quote>['"])(?P<name>[\w .-]{2,60})\\{0,9}(?P=quote)\s{0,9}:\s{0,9}"""  # 'password': …
    r"""|\((?P<quotes>['"])(?P<first>[\w .-]{2,60})(?P=quotes),\s{0,9}"""  # ('password', …)
    r"""|(?<![\w-])-{0,2}(?P<argument>[A-Za-z_][\w-]{1,60})=(?!=)"""  # password=…
)
_STRING = re.compile(
    r"""b?(?:'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$))"""
    r"""|\\{1,9}(?:['"])[^'"]*(?:['"]|$)""",  # in a string itself, as JSON is
    re.DOTALL,
)
_PLAIN = re.compile(r"[^\s,;&'\"{}\[\]()]+")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NOTHING = frozenset({"None", "True", "False", REDACTED})


def secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret; `hf_token` does, `tokenizer` does not."""
    if name in _NO_SECRETS:
        return False
    parts = [part.lower() for part in _PARTS.findall(name)]
    joined = f"_{'_'.join(parts)}_"
    if any(f"_{pair}_" in joined for pair in _PAIRS):
        return True
    found = _WORDS.intersection(parts)
    if found == {"token"} and not _OF_A_TEXT.isdisjoint(parts):
        return False
    return bool(found)


def redact(text: str) -> str:
    """The text with everything replaced that is a secret by its shape or by the key it stands under."""
    for shape in _SHAPES:
        text = shape.sub(REDACTED, text)
    return _without_keyed(_URL_USER.sub(rf"\g<scheme>{REDACTED}@", text))


def shown(name: str, value: str) -> str:
    """What may be shown of a variable: the repr without secrets, at most `LONGEST_VALUE` characters."""
    if secret_name(name):
        return REDACTED
    text = redact(value[:_LONGEST_READ])
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _without_keyed(text: str) -> str:
    kept: list[str] = []
    done = 0
    while (found := _KEY.search(text, done)) is not None:
        start = found.end()
        end = start
        if secret_name(found["name"] or found["first"] or found["argument"]):
            end = _value_end(text, start)
        secret = end > start and text[start:end] not in _NOTHING
        kept += [text[done:start], REDACTED if secret else text[start:end]]
        done = end
    return "".join([*kept, text[done:]])


def _value_end(text: str, start: int) -> int:
    """Where the repr that starts here ends; the end of the text for one that was cut short."""
    depth: list[str] = []
    at = start
    while at < len(text):
        sign = text[at]
        string = _STRING.match(text, at)
        if string is not None:
            at = string.end()
        elif sign in _CLOSING:
            depth.append(_CLOSING[sign])
            at += 1
        elif depth and sign == depth[-1]:
            depth.pop()
            at += 1
        elif depth:
            at += 1
            continue
        else:
            plain = _PLAIN.match(text, at)
            if plain is None:
                return at
            at = plain.end()
            if text[at : at + 1] in ("(", "["):  # SecretStr('…')
                continue
        if not depth:
            return at
    return at
