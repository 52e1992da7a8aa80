"""Exit codes, derived from the error classes: for `probe --help` and docs/cli.md."""

from __future__ import annotations

from probe.base.errors import BY_CODE, ProbeError

INTERRUPTED = 130
CLOSED_PIPE = 141


def exit_codes() -> list[tuple[int, str]]:
    """(code, meaning) in order."""
    kinds = [kind for kind in ProbeError.__subclasses__() if kind.exit_code != ProbeError.exit_code]
    return [
        (0, "Success."),
        (1, "`eval` raised, `doctor` failed, or `diagnose --exit-code` found an alarm."),
        *sorted((kind.exit_code, _meaning(kind)) for kind in kinds),
        (INTERRUPTED, "Interrupted with Ctrl-C."),
        (CLOSED_PIPE, "The reader of the output closed it (`| head`)."),
    ]


def _meaning(kind: type[ProbeError]) -> str:
    return (kind.__doc__ or kind.code).splitlines()[0]


def errors_of(exit_code: int) -> list[str]:
    """Error codes (JSON) that map to `exit_code`."""
    return [code for code, kind in BY_CODE.items() if kind.exit_code == exit_code]
