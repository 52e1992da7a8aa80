"""Samples that are copied before they are divided. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant
from probe.diagnose.code.finders.data.splits import is_cut, rows_of
from probe.diagnose.code.finders.rows.cut_in_two import cuts
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_call, short

FINDERS = Finders()
_NOISE = ("randn", "randn_like", "normal", "standard_normal", "rand_like", "uniform")
_MIRRORED = ("flip", "fliplr", "flipud", "roll", "rot90", "clamp")


@FINDERS.add("copied-before-the-split")
def _copied_before(program: Program) -> Iterator[Remark]:
    """Samples are copied, and copies of one fall into both parts."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for cut, wholes, _ in cuts(computation):
        for one in (each for whole in wholes for each in rows_of(whole)):
            copies = one.op == "fit_resample" and one.args[0].op.rpartition(".")[2] in ("RandomOverSampler", "SMOTE", "ADASYN", "BorderlineSMOTE", "SMOTEENN", "SMOTETomek")
            copies = copies or (one.op == "repeat_interleave" and len(one.args) > 1 and constant(one.args[1]) is None)
            copies = copies or (one.op == "cat" and not one.named.get("dim") and len(one.args) == 1 and _holds_twice(one.args[0]) and not is_call(one.node, "hstack"))
            copies = copies or (one.op == "part" and len(one.args) == 2 and _adds_drawn_again(bare(one.args[1])))
            if copies and one.node not in said and not is_cut(one) and not cut.where.loops:
                said.add(one.node)
                yield Remark(cut.node, f"{short(cut.node)} divides what {short(one.node)} (line {one.line}) has copied: copies of one sample fall into both parts")
                break


def _holds_twice(rows: Value) -> bool:
    """Whether the same labels or samples stand several times among what is joined."""
    parts = [bare(one) for one in rows.parts] if isinstance(rows, Many) else []
    return any(one.op != "@constant" and (one is other or _is_changed_copy(one, other) or _is_changed_copy(other, one)) for place, one in enumerate(parts) for other in parts[:place])


def _is_changed_copy(value: Value, of: Value) -> bool:
    """Whether a value is another one, mirrored, shifted or with noise."""
    for _ in range(12):
        value = bare(value)
        if value is of:
            return of.op not in ("@constant", "zeros", "ones", "arange", "linspace")
        if value.op == "add" and len(value.args) == 2:
            noisy = [one for one in value.args if any(part.op in _NOISE for part in (bare(one), *bare(one).args))]
            value = next((one for one in value.args if len(noisy) == 1 and one is not noisy[0]), value.args[0])
            if len(noisy) != 1:
                return False
        elif value.op in _MIRRORED and value.args:
            value = value.args[0]
        else:
            return False
    return False


def _adds_drawn_again(rows: Value) -> bool:
    """Whether an order of rows holds all of some, and others drawn from these once more."""
    given = rows.args[0] if rows.op == "cat" and rows.args else None
    parts = given.parts if isinstance(given, Many) else []
    pools = {id(bare(pool)) for one in parts if (pool := _drawn_from(bare(one))) is not None}
    all_rows = any(bare(one).op in ("arange", "range") for one in parts)
    return any(id(bare(one)) in pools for one in parts) or (all_rows and bool(pools))


def _drawn_from(value: Value) -> Value | None:
    """What a value is drawn from with replacement."""
    if value.op == "choice" and len(value.args) > 1:
        pool = value.args[1] if value.args[0].op.endswith(("default_rng", "RandomState")) else value.args[0]
        again = value.named.get("replace") or (value.args[3] if len(value.args) > 3 and value.args[1] is pool else value.args[2] if len(value.args) > 2 and value.args[0] is pool else None)
        return pool if again is None or constant(again) is not False else None
    if value.op == "part" and len(value.args) == 2 and bare(value.args[1]).op in ("randint", "integers"):
        return value.args[0]
    return None
