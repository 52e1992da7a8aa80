from __future__ import annotations

import socket
from pathlib import Path

import pytest

from probe.base.errors import EndpointUnknown, TokenInvalid, UsageError
from probe.base.settings import Settings
from probe.client.endpoints import Address, parse
from probe.client.transport import read_token

HOME = Settings({"PROBE_DIR": "/home/of/probe"})


@pytest.mark.parametrize("text", ["", "4242", "gpt-small", "gpt-small/1", "a job", "résumé"])
def test_a_plain_name_is_asked_of_the_server_of_this_host(text: str) -> None:
    assert parse(text, HOME) == Address(text, directory=Path("/home/of/probe"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/d/server.sock", Address("", directory=Path("/d"))),
        ("/d/server.sock/gpt/1", Address("gpt/1", directory=Path("/d"))),
        ("/d/agents/42.sock", Address("42", directory=Path("/d"))),
        ("/d/far.sock", Address("", socket=Path("/d/far.sock"))),
        ("/d/far.sock/gpt/1", Address("gpt/1", socket=Path("/d/far.sock"))),
    ],
)
def test_a_socket_names_the_server_behind_it(text: str, address: Address) -> None:
    assert parse(text, HOME) == address


@pytest.mark.parametrize(
    ("text", "url", "endpoint"),
    [
        ("localhost:80", "http://localhost:80", ""),
        ("127.0.0.1:8080/gpt/1", "http://127.0.0.1:8080", "gpt/1"),
        ("[::1]:8080", "http://[::1]:8080", ""),
        ("node1:8080/42", "https://node1:8080", "42"),
        ("http://node1:8080/42", "http://node1:8080", "42"),
        ("https://localhost:8080", "https://localhost:8080", ""),
    ],
)
def test_tcp_beyond_this_host_is_encrypted_unless_it_says_otherwise(
    text: str, url: str, endpoint: str
) -> None:
    assert parse(text, HOME) == Address(endpoint, url=url)


def test_tls_settings_decide_where_the_endpoint_does_not() -> None:
    assert parse("node1:1", Settings({"PROBE_INSECURE_NO_TLS": "1"})).url == "http://node1:1"
    assert parse("localhost:1", Settings({"PROBE_TLS_CERTIFICATE": "c.pem"})).url == "https://localhost:1"


def test_a_path_is_a_recording_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gpt" / "1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse(str(folder), HOME).endpoint == str(folder)
    assert parse("./gpt/1", HOME).endpoint == str(folder)
    assert parse("gpt/1", HOME).endpoint == "gpt/1"
    (folder / "meta.json").touch()
    assert parse("gpt/1", HOME).endpoint == str(folder)
    with pytest.raises(EndpointUnknown, match="nowhere"):
        parse("./nowhere", HOME)


@pytest.mark.parametrize("text", ["host:0", "host:70000", "http://host", "https://"])
def test_an_endpoint_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text, HOME)


def _token(path: Path, text: str = "secret-token\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_token_of_this_host_is_read_from_the_probe_folder(tmp_path: Path) -> None:
    _token(tmp_path / "token")
    settings = Settings({"PROBE_DIR": str(tmp_path)})
    assert read_token("http://localhost:80", settings) == "secret-token"
    assert read_token("https://[::1]:80", settings) == "secret-token"
    assert read_token(f"https://{socket.gethostname()}:80", settings) == "secret-token"


def test_the_token_of_this_host_is_not_shown_to_another(tmp_path: Path) -> None:
    _token(tmp_path / "token")
    with pytest.raises(TokenInvalid, match=r"example\.org"):
        read_token("https://example.org:80", Settings({"PROBE_DIR": str(tmp_path)}))
    chosen = _token(tmp_path / "far", "far-token")
    settings = Settings({"PROBE_DIR": str(tmp_path), "PROBE_TOKEN_FILE": str(chosen)})
    assert read_token("https://example.org:80", settings) == "far-token"


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("t", 0o644, "not private"), ("t", 0o620, "not private"),
        ("", 0o600, "no token"), ("a\nb", 0o600, "no token"),
    ],
)
def test_a_token_that_others_can_read_or_that_is_none_is_refused(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    settings = Settings({"PROBE_TOKEN_FILE": str(_token(tmp_path / "token", text, mode))})
    with pytest.raises(TokenInvalid, match=said):
        read_token("https://example.org:80", settings)


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenInvalid, match="token"):
        read_token("http://localhost:80", Settings({"PROBE_DIR": str(tmp_path)}))
