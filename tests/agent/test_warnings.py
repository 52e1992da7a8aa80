"""What a job is warned of names the same line, passes the same filters and comes as often as without us."""

from __future__ import annotations

import re

from harness import Place, run_program

ONLY_FOR_FSDP = "FullyShardedDataParallel.clip_grad_norm_"
OUR_FRAME = re.compile(
    r"^(\S*: )?  File \"[^\"]*/probe/importlib_bootstrap/[^\n]*\n((\S*: )?    [^\n]*\n)+", re.MULTILINE
)


def test_everything_that_is_wrapped_warns_as_without_probe(place: Place) -> None:
    plain, expected = run_program(place, "warns_through_wrappers", watched=False)
    result, errors = run_program(place, "warns_through_wrappers", "--probe", watched=False)
    assert set(result["wrapped"]) - set(plain["called"]) == {ONLY_FOR_FSDP}
    assert expected.count("UserWarning: ") > 1000 and expected.count("raised UserWarning") > 300
    # A traceback, as of a filter that makes errors, has a line for each wrapper that it goes through.
    assert OUR_FRAME.sub("", errors) == expected
