"""Pairs without a direction that are listed both ways, and divided one by one into a training and a held-out part. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.finders.data.held_out_pairs import divided, rows_cut
from probe.diagnose.code.finders.data.splits import rows_of
from probe.diagnose.code.finders.objectives.edges import both_ways
from probe.diagnose.code.finders.rows.cut_in_two import cuts
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.updates import plain

FINDERS = Finders()
_SAME_PAIRS = frozenset({
    "contiguous", "t", "T", "transpose", "to", "long", "int", "cpu", "cuda", "numpy", "tensor", "as_tensor", "array", "from_numpy", "asarray", "LongTensor", "clone",
    "unique", "coalesce", "sorted", "permute", "astype", "tolist", "list", "builtins.sorted", "builtins.list",
})
_SAME_ENTRIES = ("bool", "float", "int", "long", "to", "numpy", "from_numpy", "astype", "cpu", "tensor", "fill_diagonal", "fill_diagonal_")
_JOINED = ("or", "add", "maximum", "max", "logical_or")
_TURNED = ("T", "t", "transpose", "mT")
_SYMMETRIC = ("mul", "add", "sub", "maximum", "minimum", "cosine_similarity", "pairwise_distance", "einsum")
_EVEN = ("pow", "square", "abs", "norm")
_STEPS = 12


@FINDERS.add("held-out-edges-in-the-graph")
def _mirrored_pairs_split(program: Program) -> Iterator[Remark]:
    """Pairs of which each is listed both ways are divided in random order, one by one, and the score of a pair is that of its
    mirrored one."""
    computation = computation_of(program)
    learned = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    for pairs, pieces in (*divided(computation), *_shuffled(computation)) if learned else ():
        trained = [one for one in pieces if id(one) in learned]
        held = [one for one in pieces if one not in trained and not any(same(one.args[-1], each.args[-1]) for each in trained) and any(user.op not in ("len", "size", "shape") for user in computation.users(one))]
        both = _both_ways(computation, pairs) if trained and held else None
        if both is None and trained and held and (both := _with_its_other_end(computation, pairs, held)) is not None:
            pieces, trained, held = ([one.args[-1] for one in each] for each in (pieces, trained, held))
        if both is None or not any(_is_symmetric(computation, one, trained) for one in learned.values() if one.op in _SYMMETRIC):
            continue
        judged = next((one for one in held if any(_is_symmetric(computation, score, [one]) or _is_of_all(score, one) for score in computation.of(*_SYMMETRIC, "matmul"))), None)
        if judged is None:
            continue
        node = judged.args[0].node if judged.args and judged.args[0].op.endswith("train_test_split") else judged.node
        yield Remark(node, f"{short(node)} holds out pairs one by one, and {short(both.node)} (line {both.line}) lists each pair both ways: mirrored ones of these are in the training part, where they have the same score")
        return


@FINDERS.add("held-out-edges-in-the-graph")
def _mirrored_rows_split(program: Program) -> Iterator[Remark]:
    """Rows of two and what is the same of both, listed both ways, are divided one by one: `(a, b, label)` and `(b, a, label)`."""
    for cut, wholes, _ in cuts(computation_of(program)):
        columns = [bare(each) for whole in wholes for each in (whole.args if whole.op == "torch.utils.data.TensorDataset" else [whole])]
        both_ends = next((one for one in columns for other in columns if one.op == other.op == "cat" and _are_swapped((one, other))), None)
        if both_ends is not None and constant(cut.named.get("shuffle")) is not False and any(_is_said_twice(one) for one in columns):
            yield Remark(cut.node, f"{short(cut.node)} holds out rows one by one, and {short(both_ends.node)} (line {both_ends.line}) lists each pair both ways, with the same beside it: mirrored ones of these are in the training part")
            return
        for one in (each for whole in wholes for each in rows_of(whole)):
            both = one.parts if isinstance(one, Many) and one.grown else []
            if any(len(getattr(row, "parts", ())) > 2 and _is_mirrored_row(row, other) for place, row in enumerate(both) for other in both[:place]):
                yield Remark(cut.node, f"{short(cut.node)} holds out rows one by one, and the list of line {one.line} has each pair both ways with the same beside it: mirrored ones of these are in the training part")
                return


def _shuffled(computation: Computation) -> Iterator[tuple[Value, list[Value]]]:
    """Rows that are put into random order themselves, and cut: the rows, and the parts."""
    for value in computation.of("shuffle"):
        if value.args:
            yield value.args[-1], [one for one in rows_cut(computation, value.args[-1]) if one.number > value.number]
    for value in computation.of("permutation", "sample"):
        rows = next((one for one in value.args if one.op not in ("default_rng", "random.Random") and number(one) is None), None)
        if rows is not None:
            yield rows, list(rows_cut(computation, value))
    for value in computation.of("sklearn.model_selection.train_test_split"):
        if len(value.args) == 1 and constant(value.named.get("shuffle")) is not False:
            yield value.args[0], [one for one in computation.users(value) if one.op == "part"]


# Both ways ------------------------------------------------------------------------------


def _both_ways(computation: Computation, pairs: Value) -> Value | None:
    """What lists each pair both ways, where pairs are all that it lists."""
    if (found := both_ways(pairs)) is not None:
        return found
    at = pairs
    for _ in range(_STEPS):
        if isinstance(at, Many) and not at.grown and len(at.parts) == 1:
            at = at.parts[0]
        elif isinstance(at, Many) and not at.grown and len(at.parts) == 2 and _are_both_of_one(at.parts):
            at = at.parts[0].args[0]
        elif at.args and (at.op in _SAME_PAIRS or (at.op == "stack" and isinstance(at.args[0], Many))):
            at = at.args[0]
        else:
            break
    if at.op in ("nonzero", "argwhere", "where") and len(at.args) == 1:
        return at if _is_mirrored_matrix(at.args[0]) else None
    if at.op.endswith(".to_undirected") and at.op.startswith("torch_geometric."):
        return at
    if isinstance(at, Many) and not at.grown and len(at.parts) == 2:  # the rows of a stack
        return at if _are_swapped(at.parts) else None
    return _listed_both_ways(computation, at.parts) if isinstance(at, Many) and at.grown else None


def _with_its_other_end(computation: Computation, ends: Value, held: list[Value]) -> Value | None:
    """`cat([a, b])`, where the other end of the pairs is `cat([b, a])` and is cut by the same rows."""
    if ends.op != "cat" or not ends.args:
        return None
    others = [one for one in computation.of("part") if len(one.args) == 2 and (end := bare(one.args[0])) is not ends and end.op == "cat" and _are_swapped((ends, end))]
    return ends if any(same(one.args[1], piece.args[-1]) for one in others for piece in held) else None


def _are_both_of_one(rows: Sequence[Value]) -> bool:
    """Whether two rows are the first and the second of one value."""
    return all(one.op == "part" and len(one.args) == 2 and constant(one.args[1]) == place for place, one in enumerate(rows)) and rows[0].args[0] is rows[1].args[0]


def _is_mirrored_matrix(value: Value) -> bool:
    """Whether a matrix is the same as its transposed one: it is added to that, or each entry is set both ways."""
    for _ in range(_STEPS):
        asked = value.op in ("gt", "ne", "ge", "clamp") and all(number(one) is not None for one in value.args[1:])
        if not value.args or not (asked or value.op in _SAME_ENTRIES):
            break
        value = value.args[0]
    if value.op in _JOINED and len(value.args) == 2:
        return any(turned.op in _TURNED and bool(turned.args) and turned.args[0] is one for one, turned in (value.args, value.args[::-1]))
    if value.op == "set_item" and value.args[0].op == "set_item":
        places = [one.args[1] for one in (value, value.args[0])]
        alike = same(value.args[2], value.args[0].args[2])
        return alike and _are_opposite(places[0], places[1]) and value.args[0].args[0].op in ("zeros", "full")
    return False


def _are_opposite(one: Value, other: Value) -> bool:
    """Whether two pairs are each other's mirrored one."""
    return (
        isinstance(one, Many) and isinstance(other, Many) and len(one.parts) == len(other.parts) == 2
        and one.parts[0] is not one.parts[1] and one.parts[0] is other.parts[1] and one.parts[1] is other.parts[0]
    )


def _are_swapped(rows: Sequence[Value]) -> bool:
    """Whether two rows are `cat([a, b])` and `cat([b, a])`."""
    inner = [one.args[0] if one.op == "cat" and one.args else one for one in rows]
    return _are_opposite(inner[0], inner[1]) if all(one.op == "cat" for one in rows) else False


def _is_said_twice(column: Value) -> bool:
    """Whether a column is the same numbers twice, one after the other."""
    parts: Sequence[Value] = getattr(column.args[0], "parts", []) if column.op == "cat" and column.args else []
    if column.op in ("tile", "repeat") and len(column.args) == 2:
        return number(column.args[1]) == 2 and not isinstance(column.node, ast.BinOp)
    return len(parts) == 2 and parts[0] is parts[1]


def _listed_both_ways(computation: Computation, parts: Sequence[Value]) -> Value | None:
    """The pair of a list that stands for many, where the list has with each pair its mirrored one."""
    for place, one in enumerate(parts):
        if any(_is_mirrored_row(one, other) for other in parts[:place]):
            return one
    for one in parts if all(isinstance(one, Many) and len(one.parts) == 2 for one in parts) else ():
        first, second = one.made_of()
        if _all_of_one(computation, first, second, one) or _kept_both_ways(computation, first, second):
            return one
    return None


def _is_mirrored_row(one: Value, other: Value) -> bool:
    """Whether two rows are one pair both ways, each with the same beside it."""
    if not isinstance(one, Many) or not isinstance(other, Many) or len(one.parts) != len(other.parts) or one.where.under != other.where.under:
        return False
    apart = [(first, second) for first, second in zip(one.parts, other.parts, strict=True) if first is not second]
    return len(apart) == 2 and apart[0][0] is apart[1][1] and apart[0][1] is apart[1][0] and constant(apart[0][0]) is None and constant(apart[1][0]) is None


def _all_of_one(computation: Computation, first: Value, second: Value, at: Value) -> bool:
    """Whether two values go over all pairs of different members of one list."""
    if all(one.op == "part" and one.args[0].op == "element" for one in (first, second)) and first.args[0] is second.args[0]:
        whole = first.args[0].args[0]
        return whole.op == "itertools.permutations" and len(whole.args) == 2 and number(whole.args[1]) == 2
    overs = [_over(computation, loop, at) for loop in at.where.loops[-2:]]
    if len(overs) != 2 or any(one is None for one in overs) or overs[0] is not overs[1]:
        return False
    inner = at.where.loops[-1]
    asked = [test for test, _ in at.where.under if inner in test.where.loops]
    compared = [one for one in computation.of("ne", "eq", "lt", "gt", "le", "ge") if inner in one.where.loops and {id(each) for each in one.args} == {id(first), id(second)}]
    return bool(compared) and all(one.op in ("ne", "eq") for one in compared) and all(any(one is each for each in compared) for one in asked)


def _over(computation: Computation, loop: ast.AST, at: Value) -> Value | None:
    """What a loop goes over where a value is computed."""
    found = [over for count, node, over in computation.passes if node is loop and count <= at.number]
    return found[-1] if found else None


def _kept_both_ways(computation: Computation, first: Value, second: Value) -> bool:
    """Whether pairs are the keys of a dict, each with a member of what it keeps, and the dict keeps with each pair its
    mirrored one."""
    if first.op != "part" or second.op != "element" or second.args[0].op != "part" or first.args[0] is not second.args[0].args[0]:
        return False
    row = first.args[0]
    if row.op != "element" or row.args[0].op != "items" or (constant(first.args[1]), constant(second.args[0].args[1])) != (0, 1):
        return False
    table = row.args[0].args[0]
    added = [one for one in computation.of("add", "append") if len(one.args) == 2 and one.args[0].op == "part" and one.args[0].args[0] is table]
    for one in added:
        key, member = one.args[0].args[1], one.args[1]
        if any(other.args[0].args[1] is member and other.args[1] is key and other.where.under == one.where.under for other in added if other is not one and key is not member):
            return True
        if _all_of_one(computation, key, member, one):
            return True
    return False


# Scores -----------------------------------------------------------------------------------


def _is_symmetric(computation: Computation, score: Value, pairs: list[Value]) -> bool:
    """Whether a score compares the two sides of some of the pairs, both made by the same layers, the same either way."""
    sides = [one for one in score.args if constant(one) is None][:2]
    if len(sides) != 2 or (score.op == "sub" and not any(one.op in _EVEN for one in computation.users(score))):
        return False
    return _are_alike(sides[0], sides[1], pairs, through=False)


def _are_alike(one: Value, other: Value, pairs: list[Value], *, through: bool) -> bool:
    """Whether two values are made in the same way of the two sides of some of the pairs: also of some of what is joined to
    features. `through`: layers have been passed on the way."""
    for _ in range(_STEPS):
        if isinstance(one, Many) and isinstance(other, Many) and len(one.parts) == len(other.parts):
            return any(_are_alike(each, its, pairs, through=through) for each, its in zip(one.parts, other.parts, strict=True))
        if one.op != other.op or not one.args or not other.args:
            return False
        if one.op == "part" and len(one.args) == 2 and one.args[0] is other.args[0]:
            return (through or _is_learned(one.args[0])) and _are_sides(one.args[1], other.args[1], pairs)
        if one.op == "run" and len(one.args) == len(other.args) == 2:
            if plain(one.args[0]) is not plain(other.args[0]):
                return False
            if one.args[0].op in ("torch.nn.Embedding", "torch.nn.EmbeddingBag"):
                return _are_sides(one.args[1], other.args[1], pairs)
            one, other, through = one.args[1], other.args[1], True
        else:
            one, other = one.args[0], other.args[0]
    return False


def _is_of_all(score: Value, pairs: Value) -> bool:
    """Whether a product compares one side of pairs with all that there are: `z[pairs[:, 0]] @ z.T`."""
    if score.op != "matmul" or len(score.args) != 2:
        return False
    one, every = score.args
    table = every.args[0] if every.op in _TURNED and every.args else every
    return one.op == "part" and len(one.args) == 2 and one.args[0] is table and _is_learned(table) and any(each is pairs for each in origins(one.args[1]))


def _is_learned(table: Value) -> bool:
    return any(one.op in ("run", "torch.nn.Parameter", "weight") for one in origins(table))


def _are_sides(one: Value, other: Value, pairs: list[Value]) -> bool:
    """Whether two indices are the two sides of some of the pairs."""
    if one is other:
        return False
    shared = {id(each) for each in origins(one)} & {id(each) for each in origins(other)}
    return any(id(each) in shared for each in pairs)
