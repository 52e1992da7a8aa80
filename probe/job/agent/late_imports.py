"""Imports our own modules after the job has begun, through proven descriptors.

Python's importer lists a folder and opens a file, and closes their numbers without checking whose they are by
then (decision 17). Runs on the agent's threads. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shlex  # noqa: F401 - the only later import that torch does not bring
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

from probe.base import descriptors


@contextlib.contextmanager
def proven_imports() -> Iterator[None]:
    """In the block, our own modules are found and read through proven descriptors.

    Only the importers of our folders are replaced. `sys.meta_path` stays as it is: other threads of the job
    may be iterating over that list, and would skip a finder if one before it were removed."""
    known = sys.path_importer_cache
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "probe":
            for folder in getattr(module, "__path__", ()):
                known[folder] = _ProvenFinder(folder)
    try:
        yield
    finally:
        for folder, finder in list(known.items()):
            if isinstance(finder, _ProvenFinder):
                del known[folder]


class _ProvenFinder:
    """Finds the modules of one of our folders without listing it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's place; None if it has no file of its own."""
        place = Path(self._folder, name.rpartition(".")[2])
        for file, inside in ((place / "__init__.py", [str(place)]), (place.with_suffix(".py"), None)):
            if file.is_file():
                if inside:
                    sys.path_importer_cache[str(place)] = _ProvenFinder(str(place))
                loader = _ProvenLoader(name, str(file))
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=inside
                )
        return None


class _ProvenLoader(SourceFileLoader):
    """Reads source and compiled code through proven descriptors, and writes nothing."""

    def get_data(self, path: str) -> bytes:
        """A file's content."""
        return descriptors.read(path)

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Do nothing: writing compiled code would take a descriptor, too."""
