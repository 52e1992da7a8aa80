"""Names: what `model`, `optimizer`, `train_loader`, … mean in a snippet.

Runs on the eval thread. A name is looked for in the training thread's frames,
the user's own from the innermost outwards, locals before globals; then in
`__main__`; then among the objects the instruments have seen. Standard library
only.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from probe.control import frames


def names_used(tree: ast.AST) -> set[str]:
    """Names that a snippet reads and that are not builtins."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {name for name in used if not hasattr(builtins, name)}


class Scope:
    """Everything a snippet may name, in the order of the search."""

    def __init__(self, training_thread: int | None, seen: Callable[[], dict[str, Any]]) -> None:
        self._frames: list[FrameType] = []
        if training_thread is not None:
            innermost = sys._current_frames().get(training_thread)
            self._frames = [
                frame for frame in frames.walk(innermost) if frames.is_user_code(frame.f_code.co_filename)
            ]
        self._seen = seen

    def resolve(self, wanted: Iterable[str]) -> dict[str, Any]:
        """The values of those of the wanted names that exist."""
        missing = set(wanted)
        found: dict[str, Any] = {}
        for layer in self._layers():
            for name in [name for name in missing if name in layer]:
                found[name] = layer[name]
                missing.discard(name)
            if not missing:
                break
        return found

    def near(self, name: str) -> list[str]:
        """Names that exist and look like `name`, best first."""
        known: set[str] = set()
        for layer in self._layers():
            known.update(key for key in layer if isinstance(key, str) and not key.startswith("__"))
        return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)

    def _layers(self) -> Iterable[dict[str, Any]]:
        for frame in self._frames:
            yield frames.variables(frame)
        for frame in self._frames:
            yield frame.f_globals
        main = sys.modules.get("__main__")
        if main is not None:
            yield vars(main)
        yield self._seen()
