"""Redaction of shown variables: secrets are removed, everything else is unchanged."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.base.redaction import LONGEST_VALUE, REDACTED, redact, secret_name, shown

SECRET_NAMES = (
    "password", "PASSWORD", "db_password", "userPassword", "passwd", "pwd", "secret", "client_secret",
    "clientSecret", "AWS_SECRET_ACCESS_KEY", "token", "hf_token", "HF_TOKEN", "accessToken", "auth_token",
    "refresh_token", "api_key", "apiKey", "apikey", "OPENAI_API_KEY", "openai-api-key", "access_key",
    "aws_access_key_id", "credential", "credentials", "auth", "Authorization", "cookie", "session_cookie",
    "private_key", "privateKey", "ssh_key", "session_id", "sessionId", "jwt", "_password", "__token",
    "wandb_api_key", "passphrase", "connection_string", "x-api-key", "tokens_secret", "github_token",
)
INNOCENT_NAMES = (
    "tokens", "tokenizer", "n_tokens", "num_tokens", "token_ids", "token_id", "eos_token", "pad_token_id",
    "bos_token", "max_token_len", "token_type_ids", "next_token", "tokens_per_step", "special_tokens",
    "tokenized", "author", "authors", "key", "keys", "key_padding_mask", "query_key_value", "secretary",
    "passes", "compass", "self", "x", "loss", "model", "batch", "session", "step_id", "public_key_len",
    "cookiecutter", "bypass", "monkey", "keyboard", "n_heads", "access", "api", "idx", "token_embeddings",
    "prev_token", "token_mask", "", "_", ".0",
)
LETTERS = string.ascii_letters + string.digits
SHAPES = st.one_of(
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map("AKIA{}".format),
    *(
        st.text(LETTERS, min_size=20, max_size=60).map(f"{start}{{}}".format)
        for start in ("ghp_", "gho_", "github_pat_", "hf_", "sk-", "sk-proj-", "sk-ant-api03-", "glpat-")
    ),
    st.text(string.digits, min_size=10, max_size=30).map("xoxb-{}".format),
    st.tuples(*[st.text(LETTERS, min_size=10, max_size=30)] * 3).map(lambda parts: "eyJ" + ".".join(parts)),
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert secret_name(name)
    assert shown(name, "'correct horse'") == REDACTED
    assert "correct" not in redact(f"{{'{name}': 'correct horse', 'lr': 0.1}}")


@pytest.mark.parametrize("name", INNOCENT_NAMES)
def test_what_only_sounds_like_a_secret_is_shown(name: str) -> None:
    assert not secret_name(name)
    assert shown(name, "[1, 2, 3]") == "[1, 2, 3]"
    assert redact(f"{{'{name}': 'cat'}}") == f"{{'{name}': 'cat'}}"


@given(SHAPES, st.text(" ,;:'\"()[]{}=\n", max_size=5), st.text(" ,;:'\"()[]{}\n", max_size=5))
def test_a_secret_is_known_by_its_shape_wherever_it_stands(secret: str, before: str, after: str) -> None:
    for text in (f"{before}{secret}{after}", f"is {secret} it", f"['{secret}']", f"Key(value='{secret}')"):
        assert secret not in redact(text)
        assert secret[10:] not in redact(text), "not even its end"


@given(SHAPES, st.integers(18, 60), st.sampled_from(["...", "…"]))
def test_a_secret_that_the_tool_cut_short_is_known_still(secret: str, length: int, mark: str) -> None:
    cut = secret[:length]
    assert cut[14:] not in redact(f"'{cut}{mark}") or not cut[14:]


@given(
    st.sampled_from(SECRET_NAMES), st.text(LETTERS + " !$%&/()=?*#.,;:", min_size=12, max_size=40),
    st.sampled_from(["'", '"', "b'"]),
)
def test_what_stands_under_a_secret_key_goes_and_its_neighbours_stay(
    name: str, value: str, quote: str
) -> None:
    end = quote[-1]
    for text in (
        f"{{'{name}': {quote}{value}{end}, 'batch': 32}}",
        f'{{"{name}": {quote}{value}{end}, "batch": 32}}',
        f"{{'deep': {{'{name}': {quote}{value}{end}}}, 'batch': 32}}",
    ):
        found = redact(text)
        assert value not in found
        assert "batch" in found and "32" in found


@given(st.sampled_from(["password", "token", "apiKey"]), st.text(LETTERS, min_size=12, max_size=40))
def test_a_cut_repr_hides_what_has_no_end(name: str, value: str) -> None:
    for start in (f"{{'{name}': '", f'{{"{name}": "', f"C({name}='", f"{{'{name}': ['x', '", f"{name}="):
        text = start + value
        assert value not in redact(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://me:hunter2@db.internal:5432/runs", "hunter2"),
        ("https://user:p%40ss@host/path?x=1", "p%40ss"),
        ("'redis://:hunter2@cache:6379'", "hunter2"),
        ("https://hf_user:secretpart@huggingface.co/repo", "secretpart"),
        ("https://s3/x?X-Amz-Signature=deadbeefdeadbeef&b=1", "deadbeef"),
        ("https://host/x?token=deadbeefdeadbeef&b=1", "deadbeef"),
        ("{'Authorization': 'Bearer abc.def-ghi'}", "abc.def"),
        ("headers: Bearer abcdefghijk, other", "abcdefghijk"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpw"),
        ("Config(lr=0.1, password='hunter2', seed=3)", "hunter2"),
        ("Namespace(api_key='hunter2', batch=3)", "hunter2"),
        ("--password=hunter2 --lr=1", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\\nMIIEow\\n-----END RSA PRIVATE KEY-----", "MIIEow"),
        ("'-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1", "b3Blb"),
        ("{'password': 12345678}", "12345678"),
        ("{'secrets': ['hunter2', 'hunter3']}", "hunter3"),
        ("{'auth': ('me', 'hunter2')}", "hunter2"),
        ("environ({'HF_TOKEN': 'whatever', 'HOME': '/root'})", "whatever"),
        ("[('password', 'hunter2')]", "hunter2"),
        ("{'token': SecretStr('hunter2'), 'a': 1}", "hunter2"),
        ("{'token': b'hunter2'}", "hunter2"),
        (repr(json.dumps({"password": "hunter2", "lr": 1})), "hunter2"),
        (repr(repr({"password": "hunter2's", "lr": 1})), "hunter2"),
        ('"' + json.dumps({"password": "hunter2", "lr": 1}).replace('"', '\\"') + '"', "hunter2"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "A12345"),
    ],
)
def test_a_secret_within_a_value_is_replaced(text: str, secret: str) -> None:
    found = redact(text)
    assert secret not in found and REDACTED in found


@pytest.mark.parametrize(
    "text",
    [
        "tensor([0.1000, 0.2000])", "{'lr': 0.1, 'betas': (0.9, 0.999)}", "'/data/imagenet/train'",
        "<torch.nn.Linear at 0x7f00>", "https://huggingface.co/datasets/x", "'user@example.com'",
        "{'input_ids': [101, 2023], 'token_type_ids': [0, 0]}", "Tokenizer(size=50257, eos_token='</s>')",
        "'sk-learn'", "'the bearer of news'", "range(0, 10)", "''", "None", "{'password': None}", "'a=b; c'",
        "{'api_key': True}", "'hf_model'", "b'\\x00\\x01'", "'eyJ'", "'basic block'",
    ],
)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text
    assert shown("value", text) == text


@given(st.text(max_size=500), st.text(max_size=20))
def test_any_text_can_be_shown_and_is_short(value: str, name: str) -> None:
    assert len(shown(name, value)) <= LONGEST_VALUE


@given(st.one_of(st.text(max_size=200), SHAPES))
def test_what_has_been_redacted_stays_as_it_is(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize(
    "piece",
    [
        "'password': '", "'password': [", "password=", "eyJ.", "a://", "\\", "'", '"', "a=", "{'a': ",
        "-----BEGIN PRIVATE KEY-----", "Bearer ", "\\'password\\': \\'", "('token', ",
    ],
)
def test_a_long_value_takes_no_long_time(piece: str) -> None:
    """All patterns run in linear time: a quadratic one would take minutes here."""
    redact(piece * (100_000 // len(piece)))
