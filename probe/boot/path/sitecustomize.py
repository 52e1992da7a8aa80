"""Runs the start-up hook in an interpreter without probe, then removes itself.

`probe run` puts this folder on PYTHONPATH for such interpreters. Afterwards `sys.path` is without this
folder, and `sitecustomize` is the environment's own, or absent. Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _boot() -> None:
    if "torch_probe_boot" not in sys.modules:
        # In a checkout the hook is in `probe/boot`; a wheel puts it beside the package.
        files = [os.path.join(_HERE, *up, "torch_probe_boot.py") for up in ([".."], [".."] * 3)]
        file = next(filter(os.path.isfile, files), files[0])
        spec = importlib.util.spec_from_file_location("torch_probe_boot", os.path.abspath(file))
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["torch_probe_boot"] = module
    sys.modules["torch_probe_boot"].begin_when_asked()


try:
    _boot()
finally:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    del sys.modules["sitecustomize"]
    # Raises ModuleNotFoundError where there is no other: `site` takes that as "none".
    importlib.import_module("sitecustomize")
