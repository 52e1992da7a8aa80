"""Pairs (edges of a graph, clicks) that are held out, and are part of what a network computes with. Pure; standard library
only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_PRODUCTS = ("matmul", "mm", "spmm", "sparse.mm", "torch.sparse.mm", "bmm")
_SUMS = ("index_add", "scatter_add", "scatter_reduce", "index_reduce", "torch_scatter.scatter")
"""Operations that add up what the neighbours of a node send."""
_MATRICES = ("set_item", "sparse_coo_tensor", "index_put", "scatter", "scipy.sparse.coo_matrix", "scipy.sparse.csr_matrix")
_DRAWN_EVENLY = ("random", "rand", "uniform", "random_sample")
_COLUMNS = ("part", "t", "T", "transpose", "cat", "stack", "tuple", "list", "flip", "unbind", "concatenate", "vstack", "hstack")


@FINDERS.add("held-out-pairs-in-the-input")
def _in_the_graph(program: Program) -> Iterator[Remark]:
    """A matrix of all pairs is multiplied with what a network computes, and a part of the pairs is held out."""
    computation = computation_of(program)
    learned = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    for pairs, pieces in divided(computation):
        held = [one for one in pieces if id(one) not in learned and not any(id(each) in learned and each.args[1] is one.args[1] for each in pieces) and any(user.op not in ("len", "size", "shape") for user in computation.users(one))]
        if not held or len(held) == len(pieces):
            continue
        pairs = _both_directions(pairs)
        for product in (one for one in learned.values() if one.op in (*_PRODUCTS, *_SUMS) or (one.op == "run" and one.args[0].op.startswith("torch_geometric.nn."))):
            if product.op in _SUMS or product.op == "run":
                matrix = product if any(_are_columns(one, pairs, pieces) for one in product.args[1:]) else None
            else:
                matrix = next((one for one in origins(product.args[0], without=pieces) if one.op in _MATRICES and _are_columns(one.args[1 if one.op == "set_item" else 0], pairs, pieces)), None)
                matrix = matrix or _of_all_entries(product.args[0], pairs, pieces)
            if matrix is not None:
                yield Remark(matrix.node, f"{short(matrix.node)} is made of all pairs, also of those held out by {short(held[0].node)} (line {held[0].line}), and the model computes with it")
                return


def divided(computation: Computation) -> Iterator[tuple[Value, list[Value]]]:
    """Rows that are divided, in random order or by place: the rows, and the parts."""
    for order in computation.of("randperm", "permutation"):
        for user in _indexed_by(computation, order):
            yield bare(user.args[0]), [*rows_cut(computation, user)]
        by_place: dict[int, tuple[Value, list[Value]]] = {}
        for piece in rows_cut(computation, order):
            for user in (one for rows in _batches(computation, piece) for one in _indexed_by(computation, rows)):
                if user.args[0] is not piece:
                    by_place.setdefault(id(bare(user.args[0])), (bare(user.args[0]), []))[1].append(user)
        yield from by_place.values()
    by_mask: dict[tuple[int, int], list[Value]] = {}
    for one in computation.of("part"):
        mask = one.args[1] if len(one.args) == 2 else one
        inverted = mask.op == "invert"
        asked = mask.args[0] if inverted and mask.args else mask
        by_mask.setdefault((id(bare(one.args[0])), id(asked)), []).append(one)
    for found in by_mask.values():
        if {one.args[1].op == "invert" for one in found} == {True, False}:
            yield bare(found[0].args[0]), found
    yield from _by_limits(computation)
    for head in computation.of("part"):
        if len(head.args) == 2 and head.args[1].op == "slice" and is_none(head.args[1].args[0]) and not is_none(head.args[1].args[1]) and not head.where.loops:
            rest = [one for one in rows_cut(computation, head.args[0]) if one.args[1].op == "slice" and one.args[1].args[0] is head.args[1].args[1]]
            if rest:
                yield bare(head.args[0]), [head, *rest]
    yield from _of_each_user(computation)


def _of_each_user(computation: Computation) -> Iterator[tuple[Value, list[Value]]]:
    """Pairs that are listed user by user, of which the first few of each user are one part and the rest another."""
    for head in computation.of("part"):
        cut = _second_slice(head)
        if cut is None or not is_none(cut.args[0]) or is_none(cut.args[1]):
            continue
        rest = [one for one in computation.users(head.args[0]) if one is not head and (other := _second_slice(one)) is not None and one.args[0] is head.args[0] and other.args[0] is cut.args[1]]
        whole = bare(head.args[0])
        if rest and whole.op == "gather":
            yield bare(whole.args[0]), [head, *rest]


def _second_slice(value: Value) -> Value | None:
    """The slice of a value's second axis that another one is: of `x[:, a:b]`."""
    return value.args[1].parts[1] if value.op == "part" and len(value.args) == 2 and isinstance(value.args[1], Many) and _cuts_columns(value.args[1]) else None


def _by_limits(computation: Computation) -> Iterator[tuple[Value, list[Value]]]:
    """Rows that are divided by a number that is drawn for each of them, which is below a limit for one part and not below it for another."""
    drawn: dict[tuple[int, int], list[tuple[Value, str, Value]]] = {}
    for one in computation.of("part"):
        mask = bare(one.args[1]) if len(one.args) == 2 else one
        for asked in mask.args if mask.op in ("and", "logical_and") else (mask,):
            if asked.op in ("lt", "le", "gt", "ge") and len(asked.args) == 2 and bare(asked.args[0]).op in _DRAWN_EVENLY:
                drawn.setdefault((id(bare(one.args[0])), id(asked.args[0])), []).append((one, asked.op[0], asked.args[1]))
    for found in drawn.values():
        pieces = {id(one): one for one, _, _ in found}
        if any(way == "l" and other == "g" and one is not two and same(limit, least) for one, way, limit in found for two, other, least in found):
            yield bare(found[0][0].args[0]), list(pieces.values())


def _batches(computation: Computation, rows: Value) -> Iterator[Value]:
    """Numbers of rows, and batches of them: drawn from them, or cut of them in a loop."""
    yield rows
    for user in computation.users(rows):
        if user.op == "part" and len(user.args) == 2 and user.args[0] is rows and user.args[1].op in ("randint", "randperm", "integers", "choice", "part", "element"):
            yield user
        elif user.op in ("split", "chunk", "array_split") and user.args[0] is rows:
            yield from (one for one in computation.users(user) if one.op in ("element", "part"))


def _indexed_by(computation: Computation, index: Value) -> Iterator[Value]:
    """What takes rows, or columns, by an index."""
    for user in computation.users(index):
        if user.op == "part" and len(user.args) == 2 and user.args[1] is index and user.args[0] is not index:
            yield user
        elif user.op == "tuple":
            yield from (one for one in computation.users(user) if one.op == "part" and one.args[1] is user)


def rows_cut(computation: Computation, whole: Value) -> Iterator[Value]:
    """The parts that rows are cut into."""
    for user in computation.users(whole):
        if user.op == "part" and user.args[0] is whole and len(user.args) == 2 and (user.args[1].op == "slice" or _cuts_columns(user.args[1])):
            yield user
        elif user.op in ("split", "tensor_split", "split_with_sizes") and user.args[0] is whole:
            yield from (one for one in computation.users(user) if one.op == "part")


def _of_all_entries(matrix: Value, pairs: Value, pieces: list[Value]) -> Value | None:
    """A matrix whose entries above 0 are the pairs that were divided, and which says nothing of the parts."""
    inner = bare(pairs, "t", "T", "transpose")
    if inner.op not in ("nonzero", "argwhere") or len(inner.args) != 1:
        return None
    whole = bare(inner.args[0], "triu", "tril", "gt", "ne", "bool")
    made = list(origins(matrix))
    divided_too = any(one is piece for one in made for piece in pieces)
    return matrix if whole.op != "@constant" and any(one is whole or one is inner.args[0] for one in made) and not divided_too else None


def _cuts_columns(index: Value) -> bool:
    """Whether an index cuts the second axis, and takes the first one whole: `pairs[:, :n]`."""
    parts = index.parts if isinstance(index, Many) else []
    return len(parts) == 2 and all(one.op == "slice" for one in parts) and all(is_none(one) for one in parts[0].args[:2])


def _both_directions(pairs: Value) -> Value:
    """Pairs that are listed in both directions, of which one direction was taken: `edges[:, row < col]`."""
    index = pairs.args[1] if pairs.op == "part" and len(pairs.args) == 2 else None
    asked = index.parts[-1] if isinstance(index, Many) and index.parts else index
    if asked is not None and asked.op in ("lt", "gt", "le", "ge") and len(asked.args) == 2 and all(one.op == "part" and bare(one.args[0]) is bare(pairs.args[0]) for one in asked.args):
        return bare(pairs.args[0])
    return pairs


def _are_columns(places: Value, pairs: Value, pieces: list[Value]) -> bool:
    """Whether places are those that the pairs say: their two columns."""
    waiting = [places]
    for _ in range(60):
        if not waiting:
            return False
        at = waiting.pop()
        if at is pairs:
            return True
        inner = bare(at)
        if inner is not at:
            waiting.append(inner)
        elif at.op == "add" and len(at.args) == 2:
            waiting.append(at.args[0])  # items are numbered after the users
        elif at.op in _COLUMNS and not any(at is one for one in pieces):
            waiting += [*at.made_of()][: 1 if at.op == "part" else None]
    return False
