"""Sampled neighbours of nodes, weights of edges that are shared at their other end, and edges that a library holds out one by
one. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, origins
from probe.diagnose.code.finders.graphs.messages import index_of, is_same_index, summed_by_index
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, losses

_SAMPLERS = ("torch_geometric.loader.NeighborLoader", "torch_geometric.loader.NeighborSampler", "torch_geometric.loader.HGTLoader")
_BOTH_WAYS = ("Planetoid", "Coauthor", "Amazon", "KarateClub", "Twitch", "LastFMAsia", "Flickr", "Reddit", "Yelp", "CitationFull", "FacebookPagePage", "GitHub", "DeezerEurope")
"""Data sets of torch_geometric that list each edge both ways."""
_CHOSEN = ("train_mask", "tuple", "nonzero", "part", "where", "train_idx")
"""What some of the nodes are told by."""
_SUMS = ("index_add", "scatter_add")
_SHARED = ("torch_geometric.utils.softmax", "torch_scatter.scatter_softmax", "torch_scatter.composite.scatter_softmax")
_PASSED = ("unsqueeze", "view", "dropout", "squeeze", "reshape", "to")


def loss_of_the_neighbours(program: Program) -> Iterator[Remark]:
    """The loss is that of all nodes of a sampled part of the graph, also of the neighbours that were only fetched for it."""
    computation = computation_of(program)
    for loss in {id(one): one for _, one in losses(computation)}.values():
        for value in origins(loss, stop=("run",)):
            if value.op not in LOSSES or len(value.args) < 2 or value.named.keys() & {"weight", "ignore_index"}:
                continue
            labels, given = bare(value.args[1]), bare(value.args[0], "log_softmax")
            batch = labels.args[0] if labels.op == "y" and labels.args else None
            loader = _loader(batch) if batch is not None else None
            if batch is None or loader is None or given.op != "run" or is_none(loader.named.get("input_nodes")):
                continue
            chosen = bare(loader.named["input_nodes"]) if loader.named["input_nodes"].op != "tuple" else loader.named["input_nodes"]
            if chosen.op in _CHOSEN and not (isinstance(chosen, Many) and is_none(chosen.parts[-1])):
                yield Remark(value.node, f"{short(value.node)} is that of all nodes that {short(loader.node)} (line {loader.line}) fetches: it is also that of the neighbours of {short(chosen.node)}, held-out ones among them")
                return


def _loader(batch: Value) -> Value | None:
    """The sampler of neighbours that a batch comes from."""
    while batch.op in ("to", "cuda", "cpu") and batch.args:
        batch = batch.args[0]
    return batch.args[0] if batch.op == "element" and batch.args and batch.args[0].op in _SAMPLERS else None


def shared_at_the_other_end(program: Program) -> Iterator[Remark]:
    """Weights of edges add up to 1 at the nodes that the edges come from, and are added up at those that they lead to."""
    computation = computation_of(program)
    said: set[int] = set()
    for total in computation.of(*_SUMS, "torch_scatter.scatter", "torch_scatter.scatter_add", "torch_scatter.scatter_sum"):
        found = summed_by_index(total)
        if found is None or id(total.node) in said:
            continue
        _, ends, sent = found
        for weight in _factors(sent):
            shared = _shared_by(weight)
            if shared is not None and (_is_other_end(shared, ends) or _are_sent_by(sent, shared, ends)):
                said.add(id(total.node))
                yield Remark(weight.node, f"{short(weight.node)} shares 1 among the edges that have one {short(shared.node, 30)} (line {shared.line}), and {short(total.node)} (line {total.line}) adds them up at the other end: the weights of what comes to a node do not add up to 1")
                break


def _factors(value: Value) -> Iterator[Value]:
    """The factors of a message, without what only gives them an axis."""
    waiting = [value]
    for _ in range(40):
        if not waiting:
            return
        at = waiting.pop()
        if (at.op in _PASSED and at.args) or (at.op == "part" and len(at.args) == 2 and isinstance(at.args[1], Many)):
            waiting.append(at.args[0])
        elif at.op == "mul":
            waiting += at.args
        else:
            yield at


def _shared_by(weight: Value) -> Value | None:
    """The index by which weights are shared: e / (sum of e by that index), where e is an exponential."""
    if weight.op in _SHARED and len(weight.args) > 1:
        return index_of(weight.args[1])
    if weight.op != "div" or len(weight.args) != 2:
        return None
    above = bare(weight.args[0])
    if not any(one.op == "exp" for one in origins(above, stop=("run",))):
        return None
    for below in origins(weight.args[1], stop=_SUMS):
        if below.op == "part" and len(below.args) == 2 and bare(below.args[0]).op in _SUMS:
            found = summed_by_index(bare(below.args[0]))
            if found is not None and bare(found[2]) is above and is_same_index(found[1], below.args[1]):
                return index_of(found[1])
    return None


def _are_sent_by(sent: Value, shared: Value, ends: Value) -> bool:
    """Whether messages are the rows of the nodes that an index numbers, and go to those that another one does."""
    rows = [one.args[1] for one in _factors(sent) if one.op == "part" and len(one.args) == 2]
    rows += [one.args[2] for one in _factors(sent) if one.op == "index_select" and len(one.args) > 2]
    return any(is_same_index(one, shared) for one in rows) and not is_same_index(shared, ends)


def _is_other_end(one: Value, other: Value) -> bool:
    """Whether two indices are the two ends of the same edges."""
    one, other = index_of(one), index_of(other)
    ends = (constant(one.args[1]), constant(other.args[1])) if one.op == other.op == "part" and len(one.args) == len(other.args) == 2 else None
    return ends in ((0, 1), (1, 0)) and one.args[0] is other.args[0]


def held_out_one_by_one(program: Program) -> Iterator[Remark]:
    """A library holds out edges one by one, and the graph lists each edge both ways."""
    computation = computation_of(program)
    sets = [one for one in computation.values if one.op.startswith("torch_geometric.datasets.")]
    turned = [one for one in computation.values if one.op in ("torch_geometric.utils.to_undirected", "torch_geometric.transforms.ToUndirected")]
    listed = next(iter([*turned, *(one for one in sets if one.op.rpartition(".")[2] in _BOTH_WAYS)]), None)
    for split in computation.of("torch_geometric.transforms.RandomLinkSplit"):
        if len(split.args) > 2 or "is_undirected" in split.named or "**" in split.named or listed is None or (sets and not turned and any(one.op.rpartition(".")[2] not in _BOTH_WAYS for one in sets)):
            continue
        if "edge_types" in split.named and ("rev_edge_types" in split.named or not turned):
            continue
        how = "is_undirected" if "edge_types" not in split.named else "rev_edge_types"
        yield Remark(split.node, f"{short(split.node)} holds out edges one by one, as no {how} is given, and {short(listed.node)} (line {listed.line}) has each of them both ways: the mirrored ones stay in the training graph")
        return
