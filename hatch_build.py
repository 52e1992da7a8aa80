"""Compiles what is C, where a compiler is, while a wheel or an editable install is built: the hot path
(probe/base/compiled) and the boot library of `probe attach`; and puts the recipes and pages into a wheel.

With a library in it a wheel is for one platform, and for every Python 3 there: both are the same for all
versions. Without one it is for all platforms: the plain source of the hot path runs, and the first attach
compiles the boot library where it is needed.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledParts(BuildHookInterface[Any]):
    """Hatchling's hook; what it says goes to the build's output."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the files into the wheel (an editable install finds them in the sources)."""
        if version == "standard":
            build_data["force_include"][str(Path(self.root) / "recipes")] = "probe/recipes"
            for page in (Path(self.root) / "docs").glob("*.md"):  # `probe mcp` shows them to agents
                build_data["force_include"][str(page)] = f"probe/docs/{page.name}"
        sys.path.insert(0, self.root)  # the modules used here import the standard library only
        from probe.base.compiled import build
        from probe.outside.attach import boot_library

        parts = (
            (build.LIBRARY, "hot path", build.build),
            (boot_library.PACKAGED, "boot library",
             lambda: boot_library.compile_library(boot_library.PACKAGED)),
        )
        for path, name, compile_it in parts:
            path.unlink(missing_ok=True)  # one of another machine must not get into the wheel
            problem = compile_it()
            if problem:
                self.app.display_warning(f"no {name} in this build: {problem}")
                continue
            build_data["artifacts"].append(str(path.relative_to(self.root)))
            if version == "standard":
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["tag"] = f"py3-none-{platform}"
                build_data["pure_python"] = False
