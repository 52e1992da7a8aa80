"""Redaction: replaces secrets in command lines, settings, exceptions and local variables.

A value is secret by the name of its variable, option or key, by its shape, or because it looks random.
Values are words of a command line or the text of a repr, maybe truncated by the tool that read it. Pure
functions; standard library only. Import it in functions: compiling the patterns takes 4 ms. It cannot be
complete: a secret under an innocent name that looks like ordinary text stays.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

REDACTED = "<redacted>"
LONGEST_VALUE = 200
"""Characters of a value that are shown."""
_LONGEST_READ = 10 * LONGEST_VALUE

_WORDS = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "apikey",
    "credential", "credentials", "creds", "auth", "authorization", "bearer", "cookie", "cookies", "jwt",
    "passwords", "passkey", "webhook", "webhooks", "authtoken", "accesstoken", "apitoken", "hftoken",
    "secretkey", "accesskey", "privatekey",
})
"""A name is secret if it contains one of these words …"""
_PAIRS = (
    "api_key", "access_key", "private_key", "secret_key", "signing_key", "encryption_key", "auth_key",
    "account_key", "ssh_key", "session_id", "session_key", "connection_string", "amz_signature",
    "wandb_key", "license_key", "master_key", "storage_key", "service_key", "shared_key",
)
"""… or one of these pairs."""
_OF_A_TEXT = frozenset({
    "n", "num", "count", "max", "min", "len", "length", "id", "ids", "idx", "index", "type", "types", "bos",
    "eos", "pad", "unk", "sep", "cls", "mask", "special", "per", "size", "start", "end", "new", "added",
    "next", "prev", "previous", "last", "first", "current", "text", "image", "emb", "embed", "embedding",
    "embeddings", "dim", "vocab", "logits", "prob", "probs", "loss", "position", "seq", "word", "list",
})
"""Next to one of these words, `token` means a token of text, not a secret."""
_ENDS = ("password", "passwd", "secret")
"""Words with these endings count too: `dbpassword`."""
_NO_SECRETS = frozenset({"PWD"})
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _long(start: str, signs: str = "A-Za-z0-9", least: int = 16) -> re.Pattern[str]:
    """A known prefix and what follows it: `least` characters, or fewer if truncated."""
    return re.compile(rf"\b(?:{start})(?:[{signs}]{{{least},}}|[{signs}]{{4,}}(?=\.\.\.|…))")


_SHAPES = (
    # PEM: to the end of the text if truncated.
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
    re.compile(r"\bhttps?://(?:hooks\.slack\.com/[a-z]+|discord(?:app)?\.com/api/webhooks)/[^\s'\"]+"),
    re.compile(r"(?<=\bBearer )[\w.~+/=-]{6,}|(?<=\bBasic )[A-Za-z0-9+/=]{8,}", re.IGNORECASE),
)
_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/'\"@<]*@")
_KEY = re.compile(
    r"""(?P<quote>['"])(?P<name>[\w .-]{2,60})\\{0,9}(?P=quote)\s{0,9}:\s{0,9}"""  # 'password': …
    r"""|\((?P<quotes>['"])(?P<first>[\w .-]{2,60})(?P=quotes),\s{0,9}"""  # ('password', …)
    r"""|\[(?P<marks>['"])(?P<item>[\w .-]{2,60})(?P=marks)\]\s{0,9}=(?!=)\s{0,9}"""  # x['password'] = …
    r"""|(?<![\w-])-{0,2}(?P<argument>[A-Za-z_][\w-]{1,60})\s{0,3}=(?!=)\s{0,3}"""  # password=…
    r"""|(?P<sign>['"]?)(?<![\w-])--?(?P<option>[A-Za-z_][\w.-]{1,60})(?P=sign)"""  # --password …
    r"""(?:,\s{0,9}|\s{1,9})(?=[^\s-])(?!['"]--)"""
    r"""|(?<![\w-])(?P<header>[A-Za-z_][\w-]{1,60}):(?![:/])[ \t]{0,9}(?=\S)"""  # Authorization: …
)
_PATH = re.compile(r"[\w.+~@/-]*$")
_KINDS = ("name", "first", "item", "argument", "option", "header")
_LINE = re.compile(r"[^'\"\r\n,;\]})]*")
_PROSE = frozenset({"token", "auth", "secret", "cookie", "credentials", "bearer"})
"""Words that occur before a colon in prose."""
_STRING = re.compile(
    r"""b?(?:'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$))"""
    r"""|\\{1,9}(?:['"])[^'"]*(?:['"]|$)""",  # escaped, as JSON in a string is
    re.DOTALL,
)
_PLAIN = re.compile(r"[^\s,;&'\"{}\[\]()]+")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NOTHING = frozenset({"None", "True", "False", REDACTED})


def secret_name(name: str) -> bool:
    """Whether the name marks a secret: `hf_token` does, `tokenizer` does not."""
    if name in _NO_SECRETS:
        return False
    parts = [part.lower() for part in _PARTS.findall(name)]
    joined = f"_{'_'.join(parts)}_"
    if any(f"_{pair}_" in joined for pair in _PAIRS):
        return True
    found = _WORDS.intersection(parts)
    if found == {"token"} and not _OF_A_TEXT.isdisjoint(parts):
        return False
    return bool(found) or any(part.endswith(_ENDS) for part in parts)


def redact(text: str) -> str:
    """The text with everything replaced that is secret by its shape or its key."""
    for shape in _SHAPES:
        text = shape.sub(REDACTED, text)
    text = _without_random(text, _ANY_HASH)
    return _without_keyed(_URL_USER.sub(rf"\g<scheme>{REDACTED}@", text))


def shown(name: str, value: str) -> str:
    """A variable's repr without secrets, at most `LONGEST_VALUE` characters."""
    if secret_name(name):
        return REDACTED
    text = value[:_LONGEST_READ]
    bare = text.strip("'\"")
    text = text.replace(bare, REDACTED) if _looks_random(bare, name) else redact(text)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def command_line(words: Iterable[str]) -> list[str]:
    """A command line without words that are secret by shape, option, key or randomness."""
    safe: list[str] = []
    before, secret = "", False
    for word in words:
        secret = secret and not _OPTION.fullmatch(word)
        safe.append(REDACTED if secret and word else _word(word, before))
        option = _KEY_WORD.fullmatch(word)
        before = option["option"] or option["key"] if option else ""
        secret = secret_name(before.rpartition(".")[2])
    return safe


def settings(values: Mapping[str, str]) -> dict[str, str]:
    """Settings of probe by name, without secrets. Alert destinations keep only their schemes: the rest is
    often a token."""
    safe = {name: redact(value) for name, value in dict(values).items()}
    if "notify" in safe:
        schemes = [word.partition("://")[0] for word in values["notify"].split() if word != REDACTED]
        safe["notify"] = " ".join(f"{redact(scheme)}://{REDACTED}" for scheme in schemes)
    return safe


_OPTION = re.compile(r"--[A-Za-z][\w.-]*(?:=.*)?|-[A-Za-z]", re.DOTALL)
_KEY_WORD = re.compile(
    r"-{1,2}(?P<option>[A-Za-z_][\w.-]*)"  # --api-key X
    r"|(?P<key>[A-Za-z_]\w*(?:\.\w+)+|[A-Z][A-Z0-9]*_[A-Z0-9_]+)"  # WANDB.API_KEY X
)
_ASSIGNED = re.compile(
    r"(?P<start>[+~-]{0,2}(?P<name>[A-Za-z_][\w.@/-]*?)(?:=|:(?!//|:)\s*))(?P<value>.*)", re.DOTALL
)
_RANDOM = re.compile(r"(?<![\w/.+=-])[\w+=-]{32,512}(?![\w/.+=-])")
_AWS_SECRET = re.compile(r"(?<![\w/+.-])[A-Za-z0-9/+]{40}(?![\w/+=.-])")
_HEX = re.compile(r"(?:[0-9a-f]{32,128}|[0-9A-F]{32,128})")
_ANY_HASH = "hash"
"""In text, hexadecimal digits are more often a commit than a key."""
_HASHES = frozenset({
    "commit", "revision", "rev", "sha", "sha1", "sha256", "hash", "digest", "md5", "checksum", "uuid", "id",
    "ref", "version", "fingerprint",
})
"""Under one of these words, hexadecimal digits identify code or data, not a key."""


def _word(word: str, before: str) -> str:
    """One word of a command line, after the option `before`."""
    found = _ASSIGNED.fullmatch(word)
    name, start, value = (found["name"], found["start"], found["value"]) if found else (before, "", word)
    last = re.split(r"[./@]", name)[-1] if found else name
    if found and value and value not in _NOTHING and secret_name(last):
        return start + REDACTED
    if _looks_random(value, last):
        return start + REDACTED
    return _without_random(redact(word), last)


def _without_random(text: str, name: str) -> str:
    for shape in (_RANDOM, _AWS_SECRET):
        text = shape.sub(lambda run: REDACTED if _looks_random(run[0], name) else run[0], text)
    return text


def _looks_random(text: str, name: str) -> bool:
    """Whether a whole value looks random, and not like a word or a path."""
    if _HEX.fullmatch(text):
        return len(set(text)) > 8 and _HASHES.isdisjoint(part.lower() for part in _PARTS.findall(name))
    if not (_RANDOM.fullmatch(text) or _AWS_SECRET.fullmatch(text)):
        return False
    if text.count("-") == 4 and len(text) == 36:  # a UUID names something
        return False
    signs = [_kind(one) for one in text]
    turns = [pair for pair in pairwise(signs) if pair[0] != pair[1] and "-" not in pair]
    digits = sum("0" in pair for pair in turns)
    counts = Counter(text)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    mixed = {"0", "A", "a"} <= set(signs) and len(turns) >= len(signs) / 2
    return bits >= 3.5 and "0" in signs and (mixed or digits >= 0.17 * len(signs))


def _kind(sign: str) -> str:
    if not sign.isalnum():
        return "-"
    return "0" if sign.isdigit() else "A" if sign.isupper() else "a"


def _without_keyed(text: str) -> str:
    kept: list[str] = []
    done = 0
    while (found := _KEY.search(text, done)) is not None:
        start = found.end()
        end = start
        name = next(found[kind] for kind in _KINDS if found[kind])
        if found["header"]:
            if name not in _PROSE and secret_name(name):
                end = _header_end(text, start)
        elif secret_name(name):
            mark = _opening_quote(text, found.start()) if found["argument"] else ""
            end = _string_end(text, start, mark) if mark else _value_end(text, start)
        secret = end > start and text[start:end] not in _NOTHING
        kept += [text[done:start], REDACTED if secret else text[start:end]]
        done = end
    return "".join([*kept, text[done:]])


def _opening_quote(text: str, start: int) -> str:
    """The quote right before `'db.password=two words'`; empty without one."""
    before = _PATH.search(text[max(0, start - 80) : start])
    assert before is not None  # it may be empty
    place = start - len(before[0]) - 1
    return text[place] if place >= 0 and text[place] in "'\"" else ""


def _string_end(text: str, start: int, mark: str) -> int:
    found = text.find(mark, start)
    return len(text) if found < 0 else found


def _header_end(text: str, start: int) -> int:
    """End of the value of a header or YAML key: the end of its line or of its quote."""
    if _STRING.match(text, start):
        return _value_end(text, start)
    line = _LINE.match(text, start)
    assert line is not None  # it may be empty
    return start + len(line[0].rstrip())


def _value_end(text: str, start: int) -> int:
    """End of the repr that starts here; the end of the text if truncated."""
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
