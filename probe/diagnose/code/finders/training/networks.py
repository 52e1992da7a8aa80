"""How layers are made, the states of recurrent ones, and loops that read a sequence. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Table,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    takes_all,
)
from probe.diagnose.code.finders.axes.time_and_batch import last_taken
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import batch_first, rank
from probe.diagnose.code.traits.updates import never_both

FINDERS = Finders()
_LAYERS = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
_ATTEND = ("torch.nn.MultiheadAttention", "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer")
_CELLS = ("torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell")


def _is_run(value: Value, layers: tuple[str, ...] = _LAYERS) -> bool:
    """Whether a value is what a recurrent layer gives."""
    return value.op == "run" and value.args[0].op in layers


def _state(value: Value) -> tuple[Value, int] | None:
    """The run whose state a value is, and which of the two: 0 for the hidden one, 1 for an LSTM's cell."""
    if value.op != "part" or not isinstance(place := constant(value.args[1]), int):
        return None
    inner = value.args[0]
    if _is_run(inner) and place in (1, -1) and inner.args[0].op != "torch.nn.LSTM":
        return inner, 0
    if _is_run(inner, _CELLS[:1]) and place in (0, 1):
        return inner, place
    if inner.op == "part" and _is_run(inner.args[0], _LAYERS[:1]) and constant(inner.args[1]) in (1, -1):
        return inner.args[0], place % 2
    return None


# States ---------------------------------------------------------------------


@FINDERS.add("cell-for-hidden")
def _states_swapped(program: Program) -> Iterator[Remark]:
    """An LSTM is given (cell, hidden) for (hidden, cell), or its cell is read and its hidden state is not."""
    computation = computation_of(program)
    for run in computation.of("run"):
        given = run.args[2] if _is_run(run, (_LAYERS[0], _CELLS[0])) and len(run.args) > 2 else None
        if isinstance(given, Many) and len(given.parts) == 2:
            first, second = (_state(bare(one)) for one in given.parts)
            if first is not None and second is not None and first[0] is second[0] and (first[1], second[1]) == (1, 0):
                yield Remark(given.node, f"{short(given.node)} gives {short(run.args[0].node)} the cell first and the hidden state second: it takes (h, c)")
    for state in computation.of("part"):
        found = _state(state)
        if found is not None and found[1] == 0 and isinstance(state.node, ast.Tuple) and len(state.node.elts) == 2:
            yield from _only_the_cell(program, state, found[0])


def _only_the_cell(program: Program, hidden: Value, run: Value) -> Iterator[Remark]:
    """Of `(a, b) = state`, a is read nowhere, nor is the output, and b is."""
    computation = computation_of(program)
    names = [one.id if isinstance(one, ast.Name) else "" for one in hidden.node.elts]  # type: ignore[attr-defined]
    state = hidden.args[0]
    cell = next((one for one in computation.users(state) if one.op == "part" and constant(one.args[1]) == 1), None)
    if cell is None or not all(names) or names[0].startswith("_") or names[1].lower().startswith(("c", "_")) or computation.users(hidden):
        return
    others = [one for one in computation.users(run) if one is not state] if run is not state else []
    returned = [one for found in computation.returned.values() for one in found]
    if not any(computation.users(one) for one in others) and (computation.users(cell) or cell in returned) and not any(hidden is one for one in returned):
        yield Remark(hidden.node, f"{short(hidden.node)}: the first of the two states is the hidden one, {names[0]} is read nowhere, and {names[1]} is the cell")


@FINDERS.add("state-of-the-first-layer")
def _first_layer(program: Program) -> Iterator[Remark]:
    """Of the last state of several layers, only the first layer's is read."""
    computation = computation_of(program)
    for state in computation.of("part"):
        found = _state(state)
        if found is None or found[1] != 0 or not _is_run(found[0]):
            continue
        layer = found[0].args[0]
        layers = number(layer.argument("num_layers", 2))
        both = layer.argument("bidirectional", 6)
        if layers is None or layers < 2 or (both is not None and both.op != "@constant"):
            continue
        wanted = {0, 1} if both is not None and both.data else {0}
        read = [_first_index(one) for one in computation.users(state)]
        if set(read) == wanted:
            at = next(iter(computation.users(state)))
            yield Remark(at.node, f"{short(at.node)} is the state of the first of {layers:g} layers of {short(layer.node)}")


def _first_index(value: Value) -> int | None:
    """The number that an index picks along the first axis."""
    if value.op == "select" and len(value.args) == 3 and number(value.args[1]) == 0:
        found = constant(value.args[2])
    elif value.op == "part":
        index = value.args[1]
        found = constant(index.parts[0]) if isinstance(index, Many) and index.parts else constant(index)
    else:
        return None
    return found if isinstance(found, int) else None


# Last positions -------------------------------------------------------------


@FINDERS.add("last-position-after-packing")
def _after_packing(program: Program) -> Iterator[Remark]:
    """The last position is taken of what pad_packed_sequence has filled up with zeros."""
    for value in computation_of(program).of("part", "select"):
        whole, axis = last_taken(value)
        if axis is None:
            continue
        out = bare(whole, "dropout", "layer_norm", shapes=False)
        padded = out.args[0] if out.op == "part" and constant(out.args[1]) == 0 else None
        if padded is None or not padded.op.endswith("pad_packed_sequence"):
            continue
        first = batch_first(padded)
        if first is not None and axis == int(first):
            yield Remark(value.node, f"{short(value.node)} is 0 in each sequence that is shorter than the longest of its batch: {short(padded.node)} (line {padded.line}) fills it up")


@FINDERS.add("batch-for-time")
def _loader_gives_batches(program: Program) -> Iterator[Remark]:
    """What a loader has stacked, batch first, is read by a recurrent layer or an attention that takes the time first."""
    for run in computation_of(program).of("run"):
        layer = run.args[0]
        if not _is_run(run, _LAYERS + _ATTEND) or len(run.args) < 2 or batch_first(layer) is not False:
            continue
        rows = _as_the_loader_gave(run.args[1])
        if rows is not None and rank(run.args[1]) in (None, 3):
            yield Remark(run.node, f"{short(run.node)} reads batches, whose first axis is the batch ({short(rows.node)}, line {rows.line}), and {short(layer.node)} is made without batch_first=True: it goes over the samples")


def _as_the_loader_gave(value: Value, depth: int = 12) -> Value | None:
    """The batch that a value is made of by operations that keep its first two axes where they are; None if there are others."""
    if value.op == "rows":
        loader = value.named.get("loader")
        whole = loader is not None and loader.argument("batch_sampler") is None and loader.argument("collate_fn", 6) is None and number(loader.argument("batch_size", 1)) != 0
        return value if whole and not (loader is not None and "batch_size" in loader.named and is_none(loader.named["batch_size"])) else None
    if value.op == "part" and len(value.args) == 2 and not isinstance(value.args[1], Many) and _are_drawn(value.args[1]):
        return value if value.args[0].op not in ("t", "T", "transpose", "permute") else None
    layer = value.args[0].op.rpartition(".")[2] if value.op == "run" and len(value.args) == 2 else ""
    if depth and layer in ("Embedding", "Linear", "LayerNorm", "Dropout"):
        return _as_the_loader_gave(value.args[1], depth - 1)
    if depth and value.op in ("dropout", "relu", "gelu", "tanh", "to", "float", "long", "layer_norm") and value.args:
        return _as_the_loader_gave(value.args[0], depth - 1)
    if depth and value.op in ("add", "mul", "div") and len(value.args) == 2:
        found = [one for side in value.args if (one := _as_the_loader_gave(side, depth - 1)) is not None]
        return found[0] if found else None
    return None


def _are_drawn(index: Value) -> bool:
    """Whether an index is numbers of samples, drawn at random or in a random order: `x[order[i : i + n]]`."""
    index = bare(index)
    while index.op in ("part", "element") and index.args and (index.op == "element" or index.args[1].op == "slice"):
        index = bare(index.args[0])
        index = bare(index.args[0]) if index.op in ("split", "chunk", "tensor_split") and index.args else index
    return index.op in ("randperm", "randint", "permutation", "integers")


# Loops that read a sequence -------------------------------------------------


def _stored(loop: ast.AST) -> set[str]:
    """The names that a loop gives a value, or whose content it changes."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found.add(node.value.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and (node.func.attr.endswith("_") or node.func.attr in ("append", "update", "pop", "extend")):
            found.add(node.func.value.id)
    return found


def _names(node: ast.AST | None) -> set[str] | None:
    """The names of `h` or `(h, c)`; None for all else."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Tuple) and node.elts and all(isinstance(one, ast.Name) for one in node.elts):
        return {one.id for one in node.elts if isinstance(one, ast.Name)}
    return None


@FINDERS.add("cell-without-its-past")
def _without_past(program: Program) -> Iterator[Remark]:
    """A loop over positions gives its cell the state from before the loop each time."""
    for run in computation_of(program).of("run"):
        node, loops = run.node, run.where.loops
        if not _is_run(run, _CELLS) or len(run.args) < 3 or not loops or not isinstance(node, ast.Call) or not any(node is one for one in ast.walk(loops[-1])):
            continue
        given = node.args[1] if len(node.args) > 1 else next((one.value for one in node.keywords if one.arg == "hx"), None)
        names = _names(given)
        if names is None or names & _stored(loops[-1]) or not _by_position(run.args[1], loops[-1]):
            continue
        yield Remark(node, f"{short(node)} is given {short(given)} as it was before the loop of line {_line(loops[-1])}, for every position")  # type: ignore[arg-type]


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _by_position(value: Value, loop: ast.AST) -> bool:
    """Whether a value belongs to one position of the loop: `x[:, t]`, or a part of `x.unbind(1)`."""
    for one in origins(value):
        if not one.where.loops or one.where.loops[-1] is not loop:
            continue
        if one.op == "part" and isinstance(index := one.args[1], Many) and len(index.parts) > 1 and takes_all(index.parts[0]) and index.parts[1].op in ("index", "count"):
            return True
        if one.op == "element" and one.args[0].op in ("unbind", "transpose", "permute", "chunk"):
            return True
    return False


@FINDERS.add("state-not-carried")
def _not_carried(program: Program) -> Iterator[Remark]:
    """A loop feeds each word that it draws back in, and gives the network the state from before the loop each time."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for run in computation.of("run"):
        if not _is_run(run, _LAYERS + _CELLS) or len(run.args) < 3 or not run.where.loops:
            continue
        loop = run.where.loops[-1]
        state = run.args[2]
        if state.op == "@constant" or loop in state.where.loops or loop in said or not isinstance(loop, (ast.For, ast.While)):
            continue
        if any(loop in one.where.loops and run in set(origins(one.args[1])) for one in computation.of("set_attribute")):
            continue
        call = _fed_back(program, loop)
        if call is not None:
            said.add(loop)
            yield Remark(call, f"{short(call)} is given the state as it was before the loop of line {loop.lineno}, and its new state is not taken")


def _fed_back(program: Program, loop: ast.For | ast.While) -> ast.Call | None:
    """The one call of a loop that is given a name that the loop sets from what the call gives, and one that it never
    sets: `word, _ = decoder(word, state)`."""
    stored = _stored(loop)
    found: list[ast.Call] = []
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call) or not 2 <= len(node.args) + len(node.keywords) <= 3 or program.called(node).startswith("torch."):
            continue
        given = [_names(one) for one in (*node.args, *(word.value for word in node.keywords))]
        carried = [one for one in given if one is not None and one & stored]
        kept = [one for one in given if one is not None and not one & stored]
        if len(carried) == 1 and kept and None not in given and _is_drawn(loop, next(iter(carried[0]))):
            found.append(node)
    return found[0] if len(found) == 1 else None


def _is_drawn(loop: ast.AST, name: str) -> bool:
    """Whether a loop sets a name to what is drawn or to the best, and does not add to it."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            text = ast.unparse(node.value)
            return any(word in text for word in ("argmax", "multinomial", "sample", "topk", "max(")) and "cat(" not in text
    return False


# How layers are made --------------------------------------------------------


def _linear(value: Value) -> tuple[Value, float | None, float | None] | None:
    """A Linear layer that gives a value, and its two widths."""
    if value.op != "run" or value.args[0].op != "torch.nn.Linear" or len(value.args) != 2:
        return None
    layer = value.args[0]
    return layer, number(layer.argument("in_features", 0)), number(layer.argument("out_features", 1))


@FINDERS.add("no-activation-between")
def _no_activation(program: Program) -> Iterator[Remark]:
    """A Linear layer runs on what another one gives, and nothing else does; both stand in one forward or one Sequential,
    and there are no fewer units between them than behind them."""
    computation = computation_of(program)
    said: set[int] = set()
    for run in computation.of("run"):
        second = _linear(run)
        inner = bare(run.args[1], "dropout", "identity", shapes=False) if second is not None else run
        first = _linear(inner) if second is not None else None
        if first is None or second is None or first[0] is second[0] or never_both(first[0], second[0]) or id(second[0]) in said or inner.where.functions != run.where.functions:
            continue
        own_place = inner.node is run.node or (bool(run.where.functions) and any(inner.node is one for one in ast.walk(run.where.functions[-1])))
        narrow = None in (first[2], second[2]) or (first[2] or 0) < (second[2] or 0) or (first[1] is not None and (first[2] or 0) < first[1] and (first[2] or 0) <= (second[2] or 0))
        alone = all(one.args[0] is not first[0] or _feeds_only(computation, one, second[0]) for one in computation.users(first[0]) if one.op == "run")
        tied = any(one.op == "set_attribute" and one.data == "weight" for one in computation.users(second[0]))
        if own_place and not narrow and not tied and alone and not any(inner is one for found in computation.returned.values() for one in found):
            said.add(id(second[0]))
            yield Remark(second[0].node, f"{short(first[0].node)} (line {first[0].line}) is followed by {short(second[0].node)} with no activation in between: both are one linear map")


def _feeds_only(computation: Computation, value: Value, layer: Value) -> bool:
    """Whether a value goes into one layer only, perhaps after dropout."""
    users = computation.users(value)
    if len(users) == 1 and users[0].op in ("dropout", "identity"):
        users = computation.users(users[0])
    return len(users) == 1 and users[0].op == "run" and users[0].args[0] is layer


@FINDERS.add("one-layer-in-two-places")
def _in_two_places(program: Program) -> Iterator[Remark]:
    """One layer with weights of its own is put into a Sequential at several places."""
    computation = computation_of(program)
    for value in computation.of("torch.nn.Sequential"):
        seen: set[int] = set()
        for layer in value.args:
            if id(layer) in seen and layer.op.startswith(_WEIGHTED):
                yield Remark(value.node, f"{short(layer.node)} (line {layer.line}) is one layer, and stands at several places of {short(value.node)}")
                break
            seen.add(id(layer))
    for placed in computation.of("set_item"):
        table, key, layer = placed.args
        if isinstance(table, Table) and layer.op.startswith(_WEIGHTED) and len(key.where.loops) > len(layer.where.loops) and any(one.op == "torch.nn.Sequential" for one in computation.users(layer)):
            yield Remark(placed.node, f"{short(layer.node)} (line {layer.line}) is one layer, and a loop puts it at several places of a Sequential")


_WEIGHTED = ("torch.nn.BatchNorm", "torch.nn.LayerNorm", "torch.nn.GroupNorm", "torch.nn.Linear", "torch.nn.Conv")


@FINDERS.add("kept-for-dropped")
def _kept(program: Program) -> Iterator[Remark]:
    """A dropout drops most units, with a number whose name says that it is the share that is kept."""
    for value in computation_of(program).values:
        if value.op == "dropout":
            given = value.argument("p", 1)
        elif value.op in _LAYERS:
            given = value.argument("dropout", 5)
        elif value.op.startswith("torch.nn.Dropout"):
            given = value.argument("p", 0)
        else:
            continue
        if not isinstance(value.node, ast.Call) or given is None or (known := number(given)) is None or not 0.5 <= known < 1:
            continue
        for one in (*value.node.args, *(word.value for word in value.node.keywords)):
            if _last_word(one).startswith(("keep", "kept", "retain")):
                yield Remark(value.node, f"{short(value.node)} drops with the probability {short(one)} = {known:g}, which is named for what is kept")


def _last_word(node: ast.AST) -> str:
    """The name at the end of `x`, `self.x` and `options["x"]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value).lower()
    return node.id.lower() if isinstance(node, ast.Name) else node.attr.lower() if isinstance(node, ast.Attribute) else ""


@FINDERS.add("momentum-for-epsilon")
def _momentum(program: Program) -> Iterator[Remark]:
    """A BatchNorm's second argument, eps, is as large as a momentum."""
    for value in computation_of(program).values:
        eps = value.args[1] if value.op.startswith("torch.nn.BatchNorm") and len(value.args) > 1 else None
        if (known := number(eps)) is not None and 0.05 <= known < 1 and eps is not None:
            yield Remark(value.node, f"{short(value.node)} has eps = {known:g}: the second argument is added to the variance")


@FINDERS.add("statistics-of-the-last-batch")
def _last_batch(program: Program) -> Iterator[Remark]:
    """The momentum of a BatchNorm is set to the share of the old statistics."""
    for value in computation_of(program).of("set_attribute"):
        known = number(value.args[1]) if value.data == "momentum" and len(value.args) == 2 else None
        if known is None or not 0.8 <= known < 1:
            continue
        if any(holds and test.op == "isinstance" and "BatchNorm" in ast.unparse(test.node) for test, holds in value.where.under) or value.args[0].op.startswith("torch.nn.BatchNorm"):
            yield Remark(value.node, f"{short(value.node)} is set to {known:g}: each step replaces {known:g} of the running statistics")


_ZEROS = ("zeros_", "zero", "fill", "constant_")


@FINDERS.add("layers-of-zeros")
def _of_zeros(program: Program) -> Iterator[Remark]:
    """Two layers that follow one another both start from weights of 0."""
    computation = computation_of(program)
    zeros: dict[int, Value] = {}
    for value in computation.of(*_ZEROS):
        weight = value.args[0] if value.args else value
        weight = weight.args[0] if weight.op == "data" and weight.args else weight
        nothing = value.op in ("zeros_", "zero") or (len(value.args) > 1 and number(value.args[1]) == 0)
        if weight.op == "weight" and weight.args and weight.args[0].op == "torch.nn.Linear" and nothing:
            zeros[id(weight.args[0])] = value
    for run in computation.of("run") if zeros else ():
        second = _linear(run)
        inner = bare(run.args[1], "dropout", "relu", "tanh", "sigmoid", "gelu", "silu", "leaky_relu", shapes=False) if second is not None else run
        first = _linear(inner) if second is not None else None
        if first is not None and second is not None and first[0] is not second[0] and {id(first[0]), id(second[0])} <= zeros.keys():
            at = zeros[id(first[0])]
            if at.where.under != zeros[id(second[0])].where.under:
                continue
            yield Remark(run.node, f"{short(run.node)} runs {short(second[0].node)} on what {short(first[0].node)} gives, and line {at.line} starts both at 0")
            return
