"""Modules of ours that are imported after the job has begun, read by way of the proof.

Python's importer lists a folder and opens a file, and closes their numbers without asking whose they are by
then (decision 17). Runs on the agent's threads. Standard library only.
"""

from __future__ import annotations

import importlib.util
import shlex  # noqa: F401 - of what comes later, all that torch does not bring
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from probe.base import descriptors, package


class ProvenImports:
    """While it is entered, modules of ours are found by their path and read by way of the proof.

    A finder in `sys.meta_path`, before all others, for names that begin with `probe.`; everything else goes
    the usual way. Entered by one thread at a time."""

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module of ours is; None for others, and for what is not in a file of its own."""
        top, _, rest = name.partition(".")
        if top != "probe" or not rest:
            return None
        place = Path(package.FOLDER, *rest.split("."))
        for file, folders in ((place / "__init__.py", [str(place)]), (place.with_suffix(".py"), None)):
            if file.is_file():
                loader = _ProvenLoader(name, str(file))
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=folders
                )
        return None


class _ProvenLoader(SourceFileLoader):
    """Reads source and compiled code by way of the proof, and writes nothing."""

    def get_data(self, path: str) -> bytes:
        """What a file holds."""
        return descriptors.read(path)

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Compiled code is not kept: writing it takes a number, too."""
