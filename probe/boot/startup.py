"""Decides whether the agent starts in this process, and makes the environment of `probe run`.

Called by the start-up hook (`probe/boot/torch_probe_boot.py`) on the thread that imported torch, and by
`probe run`. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from probe.base import versions

PATH_FOLDER = Path(__file__).resolve().parent / "path"
"""On PYTHONPATH it runs the hook in an interpreter that has no probe installed."""

_ANSWER_S = 20.0
_LAUNCHER_SCRIPTS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed"})
_LAUNCHER_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher",
)
_WORKER_MODULES = ("torch._inductor",)
_POOL_MODULES = ("joblib.externals.loky.backend", "loky.backend")
_RAY_WORKER = ("ray", "_private", "workers", "default_worker.py")


class Role(Enum):
    """The role of a process that imported torch."""

    JOB = "job"
    CHILD = "child"
    """Made by multiprocessing or by Ray: a rank, a DataLoader worker or another actor. Only its optimizer
    shows that it trains."""
    HELPER = "helper"
    """A launcher, compile worker or tracker: never trains."""


class _Target(NamedTuple):
    kind: str
    name: str


def start() -> str:
    """Start the agent if this process may train. Never raises. Returns a refusal for the user; empty if there
    is none."""
    role = role_of(sys.orig_argv)
    refusal = versions.refusal_here()
    if role is Role.HELPER or refusal:
        return refusal if role is Role.JOB else ""  # a child's parent has reported it
    from probe.job.agent.lifecycle import start_from_environment

    start_from_environment(deferred=role is Role.CHILD)
    return ""


def attach(settings: Mapping[str, str], *, midway: bool) -> str:
    """Start the agent for an attach: `started`, or `already` if there is one. Raises `ProbeError`.

    `settings`: variables of the attaching command, which override the job's without entering its
    environment. `midway`: the job may be inside a step. Runs on a thread of ours in the job, or on the one
    that just imported torch."""
    refusal = versions.refusal_here()
    if refusal:
        from probe.base.errors import AttachRefused

        raise AttachRefused(refusal, hint="`backtrace` reads its stacks from outside.")
    from probe.base import compiled

    environ = {**os.environ, **settings}
    compiled.choose(environ)
    from probe.job.agent.lifecycle import start_attached

    return "started" if start_attached(environ, midway=midway) else "already"


def role_of(command: Sequence[str]) -> Role:
    """The role of a process by its whole command line (`sys.orig_argv`)."""
    target = _target(command)
    if target.kind == "-c":
        return _role_of_code(target.name, command)
    name = target.name
    if target.kind == "script":
        if os.path.basename(name) in _LAUNCHER_SCRIPTS:
            return Role.HELPER
        if Path(name).parts[-len(_RAY_WORKER) :] == _RAY_WORKER:
            return Role.CHILD
        name = _dotted(name)
    if _belongs(name, _LAUNCHER_MODULES) or _belongs(name, _WORKER_MODULES):
        return Role.HELPER
    return Role.CHILD if _belongs(name, _POOL_MODULES) else Role.JOB


def _role_of_code(code: str, command: Sequence[str]) -> Role:
    words = code.split(maxsplit=2)
    module = words[1] if len(words) > 1 and words[0] == "from" else ""
    if module.endswith((".resource_tracker", ".forkserver", ".semaphore_tracker")):
        return Role.HELPER
    return Role.CHILD if "--multiprocessing-fork" in command else Role.JOB


def _belongs(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def _dotted(script: str) -> str:
    """Module name of a script inside a launcher's package."""
    parts = Path(script).with_suffix("").parts
    for top in ("torch", "accelerate", "deepspeed"):
        if top in parts:
            return ".".join(parts[len(parts) - 1 - parts[::-1].index(top) :])
    return ""


def _target(command: Sequence[str]) -> _Target:
    """The target that the interpreter runs: a script, `-m` module or `-c` code."""
    words = iter(command[1:])
    for word in words:
        if word == "--check-hash-based-pycs":
            next(words, "")
        elif not word.startswith("-") or word == "-":
            return _Target("script", word)
        elif not word.startswith("--"):
            for position, letter in enumerate(word[1:], 2):
                if letter in "mcWX":
                    value = word[position:] or next(words, "")
                    if letter in "mc":
                        return _Target("-" + letter, value)
                    break
    return _Target("", "")


def run_environment(environ: Mapping[str, str], program: str) -> dict[str, str]:
    """The environment in which `probe run` starts `program`, a command or a path.

    `environ` with PROBE=1 and PROBE_SERVER_PYTHON. If the program's Python has no hook (another virtual
    environment) or is unknown (a shell script), PYTHONPATH brings the hook. Starts that Python once.
    """
    result = dict(environ)
    result["PROBE"] = "1"
    if not result.get("PROBE_SERVER_PYTHON"):
        result["PROBE_SERVER_PYTHON"] = sys.executable
    python = interpreter_of(program, environ)
    if python is None or not _has_hook(python, environ):
        entries = [entry for entry in result.get("PYTHONPATH", "").split(os.pathsep) if entry]
        if str(PATH_FOLDER) not in entries:
            result["PYTHONPATH"] = os.pathsep.join([str(PATH_FOLDER), *entries])
    return result


def interpreter_of(program: str, environ: Mapping[str, str]) -> str | None:
    """The Python that runs `program`: itself, or that of its first line; None if unknown."""
    path = _which(program, environ)
    if path is None:
        return None
    if _is_python(path):
        return path
    try:
        with open(path, "rb") as file:
            first = file.readline(1024)
    except OSError:
        return None
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return _which(words[0], environ) if words and _is_python(words[0]) else None


def _is_python(path: str) -> bool:
    return os.path.basename(path).startswith(("python", "pypy"))


def _which(program: str, environ: Mapping[str, str]) -> str | None:
    folders = [""] if os.sep in program else environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _has_hook(python: str, environ: Mapping[str, str]) -> bool:
    """Whether that Python has our hook installed."""
    question = "import importlib.util as u; print(u.find_spec('torch_probe_boot') is not None)"
    quiet = {name: value for name, value in environ.items() if name != "PROBE"}
    try:
        answer = subprocess.run(
            [python, "-c", question], env=quiet, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_ANSWER_S, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "True"
