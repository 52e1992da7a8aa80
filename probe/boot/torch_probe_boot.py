"""Start-up hook: runs in the interpreter before the script when PROBE is set.

Installed as a top-level module beside `torch_probe.pth`, which calls `begin` only if PROBE is true. It waits
for the job to import torch and then calls `probe.boot.startup`. Whatever fails, it must leave the
interpreter and the job's imports unchanged: besides `probe/base/isolation.py`, only this file may catch
every exception, because a probe that cannot be imported cannot isolate itself.

Runs on the thread that imports torch. Standard library only, and nothing of probe before torch is imported;
parses on Python 3.7, so that older versions can refuse.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OFF = ("", "0", "no", "off", "false")
OLDEST = (3, 10)


class TorchWatch:
    """An import finder that lets other finders find torch, calls `then` once torch's own code has run, and
    removes itself.

    `attached`: made by an attach, which may be repeated or withdrawn."""

    def __init__(self, then: Callable[[], object], attached: bool = False) -> None:
        self.attached = attached
        self._then = then
        self._searching: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The other finders' spec of torch; None for every other name."""
        if fullname != "torch" or get_ident() in self._searching:
            return None
        # Another finder that works like this one would call back: once per thread.
        self._searching.add(get_ident())
        try:
            spec = self._others(fullname, path, target)
        finally:
            self._searching.discard(get_ident())
        if spec is not None and not _run_after(spec.loader, self._torch_is_there):
            say(f"cannot watch the import of torch by {spec.loader!r}; call probe.start() after it")
        return spec

    def _others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            search = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = search(fullname, path, target) if search else None
            if spec is not None:
                return spec
        return None

    def _torch_is_there(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


def begin_when_asked() -> None:
    """`begin` if PROBE is set: for a PEP 829 `.start` file, which has no condition."""
    if os.environ.get("PROBE", "").strip().lower() not in OFF:
        begin()


def begin() -> None:
    """Start now if torch is imported, else wait for it. Idempotent: virtual environments run the lines of a
    `.pth` file twice."""
    if sys.version_info < OLDEST:
        say(_too_old())
    elif "torch" in sys.modules:
        start()
    else:
        watch_for_torch(start)


def watch_for_torch(then: Callable[[], object], attached: bool = False) -> None:
    """Call `then` once torch is imported, unless something already waits for it."""
    if not any(isinstance(finder, TorchWatch) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchWatch(then, attached))


def attach(settings: dict[str, str], midway: bool = True) -> dict[str, str]:
    """Start the agent for an attach; returns `state`, or `error` and `hint`. Never raises.

    `midway`: the job may be inside a step. Without torch this only installs the wait for it: before Python
    3.13 the first thread that imports `threading` counts as the main thread, which must not be ours."""
    if sys.version_info < OLDEST:
        return {"error": _too_old(), "hint": "", "code": "attach_refused"}
    if "torch" not in sys.modules:
        return _attach_when_torch_comes(settings)
    try:
        refusal = load_probe()
        if refusal is not None:
            return {"error": refusal, "hint": "", "code": "attach_refused"}
        from probe.boot import startup

        return {"state": startup.attach(settings, midway=midway)}
    except Exception as error:  # noqa: BLE001 - nothing of ours may end a thread of the job loudly
        words = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
        return {"error": words, "hint": getattr(error, "hint", ""), "code": getattr(error, "code", "")}


def _attach_when_torch_comes(settings: dict[str, str]) -> dict[str, str]:
    """Wait for torch. Replaces the wait of an earlier attach, not that of PROBE=1."""
    for finder in list(sys.meta_path):
        if isinstance(finder, TorchWatch) and getattr(finder, "attached", False):
            sys.meta_path.remove(finder)
    if not any(isinstance(finder, TorchWatch) for finder in sys.meta_path):
        note = _note_waiting(settings)
        watch_for_torch(lambda: _attach_late(settings, note), attached=True)
    return {"state": "waiting for torch"}


def _note_waiting(settings: dict[str, str]) -> str:
    """Write the note of a waiting process (`probe.recording.waiting`); returns its path, empty on failure."""
    path = os.path.join(settings.get("PROBE_DIR", ""), "boot", f"{os.getpid()}.waiting")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        words = (fields[19].decode(), fields[25].decode(), os.readlink("/proc/self/ns/pid"))
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(" ".join(words))
    except (OSError, IndexError, ValueError):
        return ""
    return path


def _attach_late(settings: dict[str, str], note: str) -> None:
    """Start the agent after torch was imported; a refusal is a line on stderr.

    Without the note the attach was withdrawn; a forked child has no note and starts nothing."""
    try:
        if note:
            os.unlink(os.path.join(os.path.dirname(note), f"{os.getpid()}.waiting"))
    except FileNotFoundError:
        return
    except OSError as error:
        say(f"{note} cannot be removed: {error}")
    refusal = attach(settings, midway=False).get("error")
    if refusal:
        say(f"could not start, the job runs without it: {refusal}")


def start() -> None:
    """Call `probe.boot.startup`, unless `probe` is another module in this job."""
    try:
        refusal = load_probe()
        if refusal is not None:
            say(refusal)
            return
        from probe.boot import startup

        refusal = startup.start()
        if refusal:
            say(refusal)
    except Exception as error:  # noqa: BLE001 - the job's `import torch` must continue
        say(f"could not start, the job runs without it: {type(error).__name__}: {error}")


def _too_old() -> str:
    return f"needs Python 3.10 or newer, this is {sys.version_info[0]}.{sys.version_info[1]}"


def say(sentence: str) -> None:
    """Write one line to stderr, if there is one."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write("probe: " + " ".join(sentence.split()) + "\n")


def _run_after(loader: Any, call: Any) -> bool:
    """Make this one loader call `call()` after it executed the module; False if that is not possible."""
    run = getattr(loader, "exec_module", None)
    if run is None or isinstance(loader, type):
        return False

    def exec_module(module: ModuleType) -> None:
        try:
            run(module)
        finally:
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
        if module.__name__ == "torch":
            call()

    # `warnings` skips frames of this name, and the traceback of a failed import leaves them out.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    try:
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        return False
    return True


def _stranger() -> str | None:
    """The file of another module `probe` in this job, if there is one.

    Call it after the import of torch, when the script, or the parent of a spawned child, has set `sys.path`.
    """
    module = sys.modules.get("probe")
    if module is not None:
        file = getattr(module, "__file__", None)
        return None if _is_ours(file) else str(file or "made at run time")
    spec = importlib.util.find_spec("probe")
    if spec is not None and spec.has_location and not _is_ours(spec.origin):
        return spec.origin
    for entry in sys.path:
        folder = os.path.join(entry or os.getcwd(), "probe")
        if not os.path.isdir(folder):
            continue
        if _is_ours(os.path.join(folder, "__init__.py")):
            return None
        # A folder without __init__.py is a module too when it holds code.
        if any(name.endswith(".py") for name in os.listdir(folder)):
            return folder
    return None


def _is_ours(file: str | None) -> bool:
    """Whether `file` is the `__init__.py` of a probe: this installation or any checkout of it."""
    return bool(file) and os.path.isfile(
        os.path.join(os.path.dirname(str(file)), "boot", "path", "sitecustomize.py")
    )


def load_probe() -> str | None:
    """Import probe; returns a sentence if `probe` is another module in this job.

    Without a path to it (`probe run` into another environment, attaching) it is loaded by location and
    `sys.path` stays unchanged: our folder may be another environment's site-packages, whose packages the job
    must not see.
    """
    stranger = _stranger()
    if stranger is not None:
        return f"this job has its own `probe` ({stranger}), so it runs without us; rename that module"
    spec = importlib.util.find_spec("probe")
    if spec is not None and spec.has_location:
        return None
    # A wheel puts this file beside the package; in a checkout it is in `probe/boot`.
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, "probe")
    package = beside if _is_ours(os.path.join(beside, "__init__.py")) else os.path.dirname(here)
    spec = importlib.util.spec_from_file_location(
        "probe", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no probe at {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["probe"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["probe"]
        raise
    return None
