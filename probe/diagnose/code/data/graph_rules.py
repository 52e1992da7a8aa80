"""Graphs and groups: sums over edges that overwrite each other, degrees of another graph, members that are alike. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.finders.graphs.attributes_of_both import attributes_in_another_order
from probe.diagnose.code.finders.graphs.messages import (
    sent_to_its_sender,
    softmax_over_all_edges,
    zeros_in_the_reduction,
)
from probe.diagnose.code.finders.graphs.other_ends import degree_of_the_other_end
from probe.diagnose.code.finders.graphs.rejected_draws import held_out_never_drawn
from probe.diagnose.code.finders.graphs.sampled_neighbours import (
    held_out_one_by_one,
    loss_of_the_neighbours,
    shared_at_the_other_end,
)
from probe.diagnose.code.finders.objectives.edges import entered_in_one_direction
from probe.diagnose.code.finders.objectives.shifted_indices import shifted_by_another_number
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_read,
    last_word,
    names_of,
    names_read,
    names_set,
    number_in,
    own,
    own_nodes,
    pairs_of,
    parameters,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("data")
FINDERS = Finders()
_ZEROS = frozenset({"torch.zeros", "torch.zeros_like", "numpy.zeros", "numpy.zeros_like"})


@RULES.add("sum-keeps-the-last", "where an index occurs more than once, only one of its values is added", "add by index: out.index_add_(0, index, values), or numpy.add.at")
def _keeps_the_last(program: Program) -> Iterator[Remark]:
    """Values that are added up by `out[index] += values` with an index that names places more than once."""
    flow = flow_of(program)
    for node in program.everywhere(ast.AugAssign):
        target = node.target
        if not isinstance(node.op, ast.Add) or not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Name):
            continue
        made = flow.value(target.value)
        index = target.slice
        if program.called(made) not in _ZEROS or not _is_many(program, flow, index) or _counts_on(program, node, index.id):
            continue
        yield Remark(node, f"{short(node)} writes each place of {text_of(target.value)} once: of the values with one and the same {index.id}, the last is kept")


def _counts_on(program: Program, node: ast.AST, name: str) -> bool:
    """Whether a loop around gives a variable one number after the other: by zip, enumerate or range."""
    return any(
        isinstance(loop, ast.For) and name in names_of(loop.target) and is_call(loop.iter, "zip", "enumerate", "range", "sorted", "reversed", "list")
        for loop in program.loops(node)
    )


_EACH_ONCE = (
    "randperm", "permutation", "unique", "nonzero", "flatnonzero", "arange", "argsort", "setdiff1d", "isin", "isnan", "isfinite", "eq", "ne", "lt", "gt", "le", "ge",
    "logical_not", "logical_and", "logical_or",
)
"""What gives a mask, or the number of each place at most once."""


def _is_many(program: Program, flow: Flow, index: ast.Name) -> bool:
    """Whether a variable is an index of many rows: it takes the rows that a network or `torch.cat` gets."""
    value = flow.value(index)
    for _ in range(4):
        value = flow.value(value.value) if isinstance(value, ast.Subscript) else value  # `order[:n]`
    if "mask" in index.id.lower() or isinstance(value, (ast.Compare, ast.UnaryOp, ast.BoolOp)) or is_method(value, *_EACH_ONCE):
        return False
    if any(is_attribute(one, "bool", "bool_") or is_name(one, "bool") for one in ast.walk(value)):
        return False
    bindings = flow.bindings(index)
    if len(bindings) == 1 and bindings[0].how == "for":
        return False
    taken = [one for one in own_nodes(program.scope(index)) if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load) and is_read(one.slice, index.id)]
    return any(
        last_word(call.func) in ("cat", "stack", "concatenate") or program.family(call.func) == "module"
        for one in taken for call in program.calls_around(one)
    )


@RULES.add("degrees-of-another-graph", "rows of the propagation do not add up: nodes with few neighbours get too much", "take the degrees of the graph with its self connections")
def _other_degrees(program: Program) -> Iterator[Remark]:
    """An adjacency with self connections, normalized by the degrees that it had without them."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            for target, value in pairs_of(node):
                if not isinstance(target, ast.Name) or not is_binary(value, ast.Add):
                    continue
                sides = [value.left, value.right]
                plain = next((one for one in sides if isinstance(one, ast.Name) and one.id != target.id), None)
                if plain is None or not any(last_word(getattr(one, "func", None)) in ("eye", "eye_like") for one in sides):
                    continue
                for product in own(scope, ast.BinOp):
                    if not is_binary(product, ast.Mult, ast.MatMult) or not any(is_read(one, target.id) for one in ast.walk(product)):
                        continue
                    sums = [one for one in flow.origins(product) if is_method(one, "sum") and is_read(program.operand(one), plain.id)]
                    own_sums = [one for one in flow.origins(product) if is_method(one, "sum") and is_read(program.operand(one), target.id)]
                    if sums and not own_sums:
                        yield Remark(sums[0], f"{short(sums[0])} counts the neighbours without the node itself, and {short(product, 40)} has it ({short(value, 40)})")
                        break


@RULES.add("deviation-as-variance", "the loss takes it for a variance: the spread that is learned is the square of what is meant", "give it the variance: std ** 2")
def _deviation(program: Program) -> Iterator[Remark]:
    """The Gaussian loss of torch, which takes a variance, given what is named a deviation."""
    flow = flow_of(program)
    for call in program.calls():
        name = loss_name(program, call)
        third = argument(call, "var", 2)
        if name not in ("GaussianNLLLoss", "gaussian_nll_loss") or not isinstance(third, ast.Name):
            continue
        squared = any((is_binary(one, ast.Pow) and number_in(one.right) == 2) or is_method(one, "pow", "square") for one in flow.origins(third))
        if third.id.lower().strip("_") in ("std", "sigma", "stdev", "stddev", "sd", "scale", "stds", "sigmas") and not squared:
            yield Remark(call, f"{short(call)} takes {third.id} for the variance")


@RULES.add("members-alike", "all members are one network: their agreement says nothing, and their average is no better than each", "seed each member by its number: seed + i")
def _alike(program: Program) -> Iterator[Remark]:
    """Members of an ensemble that are made and trained from one and the same seed."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        counted = names_of(loop.target)
        inside = counted | {name for part in loop.body for name in names_set(part)}
        for node in loop.body:
            call = node.value if isinstance(node, ast.Assign) else node.value.args[0] if isinstance(node, ast.Expr) and is_method(node.value, "append") and node.value.args else None
            local = program.local_function(call) if isinstance(call, ast.Call) else None
            if not isinstance(call, ast.Call) or not isinstance(local, Function) or any(names_read(one) & inside for one in [*call.args, *(word.value for word in call.keywords)]):
                continue
            seeds = [one for one in own(local, ast.Call) if program.called(one) == "torch.manual_seed" and _is_given(local, one)]
            makes = any(program.family(one) == "module" for one in own(local, ast.Call))
            names = names_set(node) if isinstance(node, ast.Assign) else set()
            kept = [one for part in loop.body for one in ast.walk(part) if is_method(one, "append") and isinstance(one, ast.Call) and (names & names_read(one) or call in ast.walk(one))]
            if seeds and makes and kept and _averaged(flow, kept[0]):
                yield Remark(call, f"{short(call)} is the same in each round, and {short(seeds[0])} (line {seeds[0].lineno}) starts all members alike")


def _is_given(function: Function, call: ast.Call) -> bool:
    """Whether the seed is a number or what the function is given, and nothing that changes by itself."""
    given = {one.arg for one in parameters(function)}
    return bool(call.args) and (number_in(call.args[0]) is not None or is_name(call.args[0], *given) or last_word(call.args[0]) == "seed")


def _averaged(flow: Flow, kept: ast.Call) -> bool:
    """Whether the list that a member is put into is gone over for an average or a spread."""
    if not isinstance(kept.func, ast.Attribute):
        return False
    key = flow.key(kept.func.value)
    reads = flow.reads.get(key, []) if key is not None else []
    texts = [text_of(flow.program.frame(one)) for one in reads]
    passed = [call for one in reads if isinstance(call := flow.program.parent.get(one), ast.Call)]
    texts += [text_of(local) for call in passed if (local := flow.program.local_function(call)) is not None]
    return any("stack" in text and (".mean(" in text or ".std(" in text) for text in texts)


@RULES.add("edges-not-shifted", "all edges of a batch join the nodes of its first graph: the others have none", "add the number of nodes before: edges.append(edge_index + offset)")
def _not_shifted(program: Program) -> Iterator[Remark]:
    """Graphs that are joined node by node, and whose edges keep the numbers that they had in their own graph."""
    flow = flow_of(program)
    for function in program.scopes():
        if not isinstance(function, Function):
            continue
        filled = {one.func.value.id: one for one in own(function, ast.Call) if is_method(one, "append") and is_name(one.func.value) and len(one.args) == 1 and program.loops(one)}
        joined = {one.args[0].id: one for one in own(function, ast.Call) if program.called(one) in ("torch.cat", "torch.hstack") and one.args and is_name(one.args[0])}
        nodes = [name for name, call in joined.items() if name in filled and "edge" not in name and flow.number(argument(call, "dim", 1) or ast.Constant(0)) == 0]
        yield from _listed(flow, function)
        for name, call in joined.items():
            columns = flow.number(argument(call, "dim", 1)) in (1, -1)
            given = filled[name].args[0] if name in filled else None
            if "edge" in name and columns and nodes and isinstance(given, ast.Name) and not any(is_binary(one, ast.Add) for one in flow.origins(given)):
                yield Remark(filled[name], f"{short(filled[name])} keeps the numbers of the nodes in their own graph, and {nodes[0]} holds the nodes of all graphs in a row")


def _listed(flow: Flow, function: Function) -> Iterator[Remark]:
    """The same, where both are joined from lists that are written out: `torch.cat([g.edge_index for g in graphs], dim=1)`."""
    program = flow.program
    lists = {
        call: call.args[0] for call in own(function, ast.Call)
        if program.called(call) in ("torch.cat", "torch.hstack") and call.args and isinstance(call.args[0], (ast.ListComp, ast.GeneratorExp))
    }
    for call, parts in lists.items():
        element = parts.elt
        plain = not any(is_binary(one, ast.Add) for one in ast.walk(element)) and len(parts.generators) == 1
        if not plain or "edge" not in text_of(element).lower() or flow.number(argument(call, "dim", 1)) not in (1, -1):
            continue
        beside = next((
            other for other, rows in lists.items()
            if other is not call and text_of(rows.generators[0].iter) == text_of(parts.generators[0].iter)
            and "edge" not in text_of(rows.elt).lower() and flow.number(argument(other, "dim", 1) or ast.Constant(0)) == 0
        ), None)
        if beside is not None:
            yield Remark(call, f"{short(call)} keeps the numbers of the nodes in their own graph, and {short(beside, 40)} joins the nodes of all graphs in a row")


RULES.add(
    "edges-in-one-direction",
    "messages flow one way along edges that have no direction: half of all nodes never hear of their neighbours",
    "enter each edge in both directions: edges = torch.cat([edges, edges.flip(0)], dim=1)",
)(entered_in_one_direction)


RULES.add(
    "attributes-in-another-order",
    "messages are made with the attributes of other edges: what an edge carries says nothing about its two ends",
    "join them as the edges are: attributes = torch.cat([attributes, attributes])",
)(attributes_in_another_order)


RULES.add(
    "shifted-to-other-samples",
    "the numbers point to rows of other samples: what is computed of one graph mixes in the nodes of others",
    "shift by the number of all rows before: offset += len(nodes), or sample * rows_of_each + row",
)(shifted_by_another_number)


RULES.add(
    "softmax-over-all-edges",
    "nodes of large graphs hear next to nothing of their neighbours, and the weights of one node's edges depend on all other edges",
    "divide by the sum over the edges of each node: e / zeros.index_add_(0, dst, e)[dst]",
)(softmax_over_all_edges)


RULES.add(
    "sent-to-its-sender",
    "nothing of a node reaches another one: the model is as good as one without the graph",
    "take the other end of the edge: out.index_add_(0, dst, x[src])",
)(sent_to_its_sender)


RULES.add(
    "zeros-in-the-reduction",
    "each result is pulled to 0, most where few values come together",
    "give include_self=False",
)(zeros_in_the_reduction)


RULES.add(
    "loss-of-the-neighbours",
    "nodes are trained on that were not chosen for it, those of the held-out part among them, and their outputs lack neighbours",
    "take the first batch_size nodes alone: out[:batch.batch_size], batch.y[:batch.batch_size]",
)(loss_of_the_neighbours)


RULES.add(
    "shared-at-the-other-end",
    "what comes to a node is no average of its neighbours: it grows with the number of its edges",
    "share among the edges that lead to one node: softmax(score, dst)",
)(shared_at_the_other_end)


FINDERS.add("held-out-edges-in-the-graph")(held_out_one_by_one)
RULES.add(
    "degree-of-the-other-end",
    "what should be a mean is one of another weight: nodes that many edges lead to are far too large, and others too small",
    "count the edges where they are added up: count.index_add_(0, dst, ones)",
)(degree_of_the_other_end)


RULES.add(
    "held-out-never-drawn",
    "pairs of the test part are the only ones that are neither learned nor called wrong: the network tells them by that, and its score is too high",
    "reject only what the training part holds; keep the table of all pairs for the ranking of the evaluation",
)(held_out_never_drawn)
