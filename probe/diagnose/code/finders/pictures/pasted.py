"""Pieces that are pasted into pictures, and labels that go with what is generated. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, sides
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.sides import mixed, sides_of

FINDERS = Finders()


@FINDERS.add("targets-not-mixed")
def _share_of_the_piece(program: Program) -> Iterator[Remark]:
    """A piece of other pictures is pasted into a batch, and the share of the piece is the weight of the labels of the pictures
    that it is pasted into."""
    computation = computation_of(program)
    said: set[int] = set()
    for pasted in computation.of("set_item"):
        ends, order = _pasted(pasted)
        for whole in computation.of("add") if order is not None else ():
            for own, other in sides(whole):
                for share, loss in sides(own) if own.op == "mul" else ():
                    target = loss.args[1] if loss.op in LOSSES and len(loss.args) > 1 else None
                    if target is None or whole.line in said or not _is_area(bare(share), ends) or any(one is order for one in origins(target)):
                        continue
                    rest = next((one for one in other.args if one.op in LOSSES), None) if other.op == "mul" else None
                    if rest is not None and any(one is order for one in origins(rest.args[1])) and any(one is pasted for one in origins(loss.args[0])):
                        said.add(whole.line)
                        yield Remark(whole.node, f"{short(whole.node)} weights the labels of the pictures with {short(share.node)}, which is the share of the piece that {short(pasted.node)} (line {pasted.line}) pastes into them")


def _pasted(value: Value) -> tuple[set[int], Value | None]:
    """The ends of a piece that is pasted, and the order in which the pictures are that it comes from."""
    index = value.args[1] if len(value.args) > 2 else value
    cuts = [one for one in index.parts if one.op == "slice" and len(one.args) == 3 and not is_none(one.args[0])] if isinstance(index, Many) else []
    if len(cuts) != 2:
        return set(), None
    order = next((one for one in origins(value.args[2]) if one.op in ("randperm", "permutation", "flip", "roll")), None)
    return {id(bare(end)) for cut in cuts for end in cut.args[:2]}, order


def _is_area(share: Value, ends: set[int]) -> bool:
    """Whether a number is the area between the ends of a piece, divided by another."""
    area = bare(share.args[0]) if share.op == "div" and len(share.args) == 2 else share
    if area.op != "mul" or len(area.args) != 2 or share.op != "div":
        return False
    return all(side.op == "sub" and len(side.args) == 2 and all(id(bare(end)) in ends for end in side.args) for side in map(bare, area.args))


_ORDERS = ("randperm", "permutation", "randint", "integers", "choice")
_GENERATORS = ("manual_seed", "default_rng", "RandomState", "Generator", "random.Random")
_SEEDS = ("manual_seed", "seed", "setstate", "set_state", "set_rng_state")


@FINDERS.add("mixed-apart")
def _partners_of_their_own(program: Program) -> Iterator[Remark]:
    """Pieces of other samples of the batch are put into the inputs, and the targets are mixed with those of other samples, which
    another draw has chosen."""
    computation = computation_of(program)
    pieces = [(one, partner) for one in computation.of("set_item", "where", "add") if (partner := _partner_in(one)) is not None]
    for sides_of_loss in sides_of(computation) if pieces else ():
        given, beside = sides_of_loss.given, sides_of_loss.beside
        for piece, partner in pieces:
            order = bare(partner.args[1])
            if id(piece) not in given or id(piece) in beside or id(order) in beside:
                continue
            for other in computation.of("part", "index_select"):
                its = bare(other.args[-1]) if len(other.args) > 1 else other
                if its.op not in _ORDERS or its is order or id(other) not in beside or id(other) in given or id(its) in given or other.where.loops != partner.where.loops:
                    continue
                whole = bare(other.args[0])
                mixes = any(id(one) in beside and id(one) not in given for one in computation.users(other.args[0]) if one is not other and one.op not in ("shape", "size", "len", "tuple"))
                if mixes and not same(whole, bare(partner.args[0])) and not _drawn_alike(computation, order, its):
                    yield Remark(other.node, f"{short(other.node)} takes the targets of other samples than {short(piece.node)} (line {piece.line}) puts into the inputs: {short(its.node)} is drawn anew for them")
                    return


def _partner_in(value: Value) -> Value | None:
    """Other samples of a batch, drawn at random, pieces of which are put into the batch."""
    if value.op == "set_item" and len(value.args) > 2:
        whole, put = value.args[0], [value.args[2]]
    elif value.op == "where" and len(value.args) == 3:
        whole, put = value.args[1], [value.args[2]]
        if _is_drawn(bare(whole)):
            whole, put = value.args[2], [whole]
    elif value.op == "add" and (parts := mixed(value)) is not None:
        whole, put = parts[1], [parts[2]]
        if _is_drawn(bare(whole)):
            whole, put = parts[2], [whole]
    else:
        return None
    for one in put:
        while one.op in ("part", "clone", "index_select") and one.args:
            if _is_drawn(one):
                return one if same(bare(one.args[0]), bare(whole)) else None
            one = one.args[0]
    return None


def _is_drawn(value: Value) -> bool:
    """Whether a value is rows that a draw chooses, in whatever order."""
    return value.op in ("part", "index_select") and len(value.args) > 1 and bare(value.args[-1]).op in _ORDERS


def _drawn_alike(computation: Computation, one: Value, other: Value) -> bool:
    """Whether two draws may give the same numbers: by two generators, or after a seed or a state was set between them."""
    mine, its = _generator(one), _generator(other)
    if mine is not None and its is not None and mine is not its:
        return True
    first, last = sorted((one.number, other.number))
    return any(each.op in _SEEDS for each in computation.values[first:last])


def _generator(draw: Value) -> Value | None:
    """The generator that a draw is made by; None where it is that of the whole program."""
    given = draw.named.get("generator", draw.args[0] if draw.args else None)
    return given if given is not None and (draw.named.get("generator") is given or given.op.endswith(_GENERATORS)) else None


def judged_by_another_label(program: Program) -> Iterator[Remark]:
    """What was generated for one label is judged together with another label."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("cat"):
        parts = value.args[0].parts if value.args and isinstance(value.args[0], Many) and len(value.args[0].parts) == 2 else []
        for picture, label in (parts, parts[::-1]) if parts else ():
            judged = _label(label)
            if judged is None or value.line in said or _label(picture) is not None:
                continue
            before = list(origins(picture, stop=("shape", "size", "len", "randint", "device")))
            generated = any(one.op == "run" for one in before) and any(one.op in ("randn", "randn_like", "normal") for one in before)
            given = {id(found): found for one in before if (found := _label(one)) is not None}
            if generated and len(given) == 1 and all(one is not judged for one in before):
                asked = next(iter(given.values()))
                if asked.op == "randint" and not any(one is asked for one in origins(judged)):
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)} judges what was generated for {short(asked.node)} (line {asked.line}) together with {short(judged.node)} (line {judged.line}), which are other labels")


def _label(value: Value) -> Value | None:
    """The labels that a value is the embedding or the one-hot code of."""
    value = bare(value)
    if value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Embedding":
        return bare(value.args[1])
    return bare(value.args[0]) if value.op == "one_hot" and value.args else None


def never_moved(program: Program) -> Iterator[Remark]:
    """A buffer of zeros is taken away from what a network gives, and nothing in the program ever changes it."""
    computation = computation_of(program)
    buffers = {id(one.args[2]): one for one in computation.of("register_buffer") if len(one.args) > 2 and one.args[2].op in ("zeros", "zeros_like")}
    loads = any(isinstance(one.func, ast.Attribute) and one.func.attr in ("load_state_dict", "copy_", "load") for one in program.calls()) if buffers else True
    said: set[int] = set()
    for value in computation.of("sub") if not loads else ():
        made = buffers.get(id(bare(value.args[1]))) if len(value.args) == 2 else None
        name = made.args[1].data if made is not None else None
        if not isinstance(name, str) or value.line in said or not any(one.op == "run" for one in origins(value.args[0])):
            continue
        uses = [one for one in program.everywhere(ast.Attribute) if one.attr == name]
        if uses and all(isinstance(one.ctx, ast.Load) and isinstance(program.parent.get(one), ast.BinOp) for one in uses) and number(value.args[0]) is None and complement_of(value) is None:
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)}: {name} is made of zeros (line {made.line if made is not None else 0}), and nothing in the program changes it")
