"""Sequences that a network writes on, token by token. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    alternatives,
    comes_from,
    number,
    origins,
)
from probe.diagnose.code.finders.losses.padded_time import filled
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_run_of_network, networks

FINDERS = Finders()
_PAD_SEQUENCE = "torch.nn.utils.rnn.pad_sequence"


@FINDERS.add("padded-on-the-right")
def _next_after_padding(program: Program) -> Iterator[Remark]:
    """The next token is that after the last position of a batch, in which shorter prompts are filled up at their end."""
    computation = computation_of(program)
    known = networks(computation)
    for joined in computation.of("cat"):
        pieces = joined.args[0].parts if joined.args and isinstance(joined.args[0], Many) else []
        if len(pieces) != 2 or not joined.where.loops or not joined.where.no_grad:
            continue
        ids, added = pieces
        padded = next((found[0] for each in alternatives(ids) if (found := filled(each)) is not None), None)
        at_end = next((one for one in origins(added) if one.op == "part" and _is_last(one.args[1]) and any(is_run_of_network(each, known) for each in origins(one.args[0]))), None)
        if padded is None or at_end is None or not comes_from(at_end, padded):
            continue
        masked = any(one.op in ("masked_fill", "ne", "gather", "flip", "reversed", "lengths") for one in origins(at_end, stop=(_PAD_SEQUENCE,)) if comes_from(one, padded))
        if not masked and not any(one.op in ("flip", "reversed") for one in origins(padded)):
            yield Remark(at_end.node, f"{short(at_end.node)} is what follows the last position, where {short(padded.node)} (line {padded.line}) has put the padding of shorter prompts")
            return


def _is_last(index: Value) -> bool:
    """Whether an index takes the last position of each sequence: `[:, -1]`."""
    return isinstance(index, Many) and len(index.parts) >= 2 and index.parts[0].op == "slice" and number(index.parts[1]) == -1
