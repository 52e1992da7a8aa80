"""`probe doctor`: check what works on this machine.

The checks change nothing: they start no server, create no folder and do not import torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import typer

import probe
from probe.base import versions
from probe.base.errors import DirectoryRefused, NoRoom, ProbeError, SettingInvalid
from probe.base.settings import Settings, unknown_variables
from probe.recording import places
from probe_cli.core.figures import size
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.core.wait_line import waiting
from probe_cli.render.verdict_lines import wrapped

EXAMPLES = ("probe doctor",)
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
HOOK_MODULE = "torch_probe_boot"
"""Top-level module that the `.pth` file in site-packages imports."""
_IMPORT_TIMEOUT_S = 20.0
_HEALTH_TIMEOUT_S = 2.0


class CheckResult(NamedTuple):
    """Result of one check; `fix` tells how to fix it, empty if there is nothing to do."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str
    fix: str = ""


def command(context: typer.Context) -> None:
    """Check this machine and show how to fix problems."""
    session: Session = context.obj
    session.no_endpoint("doctor")
    failed = False
    found = results(session)
    while True:
        with waiting(session.err, "checking this machine"):
            result = next(found, None)
        if result is None:
            break
        failed = failed or result.level == "fail"
        level = f"{result.level:<4}"
        line = f"{level}  {result.subject:<13}  {escape_controls(result.text)}"
        first, *more = wrapped(line, session.out, " " * 21)
        styled = session.out.style(level, _STYLES[result.level])
        session.out.lines([styled + first[len(level) :], *more])
        if result.fix:
            line = f"{'':<19}  next: {escape_controls(result.fix)}"
            session.out.lines(wrapped(line, session.out, " " * 27))
        session.out.stream.flush()
    raise typer.Exit(1 if failed else 0)


def results(session: Session) -> Iterator[CheckResult]:
    """Run all checks, in the order a person would go through them."""
    yield check_python(sys.version_info[:3])
    yield check_torch()
    yield from check_settings(session)
    try:
        settings = session.settings
    except SettingInvalid:
        return
    yield check_server_needs(settings.server_python)
    yield from check_directory_of(settings)
    yield check_rings(settings)
    yield check_server(places.home(settings))
    yield check_compiled(session.environ)
    yield check_outside()
    yield check_attaching()
    yield check_hook(_site_folders())
    yield check_shadowing(Path.cwd())


def check_python(version: tuple[int, ...]) -> CheckResult:
    """Whether this Python is supported, and which features it lacks."""
    text = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version[:2] < versions.OLDEST_PYTHON:
        oldest = versions.plain(versions.OLDEST_PYTHON)
        return CheckResult("fail", "python", text, f"Use Python {oldest} or later.")
    return _supported("python", text, version, versions.NEWEST_PYTHON)


def check_torch(found: str | None = None) -> CheckResult:
    """Whether this Python has a supported torch, and which features it lacks; jobs may use another Python.
    `found`: its version, if already known."""
    from importlib.metadata import PackageNotFoundError, version

    if found is None and find_spec("torch") is None:
        return CheckResult(
            "warn", "torch", "not in this Python",
            "Fine if jobs use another Python: `probe run` uses theirs. Otherwise install torch here.",
        )
    try:
        found = found or version("torch")
    except PackageNotFoundError:
        found = "present, version unknown"
    number = versions.number(found)
    if number is None:
        return CheckResult("ok", "torch", found)
    if number < versions.OLDEST_TORCH:
        oldest = versions.plain(versions.OLDEST_TORCH)
        return CheckResult(
            "fail", "torch", f"{found}: jobs with it run without probe", f"Install torch {oldest} or newer."
        )
    return _supported("torch", found, number, versions.NEWEST_TORCH)


def _supported(subject: str, text: str, version: tuple[int, ...], newest: tuple[int, int]) -> CheckResult:
    missing = versions.lacks(subject, version)
    if missing:
        return CheckResult("ok", subject, f"{text}; not available: {'; '.join(missing)}")
    if version[:2] > newest:
        return CheckResult(
            "warn", subject, f"{text}: newer than the newest tested version ({versions.plain(newest)})",
            "It will probably work; run `tests/run` in a checkout to find out.",
        )
    return CheckResult("ok", subject, text)


def check_settings(session: Session) -> Iterator[CheckResult]:
    """Invalid values and unknown PROBE_ variables."""
    from probe_cli.commands.config import unknown_variable

    unknown = unknown_variables(session.environ)
    try:
        Settings(session.environ)
    except SettingInvalid as error:
        yield CheckResult("fail", "settings", error.message, error.hint)
    else:
        if not unknown:
            yield CheckResult("ok", "settings", "valid")
    for name in unknown:
        yield CheckResult("warn", "settings", unknown_variable(name), "`probe config` lists the settings.")


def check_server_needs(server_python: str) -> CheckResult:
    """Whether the Python that runs the server has the packages it needs."""
    import subprocess

    from probe.boot.launch import SERVER_NEEDS

    python = server_python or sys.executable
    if python == sys.executable:
        missing = [name for name in SERVER_NEEDS if find_spec(name) is None]
    else:
        program = (
            "import sys; from importlib.util import find_spec; "
            "print(*[name for name in sys.argv[1:] if find_spec(name) is None])"
        )
        try:
            done = subprocess.run(
                [python, "-c", program, *SERVER_NEEDS],
                capture_output=True,
                text=True,
                timeout=_IMPORT_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return CheckResult(
                "fail", "server needs", f"cannot run {python}: {error}",
                "Set PROBE_SERVER_PYTHON to a Python that has probe installed, or unset it.",
            )
        missing = done.stdout.split()
    if not missing:
        return CheckResult("ok", "server needs", f"{', '.join(SERVER_NEEDS)} are in {python}")
    return CheckResult(
        "fail", "server needs", f"{', '.join(missing)} missing in {python}",
        "Install probe there, or set PROBE_SERVER_PYTHON to a Python that has it.",
    )


def check_directory_of(settings: Settings) -> Iterator[CheckResult]:
    """Whether PROBE_DIR is usable, and whether it is the expected folder."""
    directory = places.home(settings)
    yield check_directory(directory)
    elsewhere = places.why_elsewhere(directory, settings)
    if elsewhere:
        yield CheckResult(
            "warn", "PROBE_DIR", elsewhere, "Set PROBE_DIR for jobs and commands to choose another folder."
        )


def check_directory(directory: Path) -> CheckResult:
    """Whether PROBE_DIR is private and local, or can be made so."""
    try:
        places.check_private(directory, os.lstat(directory))
    except FileNotFoundError:
        return _check_can_be_made(directory)
    except OSError as error:
        return CheckResult("fail", "PROBE_DIR", f"{directory}: {error.strerror}", DirectoryRefused.hint)
    except ProbeError as error:
        return CheckResult("fail", "PROBE_DIR", error.message, error.hint)
    kind = places.file_system(directory)
    if kind in places.NETWORK_FILE_SYSTEMS:
        return CheckResult(
            "fail", "PROBE_DIR", f"{directory} is on a network file system ({kind})",
            "Set PROBE_DIR to a folder on a local disk.",
        )
    refused = places.write_refusal(directory)
    if refused:
        return CheckResult("fail", "PROBE_DIR", f"{directory} {refused}", DirectoryRefused.hint)
    unwritable = places.why_not_writable(directory)
    if unwritable:
        return CheckResult(
            "fail", "PROBE_DIR", unwritable, "Free some space there, or set PROBE_DIR to another folder."
        )
    if os.stat(directory).st_mode & 0o077:
        text = f"{directory} is open to other users"
        return CheckResult("warn", "PROBE_DIR", text, f"chmod 700 {directory}")
    return CheckResult("ok", "PROBE_DIR", f"{directory}, private, on {kind or 'an unknown file system'}")


def _check_can_be_made(directory: Path) -> CheckResult:
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    kind = places.file_system(parent)
    refusal = places.write_refusal(parent)
    if kind in places.NETWORK_FILE_SYSTEMS or refusal:
        why = f"{parent} is on {kind}" if kind in places.NETWORK_FILE_SYSTEMS else f"{parent} {refusal}"
        return CheckResult("fail", "PROBE_DIR", f"cannot create {directory}: {why}", DirectoryRefused.hint)
    return CheckResult("ok", "PROBE_DIR", f"{directory} will be created by the first job")


def check_rings(settings: Settings) -> CheckResult:
    """Whether there is enough memory for the rings of one more process."""
    folder, needed = Path(settings.rings_directory), settings.rings_bytes
    room = places.room_bytes(folder)
    kind = places.file_system(folder)
    refusal = places.write_refusal(folder)
    lack = places.no_room(folder)
    if room >= needed and kind in places.MEMORY_FILE_SYSTEMS and not (refusal or lack):
        return CheckResult(
            "ok", "rings", f"{folder} has {size(room)} free: enough for {room // max(needed, 1):,} processes",
        )
    why = (
        f"{folder} has {size(room)} free, {size(needed)} needed"
        if room < needed
        else f"{folder} {refusal or lack}"
        if refusal or lack
        else f"{folder} is not in memory ({kind or 'unknown'})"
    )
    home = places.home(settings)
    base = home if home.exists() else home.absolute().parent
    if places.room_bytes(base) < needed:
        return CheckResult("fail", "rings", f"{why}, and {base} has no space either", NoRoom.hint)
    return CheckResult(
        "warn", "rings", f"{why}; the rings will be on disk",
        "Enlarge /dev/shm (docker run --shm-size=1g), or set PROBE_RINGS_DIR to a tmpfs.",
    )


def check_server(directory: Path) -> CheckResult:
    """Whether the server of this folder is running, and has this command's version."""
    from probe.base.wire import call

    path = places.server_socket(directory)
    try:
        health = call(path, "GET", "/v1/health", timeout_s=_HEALTH_TIMEOUT_S)
        text = f"running: pid {health['pid']}, version {health['version']}, {health['processes']} processes"
    except OSError:
        return CheckResult("ok", "server", "not running; the first job or command starts it")
    except ProbeError as error:
        return CheckResult("fail", "server", error.message, error.hint)
    except (KeyError, TypeError):
        return CheckResult(
            "fail", "server", f"something else is listening at {path}", "Set PROBE_DIR to another folder."
        )
    if str(health["version"]) != probe.__version__:
        return CheckResult(
            "warn", "server", f"{text}; this command is {probe.__version__}",
            f"Stop it (kill {health['pid']}); the next command starts a new one.",
        )
    return CheckResult("ok", "server", text)


def check_compiled(environ: Mapping[str, str]) -> CheckResult:
    """Whether jobs of this installation use compiled hooks."""
    from probe.base import compiled

    if compiled.is_off(environ):
        return CheckResult("ok", "hooks", f"as Python: {compiled.SETTING.env}=0")
    why = compiled.why_plain()
    if not why:
        return CheckResult("ok", "hooks", "compiled")
    return CheckResult(
        "warn", "hooks", f"as Python: {why}",
        "Each step takes some ten microseconds longer. Install a C compiler and Python's headers and run "
        f"`{sys.executable} -m probe.base.compiled.build`, or install a wheel for this machine.",
    )


def check_outside() -> CheckResult:
    """Whether processes can be read from outside: tools and kernel permissions."""
    from probe.outside.processes.target import read_target
    from probe.outside.stacks import pyspy

    try:
        found = [f"py-spy at {pyspy.program()}"]
    except ProbeError as error:
        return CheckResult("fail", "from outside", error.message, error.hint)
    scope = read_target(os.getpid()).yama
    if scope is not None and scope > 1 and os.geteuid() != 0:
        return CheckResult(
            "warn", "from outside",
            f"kernel.yama.ptrace_scope is {scope}: only root may read other processes",
            "Run probe as root, or start jobs with PROBE=1 so that their agents answer.",
        )
    if find_spec("pystack") is None:
        return CheckResult(
            "warn", "from outside", f"{found[0]}; pystack is missing, so there are no native frames",
            "pip install pystack",
        )
    return CheckResult("ok", "from outside", f"{found[0]}; pystack for native frames")


def check_attaching() -> CheckResult:
    """Whether the tools that `attach` needs are installed."""
    from shutil import which

    from probe.base import c_compiler
    from probe.outside.attach import boot_library

    debugger = which("gdb") or ("pyinjector" if find_spec("pyinjector") is not None else None)
    if debugger is None:
        return CheckResult(
            "warn", "attaching", "neither gdb nor pyinjector is installed: `attach` cannot work",
            "Install gdb, or `pip install pyinjector`. Jobs started with PROBE=1 need neither.",
        )
    if not boot_library.PACKAGED.is_file() and c_compiler.compiler() is None:
        return CheckResult(
            "warn", "attaching",
            f"with {debugger}, but neither boot library nor C compiler: slower fallback only",
            "Install a wheel of probe for this machine, or a C compiler.",
        )
    return CheckResult("ok", "attaching", f"with {debugger}")


def _site_folders() -> list[Path]:
    import site

    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [Path(folder) for folder in folders]


def check_hook(folders: list[Path]) -> CheckResult:
    """Whether one of these site-packages folders has the start-up hook that PROBE=1 needs."""
    for folder in folders:
        for found in sorted(folder.glob("*.pth")):
            if HOOK_MODULE in found.read_text(encoding="utf-8", errors="replace"):
                return CheckResult("ok", "start-up hook", str(found))
    return CheckResult(
        "warn", "start-up hook", "not in this Python: PROBE=1 alone has no effect",
        "Start jobs with `probe run python train.py`, or install probe in this Python.",
    )


def check_shadowing(folder: Path) -> CheckResult:
    """Whether a job started in `folder` would import another `probe`."""
    module, package = folder / "probe.py", folder / "probe"
    # The start-up hook recognizes a checkout of probe by the same file.
    is_ours = (package / "boot" / "path" / "sitecustomize.py").is_file()
    if module.is_file() or (any(package.glob("*.py")) and not is_ours):
        found = module if module.is_file() else package
        return CheckResult(
            "warn", "this folder", f"scripts here import {found} as `probe` and run unrecorded",
            "Rename it to record such scripts.",
        )
    return CheckResult("ok", "this folder", "nothing in it shadows probe")
