"""What a job is warned of names the same line, passes the same filters and comes as often as without us."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from agent.nursery import Forked
from probe.job.instruments.core.patch import unseen
from probe.job.introspection import python_frames
from probe.job.introspection.thread_stacks import describe

ONLY_FOR_FSDP = "FullyShardedDataParallel.clip_grad_norm_"
OUR_FRAME = re.compile(
    r"^(\S*: )?  File \"[^\"]*/probe/importlib_bootstrap/[^\n]*\n((\S*: )?    [^\n]*\n)+", re.MULTILINE
)


def test_everything_that_is_wrapped_warns_as_without_probe(fork: Callable[..., Forked]) -> None:
    (plain, expected), (result, errors) = (said(fork("warns_through_wrappers", *words, watched=False))
                                           for words in ((), ("--probe",)))
    assert set(result["wrapped"]) - set(plain["called"]) == {ONLY_FOR_FSDP}
    assert expected.count("UserWarning: ") > 1000 and expected.count("raised UserWarning") > 300
    # A traceback, as of a filter that makes errors, has a line for each wrapper that it goes through.
    assert OUR_FRAME.sub("", errors) == expected


def said(job: Forked) -> tuple[dict[str, Any], str]:
    """Its result and its stderr, once it has ended."""
    result = job.result()
    assert job.let_go() == 0
    return result, job.errors()


def test_a_wrapper_is_shown_under_the_path_of_its_own_file() -> None:
    code = unseen(python_frames.walk.__code__)
    assert "importlib_bootstrap" in code.co_filename
    frame = FunctionType(code, vars(python_frames))(None).gi_frame
    assert describe(0, frame, 1, lambda _: None)["file"] == python_frames.__file__
