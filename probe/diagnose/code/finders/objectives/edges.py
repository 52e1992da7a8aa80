"""Edges of graphs: joined in batches, split, and passed along. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import grows_with, rank

FINDERS = Finders()
_TURNED = ("part", "t", "T", "transpose", "unbind", "chunk", "split", "permute", "movedim", "element")
"""Operations that take some of the edges or of their ends, or turn the axes."""
_BY_ROW = frozenset({
    "run", "relu", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "dropout", "layer_norm", "batch_norm", "normalize", "mul", "add",
    "sub", "div", "zeros_like", "index_add", "scatter_add", "scatter", "identity", "softplus", "new_zeros",
})
"""Operations that give a row for each row."""
_NEW = frozenset({
    "add", "sub", "mul", "full", "full_like", "new_full", "arange", "range", "repeat", "repeat_interleave", "zeros", "ones", "zeros_like",
    "ones_like", "cumsum", "@constant", "index", "count", "len", "unknown", "where",
})
"""Operations that make numbers of nodes that a sample does not have itself."""
_ORDERS = ("randperm", "permutation")


# Graphs in a batch ---------------------------------------------------------------


@FINDERS.add("edges-not-shifted")
def _joined_with_their_own_numbers(program: Program) -> Iterator[Remark]:
    """Edges of several graphs are joined as they are, and say which rows are taken of what is made of their joined nodes."""
    computation = computation_of(program)
    ends: dict[int, set[float]] = {}
    for value, base, index in _taken_by_index(computation):
        edges = _joined(index)
        place = None if edges is None else _end(index, edges)
        if edges is None or place is None or not _of_samples(computation, edges):
            continue
        ends.setdefault(id(edges), set()).add(place)
        if len(ends[id(edges)]) < 2:
            continue
        nodes = next((one for one in _rows_from(base) if one is not edges and one.where.functions == edges.where.functions and _of_samples(computation, one)), None)
        if nodes is not None and number(nodes.argument("dim", 1) or Value("@constant", node=nodes.node, where=nodes.where, data=0)) == 0:
            yield Remark(edges.node, f"{short(edges.node)} joins the edges of several graphs with the numbers that nodes have in their own graph, and {short(value.node)} (line {value.line}) takes rows of all nodes in a row ({short(nodes.node)}) by them")
            return


@FINDERS.add("edges-not-shifted")
def _ends_joined_apart(program: Program) -> Iterator[Remark]:
    """The two ends of the edges of several graphs are joined each by itself: rows of all nodes are taken by one, and added up
    by the other, and at least one of the two has the numbers that nodes have in their own graph."""
    computation = computation_of(program)
    taken: list[tuple[Value, Value, Value]] = []
    added: list[tuple[Value, Value, Value]] = []
    for value, base, index in _taken_by_index(computation):
        joined = _joined(index)
        if joined is not None and isinstance(joined.args[0], Many) and joined.args[0].grown and number(joined.argument("dim", 1) or _zero(joined)) == 0:
            (taken if value.op in ("part", "index_select") else added).append((value, base, joined))
    for value, _, joined in added:
        here = joined.where.functions
        other = next((one for one in taken if one[2] is not joined and one[2].where.functions == here and one[2].args[0].op == joined.args[0].op), None)
        if other is None:
            continue
        apart = [one for one in (other[2], joined) if _of_samples(computation, one)]
        nodes = next((one for one in _rows_from(other[1]) if one not in (joined, other[2]) and one.where.functions == here and _of_samples(computation, one)), None)
        if apart and nodes is not None:
            yield Remark(apart[0].node, f"{short(apart[0].node)} joins the edges of several graphs with the numbers that nodes have in their own graph, and {short(value.node)} (line {value.line}) adds up rows of all nodes in a row ({short(nodes.node)})")
            return


def _zero(at: Value) -> Value:
    return Value("@constant", node=at.node, where=at.where, data=0)


def _taken_by_index(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Each place where rows are taken or added to by an index: it, whose rows, and the index."""
    for value in computation.of("part", "index_select", "index_add", "scatter_add"):
        if value.op == "part" and len(value.args) == 2 and value.args[1].op not in ("@constant", "slice", "tuple", "index"):
            yield value, value.args[0], value.args[1]
        elif value.op in ("index_add", "index_select", "scatter_add") and len(value.args) > 2 and number(value.args[1]) == 0:
            yield value, value.args[0], value.args[2]


def _joined(value: Value, depth: int = 16) -> Value | None:
    """The `cat` that an index is a part of."""
    while depth and value.args:
        if value.op == "cat":
            return value
        if value.op not in _TURNED and value.op not in KEPT and value.op not in SHAPED:
            return None
        value, depth = value.args[0], depth - 1
    return None


def _of_samples(computation: Computation, joined: Value) -> bool:
    """Whether a `cat` is one of a part of each sample, as many as there are, each as the sample has it."""
    given = joined.args[0] if joined.args else None
    if joined.op != "cat" or not isinstance(given, Many) or not given.grown:
        return False
    parts = [_plain(one) for one in given.parts]
    here = joined.where.functions
    made = [one for one in parts if one.op in _NEW and one.where.functions[: len(here)] == here]
    return bool(parts) and not made and not any(_is_shifted(computation, one, here) for one in given.parts) and all(one.op not in ("unknown", "@input", "run") for one in parts)


def _plain(value: Value) -> Value:
    """A value without what only turns or converts it."""
    while value.args and (value.op in KEPT or value.op in SHAPED or value.op in ("t", "T", "transpose")) and value.op not in ("stack", "either"):
        value = value.args[0]
    return value


def _is_shifted(computation: Computation, value: Value, here: tuple[ast.AST, ...]) -> bool:
    """Whether something is added to a part of a sample where it is joined."""
    return any(user.op == "add" and user.where.functions[: len(here)] == here for user in computation.users(value))


def _rows_from(value: Value) -> Iterator[Value]:
    """The values joined by rows that the rows of a value are made from, one by one."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 300:
        at = waiting.pop()
        inner: list[Value] = []
        if at.op == "cat":
            given = at.args[0] if at.args else None
            over = at.argument("dim", 1)
            if isinstance(given, Many) and over is not None and number(over) in (1, -1):
                inner = given.parts
            yield at
        elif at.op == "run":
            inner = list(at.args[1:])
        elif at.op in _BY_ROW or at.op in SHAPED or (at.op in KEPT and at.op != "stack"):
            inner = list(at.args)
        for one in inner:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


# Graphs of one kind, flattened ------------------------------------------------------


@FINDERS.add("edges-not-shifted")
def _edges_of_one_graph(program: Program) -> Iterator[Remark]:
    """A batch of graphs with the same edges, whose nodes are put in a row, and the edges of one graph say which rows are taken."""
    computation = computation_of(program)
    used: dict[int, list[tuple[Value, Value, Value]]] = {}
    for value, base, index in _taken_by_index(computation):
        flat = _flattened(base)
        if flat is not None and not any(one is flat for one in origins(index)):
            used.setdefault(id(flat), []).append((value, flat, index))
    for value in computation.of("run"):
        flat = _flattened(value.args[1]) if len(value.args) > 2 and value.args[0].op.startswith("torch_geometric.nn.") else None
        if flat is not None:
            used.setdefault(id(flat), []).extend([(value, flat, value.args[2]), (value, flat, value.args[2])])
    for found in used.values() if not _is_one_by_one(computation) else ():
        edges = [(value, flat, _root(index) or index) for value, flat, index in found]
        takes = {value.op in ("part", "index_select") for value, _, _ in edges}
        ends = {(id(root), _end(index, root)) for (_, _, root), (_, _, index) in zip(edges, found, strict=True)}
        whole = edges[0][0].op == "run"
        if (whole or (len(takes) == 2 and len(ends) == 2)) and all(_is_fixed(computation, root) and not grows_with(root, flat.args[0]) for _, flat, root in edges):
            value, flat, root = edges[0]
            yield Remark(value.node, f"{short(value.node)} takes rows of all graphs of a batch ({short(flat.node)}, line {flat.line}) by the edges of one graph ({short(root.node)}, line {root.line}): no edge joins the nodes of the others")
            return


def _is_one_by_one(computation: Computation) -> bool:
    """Whether each batch of the program is one graph."""
    sizes = [one.argument("batch_size", 1) for one in computation.of("torch.utils.data.DataLoader") if "batch_sampler" not in one.named]
    return bool(sizes) and all(one is None or number(one) == 1 for one in sizes)


def _flattened(value: Value) -> Value | None:
    """Where the nodes of a batch of graphs were put in a row, of what is computed from them row by row: `x.view(b * n, f)`,
    `x.flatten(0, 1)`."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 300:
        at = waiting.pop()
        if _puts_in_a_row(at):
            return at
        inner: list[Value] = []
        if at.op == "run":
            inner = list(at.args[1:2])
        elif at.op == "cat" and at.args and isinstance(at.args[0], Many) and number(at.argument("dim", 1)) in (-1, 1):
            inner = at.args[0].parts
        elif at.op in _BY_ROW or at.op in ("contiguous", "squeeze") or (at.op in KEPT and at.op not in ("stack", "rows", "list", "tuple")):
            inner = list(at.args[:2])
        for one in inner:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
    return None


def _puts_in_a_row(value: Value) -> bool:
    if value.op == "flatten" and len(value.args) == 3:
        return number(value.args[1]) == 0 and number(value.args[2]) == 1 and rank(value.args[0]) == 3
    if value.op not in ("view", "reshape") or len(value.args) < 2:
        return False
    sizes = value.args[1].parts if isinstance(value.args[1], Many) else value.args[1:]
    if len(sizes) != 2:
        return False
    if number(sizes[0]) == -1:
        return rank(value.args[0]) == 3
    places = [_size_of(one, value.args[0]) for one in sizes[0].args] if sizes[0].op == "mul" else []
    return sorted(one for one in places if one is not None) == [0, 1]


def _size_of(value: Value, of: Value) -> int | None:
    """Which axis of a value another one is the length of."""
    if value.op == "part" and len(value.args) == 2 and value.args[0].op in ("shape", "size") and value.args[0].args[0] is of:
        known = number(value.args[1])
    else:
        known = number(value.args[1]) if value.op == "size" and len(value.args) == 2 and value.args[0] is of else None
    return None if known is None else int(known)


def _is_fixed(computation: Computation, edges: Value) -> bool:
    """Whether a list of edges is made once, of numbers or of what a file holds, and without the size of a batch."""
    if edges.op in ("cat", "hstack", "concatenate"):
        given = edges.args[0] if edges.args else None
        return isinstance(given, Many) and not given.grown and all(_is_fixed(computation, _root(one) or one) for one in given.parts)
    sizes = {one.argument("batch_size", 1) for one in computation.of("torch.utils.data.DataLoader")}
    sizes |= {one.args[2] for one in computation.of("index") if len(one.args) == 3}
    batch = {each.node for one in sizes if one is not None for each in origins(one) if each.op == "@constant"}
    if edges.op in ("@constant", *_MOVED) or (not isinstance(edges, Many) and not edges.args):
        return False
    return not any(one.op in _UNKNOWN or one.op in _MOVED or (one.op == "@constant" and one.node in batch) for one in origins(edges))


_UNKNOWN = ("@input", "unknown", "run", "element", "next", "star", "torch.utils.data.DataLoader", "randint", "randperm", "multinomial")
_MOVED = ("repeat", "repeat_interleave", "expand", "tile", "block_diag", "kron", "cumsum")
"""What makes edges of many graphs from those of one."""


# Edges of both directions -----------------------------------------------------------


@FINDERS.add("held-out-edges-in-the-graph")
def _reverse_kept(program: Program) -> Iterator[Remark]:
    """Edges that are listed in both directions are split one by one, at random: the reverse of a held-out edge is in another
    part."""
    computation = computation_of(program)
    for order in computation.of(*_ORDERS, "shuffle", "sklearn.model_selection.train_test_split"):
        if order.where.loops:
            continue
        for whole in {id(one): one for one in _cut_by(computation, order)}.values():
            twice = both_ways(whole)
            if twice is not None:
                yield Remark(order.node, f"{short(order.node)} splits edges one by one that are listed in both directions ({short(twice.node)}, line {twice.line}): the reverse of a held-out edge is among those of the training")
                return


def _cut_by(computation: Computation, order: Value) -> Iterator[Value]:
    """What a random order cuts in two or more parts."""
    if order.op.endswith("train_test_split"):
        yield from order.args[:1]
        return
    if order.op == "shuffle":
        for whole in order.args:
            cuts = [one for one in computation.users(whole) if one.op == "part" and one.number > order.number and one.args[1].op == "slice"]
            if len({tuple(map(id, one.args[1].args[:2])) for one in cuts}) > 1:
                yield whole
        return
    taken: dict[int, tuple[Value, set[tuple[object, ...]]]] = {}
    for user in computation.users(order):
        for piece in ([user] if user.op == "part" and user.args[1].op == "slice" else []):
            for at in (one for each in (piece, *(same for same in computation.users(piece) if bare(same) is piece)) for one in _indexed(computation, each)):
                taken.setdefault(id(at), (at, set()))[1].add(tuple(id(one) if constant(one) is None else constant(one) for one in piece.args[1].args[:2]))
    for mixed in _mixed(computation, order):
        bounds = {tuple(map(id, one.args)) for cut in computation.users(mixed) if cut.op == "part" for one in (cut.args[1], *getattr(cut.args[1], "parts", ())) if one.op == "slice" and any(constant(end) is not None or end.op != "@constant" for end in one.args[:2])}
        if len(bounds) > 1:
            yield mixed.args[0]
    yield from (whole for whole, bounds in taken.values() if len(bounds) > 1)


def _tuples(computation: Computation, value: Value) -> list[Value]:
    return [one for one in computation.users(value) if isinstance(one, Many) and one.op == "tuple"]


def _indexed(computation: Computation, index: Value) -> Iterator[Value]:
    """What an index takes rows or columns of."""
    yield from (one.args[0] for one in _mixed(computation, index))


def _mixed(computation: Computation, index: Value) -> Iterator[Value]:
    """The rows or columns that an index takes."""
    for at in (index, *_tuples(computation, index)):
        yield from (user for user in computation.users(at) if user.op == "part" and len(user.args) == 2 and user.args[1] is at)


def both_ways(value: Value) -> Value | None:
    """Where a list of edges gets each edge in both directions: a `cat` of edges and their reverse, or a list that both are
    added to."""
    at = value
    for _ in range(10):
        if isinstance(at, Many) and at.grown:
            pairs = [one for one in at.parts if isinstance(one, Many) and len(one.parts) == 2]
            return next((other for one in pairs for other in pairs if one.parts[0] is other.parts[1] and one.parts[1] is other.parts[0] and one.parts[0] is not one.parts[1] and one.number < other.number), None)
        if at.op == "cat" and at.args and isinstance(at.args[0], Many) and len(at.args[0].parts) == 2:
            first, second = at.args[0].parts
            return at if _is_reverse(first, second) or _is_reverse(second, first) else None
        if at.op in ("stack", "vstack", "array", "tensor") and at.args and _exchanged(*(_halves(one) for one in getattr(at.args[0], "parts", ()))):
            return at
        one_end = at.op == "part" and len(at.args) == 2 and number(at.args[1]) is not None
        if not at.args or not (one_end or at.op in KEPT or at.op in SHAPED or at.op in ("t", "T", "transpose", "sorted", "coalesce", "unique")):
            return None
        at = at.args[0]
    return None


def _halves(value: Value) -> list[Value]:
    """What a value is two parts of, one behind the other: `cat([a, b])`."""
    given = value.args[0] if value.op in ("cat", "concatenate", "hstack") and value.args else None
    return list(given.parts) if isinstance(given, Many) and not given.grown else []


def _exchanged(*pairs: list[Value]) -> bool:
    """Whether two lists hold the same two values, in the other order."""
    return len(pairs) == 2 and all(len(one) == 2 for one in pairs) and pairs[0][0] is pairs[1][1] and pairs[0][1] is pairs[1][0] and pairs[0][0] is not pairs[0][1]


def _is_reverse(value: Value, of: Value) -> bool:
    """Whether a value holds the edges of another one, with their two ends exchanged."""
    value = bare(value)
    of = bare(of)
    rows = [one.args[0] if one.op in ("stack", "vstack") and one.args else one for one in (value, of)]
    if all(isinstance(one, Many) for one in rows) and _exchanged(*(list(one.parts) for one in rows if isinstance(one, Many))):
        return True
    if value.op in ("flip", "fliplr", "flipud") and value.args:
        return bare(value.args[0]) is of
    if value.op == "part" and len(value.args) == 2 and bare(value.args[0]) is of:
        index = value.args[1]
        rows = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
        return any((one.op == "slice" and number(one.args[2]) == -1) or (isinstance(one, Many) and [number(each) for each in one.parts] == [1, 0]) for one in rows)
    return isinstance(value, Many) and len(value.parts) == 2 and [_end(one, of) for one in value.parts] == [1, 0]


def _adds_axes(value: Value) -> bool:
    """Whether an index takes all of a value, and only adds axes to it: `x[:, None]`."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    given = index.parts if isinstance(index, Many) else []
    new = [one for one in given if one.op == "@constant" and one.data is None]
    return bool(new) and all(one in new or (one.op == "slice" and all(end.op == "@constant" and end.data is None for end in one.args)) for one in given)


def _list_of(value: Value) -> Value:
    """A list of edges, before it was turned and converted."""
    while value.args and (value.op in KEPT or value.op in SHAPED or value.op in ("t", "T", "unbind", "transpose")):
        value = value.args[0]
    return value


def _end(value: Value, of: Value) -> float | None:
    """Which end of the edges `of` a value is: 0 or 1."""
    while value.args and (_adds_axes(value) or (value.op != "part" and (value.op in KEPT or value.op in SHAPED))):
        value = value.args[0]
    if value.op != "part" or len(value.args) != 2 or _list_of(value.args[0]) is not _list_of(of):
        return None
    index = value.args[1]
    return number(index.parts[-1]) if isinstance(index, Many) and index.parts else number(index)


# Edges that are entered once ----------------------------------------------------------


def entered_in_one_direction(program: Program) -> Iterator[Remark]:
    """Edges without a direction are listed once, and each brings messages to one of its two ends alone."""
    computation = computation_of(program)
    received: dict[int, list[tuple[Value, Value, float]]] = {}
    for value, edges, place in (*_received(computation), *_entered(computation)):
        received.setdefault(id(edges), []).append((value, edges, place))
    for found in received.values():
        value, edges, _ = found[0]
        why = _listed_once(computation, edges) if len({place for _, _, place in found}) == 1 else None
        if why is not None:
            yield Remark(value.node, f"{short(value.node)} brings messages along each edge one way, and {short(why.node)} (line {why.line}) {'enters it both ways' if why.op == 'set_item' else 'has each pair once'}: one end of each edge never hears of the other")
            return


def _received(computation: Computation) -> Iterator[tuple[Value, Value, float]]:
    """Each sum of messages by edges: it, the edges, and which end gets them."""
    for value in computation.of("index_add", "scatter_add"):
        if len(value.args) < 4 or not any(one.op == "run" for one in origins(value.args[3])):
            continue
        root = _root(value.args[2])
        edges = None if root is None else _without_loops(root)
        place = None if root is None else _end(value.args[2], root)
        taken = [one for one in origins(value.args[3], stop=("run",)) if one.op == "part" and len(one.args) == 2 and root is not None and _end(one.args[1], root) not in (None, place)]
        if edges is not None and place is not None and taken:
            yield value, edges, place


def _entered(computation: Computation) -> Iterator[tuple[Value, Value, float]]:
    """Each matrix that a model multiplies by, with an entry for each edge: it, the edges, and which end has the rows."""
    for value in computation.of("set_item"):
        if len(value.args) != 3 or number(value.args[2]) != 1 or bare(value.args[0]).op not in ("zeros", "eye", "zeros_like"):
            continue
        index = value.args[1]
        ends = index.parts if isinstance(index, Many) and len(index.parts) == 2 else []
        roots = [_root(one) for one in ends]
        if len(ends) == 2 and roots[0] is not None and roots[1] is not None and bare(roots[0]) is bare(roots[1]):
            places = [_end(one, roots[0]) for one in ends]
            if set(places) == {0.0, 1.0} and places[0] is not None and _only_multiplied(computation, value):
                yield value, bare(roots[0]), places[0]


def _only_multiplied(computation: Computation, matrix: Value) -> bool:
    """Whether a model multiplies by a matrix, and nothing adds its transpose or other entries to it."""
    waiting, seen, used = [matrix], {id(matrix)}, False
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op in ("set_item", "t", "T", "transpose", "add", "maximum", "or", "cat", "stack", "tuple") or len(seen) > 60:
                return False
            used = used or (user.op == "matmul" and any(one.op == "run" for part in user.args for one in origins(part)))
            if id(user) not in seen and user.op in ("div", "mul", "sum", "clamp", "to", "float", "sqrt", "pow", "to_sparse", "normalize"):
                seen.add(id(user))
                waiting.append(user)
    return used


def _root(value: Value, depth: int = 16) -> Value | None:
    """The list of edges that an index takes one end of."""
    found = None
    while depth and value.args and (value.op in _TURNED or value.op in KEPT or value.op in SHAPED):
        value, depth = value.args[0], depth - 1
        found = value
    return found


def _without_loops(edges: Value) -> Value | None:
    """A list of edges, without those that join each node to itself."""
    if edges.op != "cat" or not edges.args or not isinstance(edges.args[0], Many):
        return edges
    others = [one for one in edges.args[0].parts if bare(one, "repeat", "expand").op != "arange" and not _is_loops(one)]
    return others[0] if len(others) == 1 else None


def _is_loops(value: Value) -> bool:
    value = bare(value)
    return isinstance(value, Many) and len(value.parts) == 2 and value.parts[0] is value.parts[1]


def _listed_once(computation: Computation, edges: Value) -> Value | None:
    """Where edges without a direction get into a list once each: the upper half of a symmetric matrix, pairs of a number and a
    larger one, or a list whose pairs are entered both ways elsewhere."""
    for one in _steps(edges):
        if one.op in ("triu", "tril") and one.args and _is_symmetric(one.args[0]):
            return one
        if isinstance(one, Many) and one.grown and one.parts and all(_is_rising(pair) for pair in one.parts):
            return one.parts[0]
    source = bare(edges)
    entries = [(one, one.args[1].parts) for one in computation.of("set_item") if len(one.args) == 3 and isinstance(one.args[1], Many) and len(one.args[1].parts) == 2]
    for _, (first, second) in entries:
        both = next((one for one, (a, b) in entries if a is second and b is first and a is not b), None)
        if both is not None and all(_root(end) is not None and any(bare(part) is source for part in origins(end)) for end in (first, second)):
            return both
    return None


def _steps(edges: Value) -> Iterator[Value]:
    """A list of edges, and what it was before it was turned and converted."""
    for _ in range(12):
        yield edges
        if not edges.args or not (edges.op in KEPT or edges.op in SHAPED or edges.op in ("t", "T", "transpose", "nonzero", "argwhere", "where", "permute", "coalesce")):
            return
        edges = edges.args[0]


def _is_rising(pair: Value) -> bool:
    """Whether a pair is that of a number, and one that is counted from the next on, and is chosen by what is the same for both
    orders."""
    if not any(_is_symmetric(test) for test, _ in pair.where.under):
        return False
    ends = pair.parts if isinstance(pair, Many) and len(pair.parts) == 2 else []
    second = ends[1] if ends else None
    return second is not None and second.op == "index" and bool(second.args) and second.args[0].op == "add" and any(one is ends[0] for one in second.args[0].args) and any(number(one) == 1 for one in second.args[0].args)


def _is_symmetric(value: Value, depth: int = 10) -> bool:
    """Whether a matrix is the same for both orders of each pair, apart from what is drawn."""
    value = bare(value, shapes=False)
    if depth == 0 or not value.args:
        return False
    if value.op in ("cdist", "matmul", "pairwise_distance") and len(value.args) == 2:
        return bare(value.args[0]) is bare(value.args[1], "t", "T", "transpose")
    if len(value.args) == 2 and all(one.op in ("part", "unsqueeze") for one in value.args) and value.args[0].node is not value.args[1].node:
        return value.args[0].args[0] is value.args[1].args[0]
    inner = [one for one in value.args if number(bare(one)) is None and bare(one).op not in ("rand", "random", "uniform", "eye")]
    if value.op in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "where", "exp", "pow", "sqrt", "mul", "sub", "add", "div", "neg", "norm", "sum", "sigmoid", "abs", "bernoulli"):
        return bool(inner) and all(_is_symmetric(one, depth - 1) for one in inner)
    return False
