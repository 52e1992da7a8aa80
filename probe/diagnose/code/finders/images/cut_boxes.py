"""Boxes that are cut out of one picture and put into another, and what share of the loss they get. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import Product, complement_of, product

FINDERS = Finders()
_SHARES = ("beta", "betavariate", "rand", "uniform", "random")
_CUTS = ("clamp", "maximum", "minimum", "max", "min", "builtins.max", "builtins.min")


@FINDERS.add("targets-not-mixed")
def _share_before_the_cut(program: Program) -> Iterator[Remark]:
    """A box is cut off at the border of the picture, and the loss shares the targets out by the size that was drawn."""
    computation = computation_of(program)
    pasted = [value for value in computation.of("set_item") if len(value.args) == 3 and any(one.op in _CUTS for one in _bounds(value.args[1]))]
    for value in computation.of("add") if pasted else ():
        parts = [product(one) for one in value.args] if len(value.args) == 2 else []
        if len(parts) == 2 and (put := _box_of_labels(value, parts, pasted)) is not None:
            drawn = next(bare(one) for part in parts for one in part.above if bare(one).op in _SHARES)
            yield Remark(value.node, f"{short(value.node)} takes {short(drawn.node)} as it was drawn (line {drawn.line}), and {short(put.node)} (line {put.line}) is cut off at the border: the box is smaller than that")
            return
        if len(parts) != 2 or value.where.no_grad or not all(any(bare(one).op == "cross_entropy" for one in part.above) for part in parts):
            continue
        shares = [next((bare(one) for one in part.above if bare(one).op != "cross_entropy" and number(one) is None), None) for part in parts]
        share = next((one for one in shares if one is not None and one.op in _SHARES), None)
        rest = next((one for one in shares if one is not None and share is not None and (inner := complement_of(one)) is not None and bare(inner) is share), None)
        if share is None or rest is None:
            continue
        inputs = {id(one) for part in parts for loss in part.above for one in origins(loss)}
        box = next((one for one in pasted if id(one) in inputs and any(each is share for each in origins(one.args[1]))), None)
        if box is not None:
            yield Remark(value.node, f"{short(value.node)} takes {short(share.node)} as it was drawn (line {share.line}), and {short(box.node)} (line {box.line}) is cut off at the border: the box is smaller than that")
            return


def _box_of_labels(value: Value, parts: list[Product], pasted: list[Value]) -> Value | None:
    """The box that was put into samples, where labels are mixed with those of the same other samples by the share as it was drawn."""
    for first, second in (parts, parts[::-1]):
        share = next((bare(one) for one in first.above if bare(one).op in _SHARES), None)
        rest = next((one for one in second.above if share is not None and (inner := complement_of(bare(one))) is not None and bare(inner) is share), None)
        others = [bare(one) for one in second.above if one is not rest]
        if share is None or rest is None or len(others) != 1 or others[0].op != "part" or len(others[0].args) != 2:
            continue
        order = others[0].args[1]
        for box in pasted:
            mixed = any(one is order for one in origins(box.args[2]))
            if mixed and box.where.functions == value.where.functions and any(one is share for one in origins(box.args[1])):
                return box
    return None


def _bounds(index: Value) -> Iterator[Value]:
    """What the cuts of an index begin and end with."""
    for one in index.parts if isinstance(index, Many) else [index]:
        if one.op == "slice":
            yield from (bare(each, "int", "builtins.int") for each in one.args)
