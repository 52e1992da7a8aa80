"""`probe bundle`: what is asked of a bundle is answered as by the recording, and no secret leaves with it."""

from __future__ import annotations

import collections
import gzip
import json
import os
import re
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.hung import STALL_S, noted, recorded_of, until
from harness import SERVER, Job, Place, private_place, run_probe
from probe.bundle import archive
from probe.bundle.collecting import Piece, archived_bytes, chosen
from probe.diagnose import states
from probe.diagnose.states import ALARM
from probe.recording.tables import TABLES
from ranks import running_ranks

OUTSIDE = str(Path(tempfile.gettempdir()) / f"outside-{os.getpid()}")
"""A path that an archive must not write to."""

PLANTED = {
    "module": "ghp_mOdUlEmOdUlEmOdUlEmO", "row": "hunterInRow", "field": "plain words",
    "span": "hf_sPaNsPaNsPaNsPaNsPaN", "logged": "xoxb-123456789012", "exception": "hunterInException",
}
ARGUMENT, ENVIRONMENT = "hunterInArgument", "hf_eNvIrOnMeNtEnViRoN"
SECRETS = [*PLANTED.values(), ARGUMENT, ENVIRONMENT]
PATIENT = {"PROBE_QUERY_TIMEOUT_S": "60"}
RECORDED = [table.full_name for table in TABLES if table.source in ("ring", "journal")]
SHOWN: dict[Place, list[str]] = collections.defaultdict(list)
"""What commands printed, by the place that was asked."""
OF_STEPS = ["python.steps", "python.losses", "python.torch_trace", "python.spans", "user.upload"]


def asking(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command; a query over all tables may take longer on a busy machine."""
    done = run_probe(place, *words, **PATIENT)
    SHOWN[place].append(done.stdout)
    return done


def bundle(place: Place, path: Path, endpoint: str | int, *options: str) -> str:
    """Make one; what was said on stderr."""
    done = asking(place, str(endpoint), "bundle", "-o", str(path), *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(path)) and oct(path.stat().st_mode)[-3:] == "600"
    return done.stderr


def counts(place: Place, endpoint: object, tables: list[str], where: str = "") -> dict[str, int]:
    sql = " UNION ALL ".join(f"SELECT '{one}', count(*) FROM {one}{where}" for one in tables)
    return dict(rows(place, endpoint, sql))


def rows(place: Place, endpoint: object, sql: str) -> Any:
    done = asking(place, str(endpoint), "query", sql, "--format", "json", "--limit", "500000")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


def asked(place: Place, endpoint: object, *words: str) -> dict[str, Any]:
    done = asking(place, str(endpoint), *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def verdict(place: Place, endpoint: object) -> tuple[str, str, str]:
    found = asked(place, endpoint, "diagnose")
    return found["state"], found["severity"], found["what"]


def until_alarm(place: Place, endpoint: object, state: str, *jobs: Job) -> None:
    """Until that is the verdict, asked only once the server has its own: a diagnosis takes a second of
    processor time."""
    known = [recorded_of(place, job.pid) for job in jobs]
    until(lambda: state in [row["state"] for one in known for row in noted(one)], f"{state}, by the server")
    until(lambda: verdict(place, endpoint)[:2] == (state, ALARM), f"{state}, when asked")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """Another PROBE_DIR and another HOME: as a colleague has them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with private_place() as place:
        yield place


def manifest_of(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as opened:
        first = opened.extractfile("manifest.json")
        assert first is not None
        found: dict[str, Any] = json.load(first)
        return found


def no_secret_in(folder: Path) -> int:
    """How many files hold none; rows are in Parquet, and asked for by the caller."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {path: [one for one in SECRETS if one.encode() in path.read_bytes()] for path in files}
    assert not any(found.values()), found
    return len(files)


def test_a_bundle_of_a_live_a_hung_and_a_dead_job_answers_as_the_recording_did_and_keeps_no_secret(
    place: Place, elsewhere: Place, start: Callable[..., Job], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place.start_server(**PATIENT)
    job = start(
        "keeps_secrets_in_rows", "--api-key", ARGUMENT, HF_TOKEN=ENVIRONMENT, SECRETS=json.dumps(PLANTED),
        PROBE_STALL_MIN_S=str(STALL_S), **PATIENT, **SERVER,
    )
    hung, dead = (tmp_path / f"{name}.tar.gz" for name in ("hung", "dead"))

    live = Path(asking(place, str(job.pid), "bundle").stdout.split()[0])
    assert live.parent == tmp_path and re.search(rf"-step\d+\{archive.best_suffix()}$", live.name)
    assert verdict(elsewhere, live)[:2] == verdict(place, job.pid)[:2] == ("running", "ok")
    [[last]] = rows(elsewhere, live, "SELECT max(step) FROM python.steps")
    until_then = f" WHERE step <= {last}"
    recorded = counts(place, job.pid, OF_STEPS, until_then)
    assert counts(elsewhere, live, OF_STEPS, until_then) == recorded
    [rank] = asked(elsewhere, live, "ranks")["ranks"]
    assert (rank["state"], rank["how"], rank["pid"]) == ("bundled", "running", job.pid)

    job.go_on()
    job.wait_for("HANGING")
    until_alarm(place, job.pid, states.LOCK_WAIT, job)
    bundle(place, hung, job.pid)
    said = asked(elsewhere, hung, "diagnose")
    assert (said["state"], said["severity"]) == ("lock wait", "alarm"), said
    assert "when the bundle was made" in said["why"][-1] and "main (keeps_secrets" in said["what"]
    assert counts(elsewhere, hung, OF_STEPS) == counts(place, job.pid, OF_STEPS)
    stacks = asking(elsewhere, str(hung), "backtrace")
    assert "keeps_secrets_in_rows.py" in stacks.stdout and "when the bundle was made" in stacks.stderr
    for words in (("eval", "1"), ("lr", "--scale", "0.5"), ("pause",)):
        refused = asking(elsewhere, str(hung), *words)
        assert refused.returncode == 3 and "is a recording in a bundle" in refused.stderr, refused
    assert "bundled" in asking(elsewhere, str(hung), "health").stdout

    job.signal(signal.SIGKILL)
    job.wait()
    folder = recorded_of(place, job.pid).folder
    until((folder / "end.json").exists, "the end")
    until(lambda: json.loads((folder / "end.json").read_bytes())["sealed"], "the recording is sealed")
    note = bundle(place, dead, job.pid, "--overwrite")
    assert verdict(elsewhere, dead) == verdict(place, job.pid)
    everything = [*RECORDED, "user.upload"]
    assert counts(elsewhere, dead, everything) == counts(place, job.pid, everything)
    assert "next: probe dead.tar.gz diagnose" in note

    texts = " UNION ALL ".join(f"SELECT to_json(one)::VARCHAR FROM {table} one" for table in everything)
    rows(elsewhere, dead, texts)
    for kept, *words in ((live, "ranks", "health"), (hung, "ranks"), (dead, "ranks", "health")):
        for word in words:
            asked(elsewhere, kept, word)
    shown = "".join(SHOWN[elsewhere])  # with the diagnoses and stacks above
    assert "upload <redacted>" in shown and "loss of <redacted>" in shown and "login failed" in shown
    assert [one for one in SECRETS if one in shown] == []
    assert no_secret_in(elsewhere.directory / "bundles") > 60
    module = rows(place, job.pid, "SELECT DISTINCT module FROM python.torch_trace")
    assert [PLANTED["module"]] in module, "the recording has it: the bundle's own look redacts it"

    late, small = tmp_path / "late.tar.gz", tmp_path / "small.tar.gz"
    assert "before step 15 are left out" in bundle(place, late, job.pid, "--since", "15")
    assert rows(elsewhere, late, "SELECT min(step) FROM python.steps") == [[15]]
    sizes = {one["name"]: archived_bytes(one["bytes"]) for one in manifest_of(dead)["files"]}
    largest = max(size for name, size in sizes.items() if name.endswith(".parquet"))
    limit = sum(sizes.values()) - largest // 2
    note = bundle(place, small, job.pid, "--max-size", f"{limit}B")
    assert small.stat().st_size <= limit and "left out for --max-size" in note
    table = manifest_of(small)["left_out"][-1]["table"]
    answer = asking(elsewhere, str(small), "query", f"SELECT count(*) FROM {table}")
    assert "are missing: left out of the bundle" in answer.stderr, answer
    assert manifest_of(late)["since_step"] == 15 and manifest_of(late)["left_out"] == []
    again = asking(place, str(job.pid), "bundle", "-o", str(small))
    assert again.returncode == 2 and "--overwrite" in again.stderr


def test_a_bundle_of_ranks_that_hang_has_the_verdict_on_the_job_and_all_stacks(
    place: Place, elsewhere: Place, tmp_path: Path
) -> None:
    path = tmp_path / f"ranks{archive.best_suffix()}"
    place.start_server(**PATIENT)
    options = ("--way", "all_reduce", "--meeting", str(tmp_path / "meeting"))
    with running_ranks(place, 2, "stall_ranks", *options, PROBE_STALL_MIN_S=str(STALL_S)) as ranks:
        ranks.wait_for("HANGING")
        until_alarm(place, ranks.name, states.MISSING_RANK, *ranks.jobs)
        bundle(place, path, ranks.name)
        tables = ["python.steps", "python.collectives", "python.losses"]
        assert verdict(elsewhere, path)[:2] == ("missing rank", "alarm")
        assert counts(elsewhere, path, tables) == counts(place, ranks.name, tables)
        [row] = rows(elsewhere, path, "SELECT count(DISTINCT rank) FROM python.steps")
        assert row == [2]
        shown = asking(elsewhere, str(path), "backtrace").stdout
        assert "rank 1: sleep_on_storage" in shown and "2 places" in shown, shown
        alone = asking(elsewhere, f"{path}/1", "backtrace").stdout
        assert "sleep_on_storage" in alone and "2 places" not in alone
        unknown = asking(elsewhere, f"{path}/7", "query", "SELECT 1")
        assert unknown.returncode == 3 and "Ranks in it: 0, 1" in unknown.stderr


# Archives from strangers ---------------------------------------------------------------

GOOD = "run=train-1/attempt=0/process=0-42/meta.json"


def packed(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], listed: list[dict[str, Any]]) -> Path:
    """An archive with a manifest that lists these files."""
    import hashlib
    import io

    about = {"format": "probe bundle", "version": 1, "files": listed}
    for one in listed:
        data = next((data for header, data in members if header.name == one["name"]), b"")
        one.setdefault("bytes", len(data))
        one.setdefault("sha256", hashlib.sha256(data).hexdigest())
    manifest = tarfile.TarInfo("manifest.json")
    with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT) as archive:
        for header, data in [(manifest, json.dumps(about).encode()), *members]:
            if header.isreg():
                header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


HOSTILE: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], list[dict[str, Any]]]] = {
    "a path upwards": ([(member("../x"), b"x")], [{"name": "../x"}]),
    "an absolute path": ([(member(OUTSIDE), b"x")], [{"name": OUTSIDE}]),
    "a path upwards within": ([(member("run=a/../../x"), b"x")], [{"name": "run=a/../../x"}]),
    "a name of no bundle": ([(member("run=a/setup.py"), b"x")], [{"name": "run=a/setup.py"}]),
    "a symbolic link": ([(member(GOOD, tarfile.SYMTYPE, "/etc/passwd"), b"")], [{"name": GOOD}]),
    "a hard link": ([(member(GOOD, tarfile.LNKTYPE, "manifest.json"), b"")], [{"name": GOOD}]),
    "a device": ([(member(GOOD, tarfile.CHRTYPE), b"")], [{"name": GOOD}]),
    "a folder": ([(member(GOOD, tarfile.DIRTYPE), b"")], [{"name": GOOD}]),
    "a long header": ([(member(GOOD, tarfile.XHDTYPE), b"")], [{"name": GOOD}]),
    "more than it lists": ([(member(GOOD), b"x"), (member("README.txt"), b"x")], [{"name": GOOD}]),
    "less than it lists": ([(member(GOOD), b"x")], [{"name": GOOD}, {"name": "README.txt"}]),
    "another order": (
        [(member(GOOD), b"x"), (member("README.txt"), b"x")], [{"name": "README.txt"}, {"name": GOOD}],
    ),
    "a file twice": ([(member(GOOD), b"x")] * 2, [{"name": GOOD}, {"name": GOOD}]),
    "another size": ([(member(GOOD), b"xx")], [{"name": GOOD, "bytes": 1}]),
    "a wrong checksum": ([(member(GOOD), b"x")], [{"name": GOOD, "sha256": "0" * 64}]),
    "a bomb": ([(member(GOOD), b"x")], [{"name": GOOD, "bytes": 1 << 50}]),
    "a size below zero": ([(member(GOOD), b"x")], [{"name": GOOD, "bytes": -1}]),
    "no recording": ([(member("README.txt"), b"x")], [{"name": "README.txt"}]),
    "no facts": ([(member(GOOD), b"{}")], [{"name": GOOD}]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_an_archive_with_anything_but_a_bundle_is_refused_and_leaves_nothing(
    what: str, tmp_path: Path
) -> None:
    members, listed = HOSTILE[what]
    path = packed(tmp_path / "x.tar.gz", members, [dict(one) for one in listed])
    refused(path)


def refused(path: Path) -> str:
    """What the command says of an archive; only its own folder may be there afterwards."""
    home = path.parent / f"home-{time.monotonic_ns()}"
    before = sorted(path.parent.rglob("*"))
    import io

    from probe_cli.main import run

    out, err = io.StringIO(), io.StringIO()
    environ = {"PROBE_DIR": str(home), "PATH": ""}
    code = run([str(path), "query", "SELECT 1"], environ, out, err, io.StringIO())
    assert code == 6 and str(path) in err.getvalue() and "next:" in err.getvalue(), (code, err.getvalue())
    after = [one for one in sorted(path.parent.rglob("*")) if one not in before]
    assert after == [home, home / "bundles"], after
    assert not Path(OUTSIDE).exists()
    return err.getvalue()


def test_a_damaged_archive_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    whole = packed(tmp_path / "whole.tar.gz", [(member(GOOD), b"x" * 4000)], [{"name": GOOD}]).read_bytes()
    path = tmp_path / "x.tar.gz"
    plain = gzip.decompress(whole)
    flipped = [plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :] for at in (3, 520, 1030, 1200, 2100)]
    for data in (
        b"", b"no archive", whole[:40], whole[: len(whole) // 2], whole[:-4], whole + b"more",
        *map(gzip.compress, flipped), gzip.compress(plain + b"x" * 100_000),
        gzip.compress(b"\0" * (64 << 20)),
    ):
        path.write_bytes(data)
        refused(path)


def test_zstd_is_read_with_the_same_suspicion(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    whole = packed(tmp_path / "whole.tar.gz", [(member(GOOD), b"x" * 4000)], [{"name": GOOD}]).read_bytes()
    plain = gzip.decompress(whole)
    path = tmp_path / "x.tar.zst"
    large = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    streamed = zstandard.ZstdCompressor(compression_params=large).compressobj()
    good = zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    for data, why in (
        (whole, "damaged"), (good[:-9], "early"),
        (good[:60] + bytes([good[60] ^ 255]) + good[61:], "damaged"),
        (streamed.compress(plain) + streamed.flush(), "damaged"), (good, "meta.json cannot be used"),
    ):
        path.write_bytes(data)
        assert why in refused(path), data[:9]


def test_of_a_table_that_does_not_fit_the_newest_rows_are_kept_and_small_tables_come_first() -> None:
    def piece(table: str, first: int, size: int) -> Piece:
        return Piece(table, 0, Path(f"{table}-{first}"), first, first + 9, size)

    pieces = [piece("python.trace", at, 100_000) for at in (1, 11, 21)] + [piece("python.steps", 1, 50_000)]
    found = chosen(pieces, 200_000)
    assert [(one.table, one.first) for one in found.kept] == [("python.steps", 1), ("python.trace", 21)]
    assert [(one["table"], one["first_row"], one["last_row"]) for one in found.left_out] == [
        ("python.trace", 1, 20)
    ]
