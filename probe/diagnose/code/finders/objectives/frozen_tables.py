"""Tables of given vectors that are meant to be tuned. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, constant
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import is_optimizer, parameters, plain

_TABLES = ("torch.nn.Embedding.from_pretrained", "torch.nn.EmbeddingBag.from_pretrained")


def frozen_table_with_a_rate(program: Program) -> Iterator[Remark]:
    """A group of an optimizer has a rate of its own, and holds only a table that `from_pretrained` has frozen."""
    computation = computation_of(program)
    frozen = [one for one in computation.of(*_TABLES) if _is_frozen(one)]
    if not frozen or any(True for _ in computation.of("requires_grad_")) or any(one.data == "requires_grad" for one in computation.of("set_attribute")):
        return
    for optimizer in computation.values:
        given = parameters(optimizer) if is_optimizer(optimizer) else None
        for group in given.parts if isinstance(given, Many) else ():
            rate = group.entries.get("lr") if isinstance(group, Table) else None
            held = group.entries.get("params") if isinstance(group, Table) else None
            table = None if rate is None or held is None else _table(held)
            if rate is not None and constant(rate) != 0 and table is not None and any(table is one for one in frozen):
                yield Remark(group.node, f"{short(group.node)} gives a rate to the table of line {table.line}, and {short(table.node)} freezes it, as it has no freeze=False")
                return


def _is_frozen(table: Value) -> bool:
    """Whether a table is made without saying whether it is frozen: it is."""
    return table.argument("freeze", 1) is None and "**" not in table.named


def _table(held: Value) -> Value | None:
    """The module whose parameters, all of them or its weight, a group holds; None if it holds others too."""
    if isinstance(held, Many):
        return _table(held.parts[0]) if len(held.parts) == 1 else None
    return plain(held.args[0]) if held.op in ("parameters", "weight") and held.args else None
