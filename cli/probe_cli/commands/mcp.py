"""`probe mcp`: serve an agent over the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import sys
from typing import Annotated

from probe.base.errors import UsageError
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session

EXAMPLES = (
    "probe mcp",
    "probe mcp --allow-act",
)


def command(
    session: Session,
    allow_act: Annotated[
        bool,
        Option(
            "--allow-act",
            help="Also offer tools that change a run: lr, pause, resume, checkpoint, undo, and `eval` of "
            "code that changes the job.",
        ),
    ] = False,
) -> None:
    """Run an MCP server for agents on stdin and stdout.

    Its tools correspond to the commands, with the same permissions. Without --allow-act they are read-only.
    """
    from probe_cli.agent_tools.tools import need_mcp

    session.no_endpoint("mcp")
    need_mcp()
    if session.input is not sys.stdin or session.out.terminal:
        raise UsageError(
            "`mcp` is for programs, not for a terminal",
            hint="Add it to the configuration of an MCP client; docs/agents.md shows how.",
        )
    from probe_cli.agent_tools import tool_server

    tool_server.make(session.settings, allow_act=allow_act).run("stdio")
