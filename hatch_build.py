"""Compiles probe/outside/attach/boot.c while a wheel or an editable install is built, where a compiler is,
and puts the recipes into a wheel.

With the library in it a wheel is for one platform, and for every Python 3 there; without one it is for all,
and the first attach compiles the library where it is needed. See probe/outside/attach/boot_library.py.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BootLibrary(BuildHookInterface[Any]):
    """Hatchling's hook; what it says goes to the build's output."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the files into the wheel (an editable install finds them in the sources)."""
        if version == "standard":
            build_data["force_include"][str(Path(self.root) / "recipes")] = "probe/recipes"
        file = Path(self.root) / "probe" / "outside" / "attach" / "boot_library.py"
        spec = importlib.util.spec_from_file_location("boot_library", file)
        assert spec is not None and spec.loader is not None
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        problem = library.compile_library(library.PACKAGED)
        if problem:
            self.app.display_warning(f"no boot library in this build: {problem}")
            return
        build_data["artifacts"].append("probe/outside/attach/boot.so")
        if version == "standard":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
            build_data["pure_python"] = False
