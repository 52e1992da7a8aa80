"""`python -m campaigns NAME` runs one campaign; `python -m campaigns` lists them."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> dict[str, str]:
    """Every campaign with its description: the modules that have a `main`."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text())
        if path.stem != "__main__" and any(
            isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body
        ):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


if __name__ == "__main__":
    known = names()
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in known:
        for known_name, about in known.items():
            print(f"{known_name:14} {about}")
        sys.exit(0 if not name else f"no campaign {name!r}")
    sys.exit(importlib.import_module(f"campaigns.{name}").main())
