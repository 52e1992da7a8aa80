"""Recipe library: loads the checks of `diagnose` and the monitor, one file each.

    library = installed(settings.recipes)                           # reloaded when a file has changed
    sql, parameters = library["loss-nan"].statement()
    check = library["loss-nan"].check(columns, rows, "4242")        # found, clear or unknown

Reads files, runs no SQL: `server.answers.recipe_runs` runs it in a query worker, `local_query` on a
connection. Any thread. Standard library, and tomli if Python has no tomllib.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from probe.base.errors import RecipeInvalid, RecipeUnknown
from probe.diagnose.recipes.recipe import SYMPTOMS, Parameter, Recipe, listed
from probe.diagnose.recipes.recipe_files import OVERRIDES, overrides, read
from probe.diagnose.recipes.recipe_files import built_in_folder as built_in_folder
from probe.diagnose.stall_parameters import STALL_THRESHOLDS, StallThresholds

CHECK_INTERVAL_S = 1.0
"""Time between checks of the folders for changes."""


class Library(dict[str, Recipe]):
    """Recipes by name, in the order of the checks; `problems`: errors in files that could not be used."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[RecipeInvalid] = []
        self.stall_parameters = {
            one.name: Parameter(value=getattr(StallThresholds, one.name), **one.metadata)
            for one in fields(StallThresholds)
        }
        self.stall_thresholds = StallThresholds()

    def override(self, path: Path) -> None:
        """Apply the parameters and stall thresholds overridden by a file."""
        known = {one.name: one.parameters for one in self.values()}
        known[STALL_THRESHOLDS] = self.stall_parameters
        for name, parameters in overrides(path, known, self.problems.append).items():
            if name in self:
                self[name] = self[name].model_copy(update={"parameters": parameters})
            else:
                self.stall_parameters = parameters
                values: dict[str, Any] = {name: one.value for name, one in parameters.items()}
                self.stall_thresholds = StallThresholds(**values)

    def as_dict(self) -> dict[str, Any]:
        """The recipes as a JSON object."""
        return {
            "recipes": [recipe.as_dict() for recipe in self.values()],
            "stall_thresholds": listed(self.stall_parameters),
            "problems": [str(problem) for problem in self.problems],
        }


def of_fleets(own: str) -> Library:
    """The recipes over all runs of an archive, from the `fleet` subfolders of `folders(own)`."""
    return load(place for folder in folders(own) if (place := folder / "fleet").is_dir())


def load(wanted: Iterable[Path]) -> Library:
    """Load the recipes of several folders; a later folder overrides recipes of the same name.

    Missing folders and unusable files are reported in `problems`."""
    library = Library()
    own = built_in_folder()
    wanted = list(wanted)
    known = {path.stem for folder in wanted for path in folder.glob("*.sql")}
    for folder in wanted:
        if not folder.is_dir():
            library.problems.append(RecipeInvalid(f"no such folder: {folder}"))
            continue
        for path in sorted(folder.glob("*.sql")):
            try:
                library[path.stem] = read(path, own in (folder, folder.parent), known)
            except RecipeInvalid as error:
                library.problems.append(error)
        library.override(folder / OVERRIDES)
    ordered = sorted(library.values(), key=lambda recipe: (recipe.order, recipe.name))
    library.clear()
    library.update((recipe.name, recipe) for recipe in ordered)
    return library


def installed(own: str) -> Library:
    """The recipes of `folders(own)`, cached until a file changes. Blocks on the disk."""
    return _loaded_at(own, int(time.monotonic() / CHECK_INTERVAL_S))


@functools.lru_cache(maxsize=8)
def _loaded_at(own: str, tick: int) -> Library:
    return _loaded(own, _files(folders(own)))


@functools.lru_cache(maxsize=8)
def _loaded(own: str, files: tuple[tuple[str, int, int], ...]) -> Library:
    return load(folders(own))


def folders(own: str) -> list[Path]:
    """The built-in folder, and the user's (PROBE_RECIPES) if set."""
    return [built_in_folder(), *([Path(own).expanduser()] if own else [])]


def _files(watched: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """The recipe files, with modification time and size."""
    found = []
    for folder in watched:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".sql", ".toml")):
                    with contextlib.suppress(OSError):
                        stat = entry.stat()
                        found.append((entry.path, stat.st_mtime_ns, stat.st_size))
    return tuple(sorted(found))


def unknown_name(name: str, names: Iterable[str]) -> RecipeUnknown:
    """The error for an unknown name; its hint lists similar names."""
    near = get_close_matches(name, list(names), n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}? `probe recipes` lists all." if near else None
    return RecipeUnknown(f"no such recipe: {name!r}", hint=hint)


def of_symptom(library: Library, symptom: str) -> list[Recipe]:
    """The recipes of a symptom, or all, in the order of their checks; raises `RecipeUnknown`."""
    if not symptom:
        return list(library.values())
    if symptom not in SYMPTOMS:
        raise RecipeUnknown(f"no such symptom: {symptom!r}", hint=f"Symptoms: {', '.join(SYMPTOMS)}.")
    return [recipe for recipe in library.values() if symptom in recipe.symptoms]
