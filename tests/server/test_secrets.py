"""Secrets of a job's command line and environment: no route tells a viewer, no file of ours keeps them."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import SERVER, Job, Place
from probe.base.redaction import REDACTED, command_line
from probe.recording import checked
from probe.recording.recording import Meta
from probe.recording.tables import TABLES
from probe.server.runtime import access
from server.beside import Writer, until
from server.test_tcp import free_port

_DRAWN = "q7Zp2Lx9Vb4Kt8Rm3Wd6Yf1Hs5Jc0Ng7Qa2Ue9"
SECRETS = [
    *(f"hunter{number}x" for number in range(24)), _DRAWN, "7f3a9c1e5b8d2046f7a1c3e5b9d80246ace13579",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "hf_abcdefghijklmnopqrst",
    "AKIAIOSFODNN7EXAMPLE",
    "sk-proj-abcdefghijklmnop", "wJa1rXUtnF3MI/K7MD3NG/bPxRf8CYz9kQpLm2Tx", "MIIEowIBAAKCAQEA",
    "T000/B000/XXXXhook",
]
S = SECRETS
WORDS = [
    "--lr", "0.1", "--api-key", S[0], f"--hf-token={S[1]}", f"password={S[2]}",
    f"db.password={S[3]} {S[4]}, {S[5]}",
    f"+trainer.logger.api_key={S[6]}", "--dsn", f"postgres://me:{S[7]}@db:5432/runs", f"WANDB_API_KEY={S[8]}",
    "-H", f"Authorization: token {S[9]}", "-H", f"X-Api-Key: {S[10]}",
    f"db={{user: me, password: {S[11]}, port: 1}}",
    f'--config={{"token": "{S[12]}", "lr": 1}}', "--secret", f"-{S[13]}",
    f"https://host/x?token={S[15]}&b=1", f"import os; os.environ['HF_TOKEN'] = '{S[16]}'; main()",
    "--run", _DRAWN, "--bearer", S[17], S[26], S[27], "--aws", S[28], f"key={S[29]}",
    f"--aws-key2={S[30]}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S[31]}\n-----END RSA PRIVATE KEY-----",
    f"https://hooks.slack.com/services/{S[32]}",
    "--batch-size", "32",
    # In the text of an exception these two cannot be told from the name of a commit and from a list of names.
    "--wandb", S[25], "WANDB.API_KEY", S[14],
]
ENVIRON = {
    "HF_TOKEN": S[18], "TORCH_HUB_TOKEN": S[19], "NCCL_X_PASSWORD": S[20],
    "TORCH_HOME": f"https://me:{S[21]}@host/x",
    "PROBE_NOTIFY": f"json://127.0.0.1:9/{S[22]}", "PROBE_NAME": f"run-{S[27]}",
    "AWS_SECRET_ACCESS_KEY": S[30],
    "PROBE_PEERS": f"/nowhere/token={S[23]}",
}


def found_in(text: str) -> list[str]:
    """The planted secrets that a text holds."""
    return [secret for secret in SECRETS if secret in text]


class Viewer:
    """Somebody with the viewer's token alone."""

    def __init__(self, place: Place, port: int) -> None:
        self._port = port
        self._token = (place.directory / "token.viewer").read_text().strip()

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, str]:
        """Status and text."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            if answer.status != 429:
                return answer.status, text
            time.sleep(0.2)  # the rate is limited by the second


def test_no_secret_of_a_job_reaches_a_viewer_or_a_file(
    place: Place, start_interpreter: Callable[..., Job]
) -> None:
    port = free_port()
    settings = {"PROBE_LISTEN": f"127.0.0.1:{port}", "REST_S": "0.2", **SERVER}
    job = start_interpreter("holds_secrets", *WORDS, **settings, **ENVIRON)
    until((place.directory / "token.viewer").exists, "the server")
    viewer = Viewer(place, port)
    told: dict[str, str] = {}
    for route, needed in access.NEEDS.items():
        method, _, path = route.partition(" ")
        if needed == access.VIEWER and method == "GET":
            for more in ("", f"?endpoint={job.pid}&all=1&findings=1&all_threads=1&workers=1"):
                told[path + more] = viewer.ask(method, path + more)[1]
    for table in TABLES:
        body = {"endpoint": str(job.pid), "sql": f"SELECT * FROM {table.full_name}"}
        status, told[table.full_name] = viewer.ask("POST", "/v1/query", body)
        assert status == 200, told[table.full_name]
    _send(job)
    job.wait_for("WAITING")
    for _ in range(20):  # until the look from outside meets the child
        told["diagnose, waiting"] = viewer.ask("GET", f"/v1/diagnose?endpoint={job.pid}")[1]
        if REDACTED in told["diagnose, waiting"]:
            break
    assert REDACTED in told["diagnose, waiting"], "the child's command line was not looked at"
    assert '"--lr", "0.1"' in told["/v1/processes"].replace('","', '", "'), "what is no secret stays"
    assert "login failed" in told["python.exceptions"] and "hyperparameter" in told["probe.facts"]
    assert {what: found_in(text) for what, text in told.items() if found_in(text)} == {}
    kept = {path: path.read_bytes().decode(errors="replace") for path in files_of(place)}
    assert any(path.name == "meta.json" for path in kept) and any(path.name == "journal.bin" for path in kept)
    assert {path: found_in(text) for path, text in kept.items() if found_in(text)} == {}


def _send(job: Job) -> None:
    assert job._process.stdin is not None
    job._process.stdin.write(b"\n")
    job._process.stdin.flush()


def files_of(place: Place) -> list[Path]:
    """All files of a place but what the job itself wrote to stderr."""
    found = [
        Path(folder, name) for top in (place.directory, place.rings) for folder, _, names in os.walk(top)
        for name in names
    ]
    return [path for path in found if not path.name.startswith("stderr-") and path.is_file()]


def test_a_recording_from_before_a_rule_is_redacted_when_it_is_read(record: Callable[..., Writer]) -> None:
    writer = record(job="gpt")
    old: dict[str, Any] = writer.meta()
    old["argv"] = ["train.py", *WORDS]
    old["settings"]["notify"] = ENVIRON["PROBE_NOTIFY"]
    (writer.folder / "meta.json").write_bytes(checked.sealed("meta.json", old))
    meta = Meta.read(writer.folder)
    assert found_in(json.dumps([meta.argv, meta.settings])) == []
    assert meta.argv[:3] == ["train.py", "--lr", "0.1"] and meta.settings["notify"] == f"json://{REDACTED}"


def test_a_command_line_keeps_what_is_no_secret() -> None:
    for words in (
        ["train.py", "--lr", "3e-4", "--max-tokens", "5", "--task", "token-classification",
            "--tokenizer=gpt2"],
        ["train.py", "model=gpt", "+data.path=/data/imagenet", "~optimizer", "trainer.max_steps=10",
            "key=value"],
        ["-m", "torch.distributed.run", "--rdzv-endpoint=host:29500", "--rdzv-id",
            "4f1c2d3e-aaaa-bbbb-cccc-1234567890ab"],
        ["x", "--revision", "0123456789abcdef0123456789abcdef01234567",
            "--data_sha256=" + "0123456789abcdef" * 4],
        ["x",
            "/root/.cache/hub/models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567/model.safetensors"],
        ["x", "checkpoint_step_00012000_lr3e-4_bs32_seed42_v2_final",
            "LlamaForCausalLM8BInstructBF16Lora64Rank"],
        ["x", "--url", "https://huggingface.co/datasets/x", "--date", "2024-01-01T00:00:00", "a:b",
            "C:\\data", "", "-"],
    ):
        assert command_line(words) == words


def test_secrets_of_a_command_line_are_not_kept() -> None:
    words = ["train.py", "--lr", "3e-4", "--api-key", "abc", "--hf_token=xyz", "--max-tokens", "5"]
    shown = command_line([*words, "--wandb-key", "ghp_0123456789abcdefghij"])
    assert shown == [
        "train.py", "--lr", "3e-4", "--api-key", "<redacted>", "--hf_token=<redacted>", "--max-tokens", "5",
        "--wandb-key", "<redacted>",
    ]


def test_what_stands_behind_the_option_of_a_secret_goes_and_the_next_option_stays() -> None:
    assert command_line(["--password", "-x9", "--auth", "--verbose", "-v", "--token", "a", "b"]) == [
        "--password", REDACTED, "--auth", "--verbose", "-v", "--token", REDACTED, "b",
    ]
    assert command_line(command_line(WORDS)) == command_line(WORDS), "what has been redacted stays as it is"
