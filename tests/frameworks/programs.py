"""What the tests of the frameworks ask of every program."""

from __future__ import annotations

import re

ASKED = {
    "model": "print(sum(1 for _ in model.parameters()))",
    "optimizer": "print(optimizer.param_groups[0]['lr'])",
    "scheduler": "print(scheduler.get_last_lr())",
    "lr_scheduler": "print(lr_scheduler.get_last_lr())",
    "train_dataloader": "print(len(train_dataloader))",
}
"""By the usual name of an object, a snippet that uses it."""
QUERIES = {
    "steps": "SELECT step, lr FROM python.steps ORDER BY step",
    "modules": "SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'forward'",
    "scalars": "SELECT name, value, step FROM python.scalars ORDER BY t_ns",
    "plan": "SELECT total_steps, source FROM python.plan ORDER BY t_ns",
}


_BARS = re.compile(r"(?:([^\n:]*): +\d+%\|[^\n]*\n)+")
"""A progress bar as a file has it, read with `\\r` as the end of a line: how often it is drawn depends on the
time that its work takes."""


def figureless(text: str) -> str:
    """Warnings and progress carry times, paths and pids."""
    return re.sub(r"\d+|[\w./]*probe-\w+[\w./-]*|it/s", "#", _BARS.sub(r"\1: a bar\n", text))
