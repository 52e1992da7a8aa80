"""`probe completion`: shell completion of commands, live jobs, tables, recipes, options.

The scripts call `probe completion words -- …`, which `main` answers from `prompts.completions`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from probe.base.errors import UsageError
from probe_cli.core.session import Session

EXAMPLES = (
    "probe completion install",
    "probe completion bash",
)
SCRIPTS = {
    "bash": """\
_probe() {
    local IFS=$'\\n'
    COMPREPLY=($(probe completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _probe probe
""",
    "zsh": """\
#compdef probe
local -a found
found=("${(@f)$(probe completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
[[ -n "$found" ]] && compadd -a found || _files
""",
    "fish": """\
complete -c probe -a '(probe completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/probe"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_probe"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/probe.fish"),
}
"""Where each shell looks: the variable for the folder, its default below HOME, the file."""


def is_endpoint(_word: str, _words: list[str], _session: Session) -> bool:
    """Never: the words after `completion words` may be anything."""
    return False


def command(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="bash|zsh|fish|install", help="Print a script, or install it.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SHELL]", help="With `install`: the shell (default: $SHELL)."),
    ] = None,
) -> None:
    """Set up shell completion of commands, jobs and columns."""
    session: Session = context.obj
    session.no_endpoint("completion")
    given = words or []
    if what == "install":
        _install(session, given[0] if given else os.path.basename(session.environ.get("SHELL", "")))
    else:
        session.out.stream.write(_script(what))


def _script(shell: str) -> str:
    if shell not in SCRIPTS:
        raise UsageError(
            f"no completion for the shell {shell!r}", hint="For example `probe completion install bash`."
        )
    return SCRIPTS[shell]


def _install(session: Session, shell: str) -> None:
    """Write the script where the shell looks for it; edits none of the user's files."""
    script = _script(shell)
    variable, default, name = _PLACES[shell]
    home = session.environ.get("HOME") or os.path.expanduser("~")
    path = Path(session.environ.get(variable) or Path(home, default), name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint=f"`probe completion {shell}` prints it."
        ) from None
    session.out.line(f"written: {path}")
    if shell == "zsh":
        session.err.line(f"  next: in ~/.zshrc, before compinit: fpath+=({path.parent})")
    else:
        needs = "; it needs the package bash-completion" if shell == "bash" else ""
        session.err.line(f"  next: start a new {shell}{needs}")
