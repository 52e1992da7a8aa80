"""Ranks whose wrapper or sampler is passed by. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import is_model, loader_loops, loaders_of, trains
from probe.diagnose.code.finders.weights.between_ranks import (
    gathered_without_gradient,
    summed_in_the_other_steps,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import backwards
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rollout.several_ranks import SAMPLERS, WRAPPERS, trained_by_hand
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import argument, is_attribute, is_method, is_name, iterated, own_nodes, short

RULES = Rules("rollout")
_NO_FORWARD = ("state_dict", "load_state_dict", "parameters", "named_parameters", "eval", "train", "to", "modules", "children", "zero_grad", "requires_grad_")


@RULES.add("set-epoch-on-another-sampler", "the shuffle is that of the first epoch again and again", "call set_epoch on the DistributedSampler itself")
def _told_another(program: Program) -> Iterator[Remark]:
    """set_epoch on `loader.sampler`, where the loader was made with a batch sampler that holds the distributed one."""
    if not trained_by_hand(program):
        return
    flow = flow_of(program)
    of_batches = [one for one in program.calls() if program.called(one).endswith("data.DataLoader") and argument(one, "batch_sampler", 4) is not None]
    loaders = [one for one in program.calls() if program.called(one).endswith("data.DataLoader")]
    asked = [
        one for one in program.calls() if is_method(one, "set_epoch")
        and is_attribute(flow.value(one.func.value), "sampler") and not is_attribute(getattr(flow.value(one.func.value), "value", None), "batch_sampler")
    ]
    every = [one for one in program.calls() if is_method(one, "set_epoch")]
    held = [
        one for one in of_batches
        if any(program.called(part) in SAMPLERS for part in flow.origins(argument(one, "batch_sampler", 4) or one))
    ]
    if held and asked and len(asked) == len(every) and len([one for one in loaders if argument(one, "sampler", 3) is not None]) == 0:
        yield Remark(
            asked[0],
            f"{short(asked[0])} does not reach the DistributedSampler: a loader that is made with batch_sampler "
            f"(line {held[0].lineno}) has another sampler of its own",
        )


@RULES.add("wrapper-never-called", "the gradients of the ranks are never averaged: each rank trains a model of its own", "call the wrapper in the training: loss(ddp(x), y)")
def _wrapper_unused(program: Program) -> Iterator[Remark]:
    """A model that is wrapped under another name, and trained under its own."""
    flow = flow_of(program)
    if any(is_attribute(one, "all_reduce") for one in program.everywhere(ast.Attribute)):
        return
    for key in list(flow.bound):
        made = flow.made(key)
        inner = flow.key(made.args[0]) if made is not None and program.called(made) in WRAPPERS and made.args else None
        if made is None or inner is None or inner == key or len(flow.values(inner)) != 1:
            continue
        reads = [program.parent.get(one) for one in flow.reads.get(key, [])]
        if any(not is_attribute(one, *_NO_FORWARD, "module") for one in reads):
            continue
        for call, loss in backwards(program):
            runs = [one for one in flow.origins(loss) if isinstance(one, ast.Call) and flow.key(one.func) == inner]
            if runs and not program.without_gradient(runs[0]):
                yield Remark(runs[0], f"{short(call)} goes through {short(runs[0])}, and {key[1]}, which averages the gradients, is never called")
                break
        else:
            if trained_by_hand(program) and (run := _run_elsewhere(program, flow, inner)) is not None:
                yield Remark(run, f"{short(run)} trains what is inside {key[1]}, which averages the gradients and is never called")


def _run_elsewhere(program: Program, flow: Flow, inner: Key) -> ast.Call | None:
    """Where a model is called with gradients, or given to a function that calls it and backward."""
    for call in program.calls():
        if flow.key(call.func) == inner and not program.without_gradient(call):
            return call
        places = [place for place, one in enumerate(call.args) if flow.key(one) == inner]
        found = program.functions.get(call.func.id, []) if places and isinstance(call.func, ast.Name) else []
        if len(found) == 1 and len(found[0].args.args) > places[0]:
            name = found[0].args.args[places[0]].arg
            inside = [one for one in ast.walk(found[0]) if isinstance(one, ast.Call)]
            if any(is_method(one, "backward") for one in inside) and any(is_name(one.func, name) for one in inside):
                return call
    return None


@RULES.add("score-of-one-rank", "the score is that of one part of the held-out data, another one on each rank", "add the sums up over all ranks: dist.all_reduce(total)")
def _of_one_rank(program: Program) -> Iterator[Remark]:
    """An evaluation on the part of the held-out data that a DistributedSampler gives one rank, and no exchange."""
    exchanged = ("reduce", "gather", "broadcast", "accelerat", "torchmetrics", "synchronize", "join")
    if any(word in source.text.lower() for source in program.sources for word in exchanged):
        return
    flow = flow_of(program)
    for loop in loader_loops(flow):
        made = loaders_of(flow, iterated(loop))
        sampler = flow.value(argument(made[0], "sampler", 3)) if len(made) == 1 else None
        if sampler is None or program.called(sampler) not in SAMPLERS or trains(program, loop):
            continue
        runs = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and is_model(flow, one.func)]
        sums = [one for one in ast.walk(loop) if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add)]
        if sums and any(program.without_gradient(one) for one in runs):
            yield Remark(sums[0], f"{short(sums[0])} adds up what this rank sees alone: {short(sampler)} gives each rank its own part, and nothing joins the sums")


@RULES.add("around-the-wrapper", "the gradients of the ranks are never averaged: each rank trains a model of its own", "call the wrapper itself in the training: model(x), with the loss in forward() if it belongs to the model")
def _around(program: Program) -> Iterator[Remark]:
    """A loss that is computed by a method of the module inside DistributedDataParallel, past its forward."""
    flow = flow_of(program)
    wrapped = {key for key in flow.bound if program.called(flow.made(key)) in WRAPPERS}
    for call in program.calls() if wrapped and trained_by_hand(program) else ():
        if not isinstance(call.func, ast.Attribute):
            continue
        inner: ast.AST = call.func.value if not is_attribute(call.func, "module") else call.func
        if not is_attribute(inner, "module") or flow.key(inner.value) not in wrapped or program.without_gradient(call):
            continue
        if is_attribute(call.func, "module") or call.func.attr not in _NO_FORWARD:
            frame = program.frame(call)
            trained = any(is_method(one, "backward") and call in flow.origins(one.func.value) for one in own_nodes(frame))
            beside = any(isinstance(one, ast.Call) and flow.key(one.func) in wrapped and not program.without_gradient(one) for one in own_nodes(frame))
            if trained and not beside:
                yield Remark(call, f"{short(call)} does not pass through DistributedDataParallel, which averages the gradients of what its own forward computes")


RULES.add(
    "apart-before-a-step",
    "each rank steps with its own last gradients: the networks of the ranks drift apart",
    "leave the gradients apart in the other passes: no_sync() where no step follows",
)(summed_in_the_other_steps)
RULES.add(
    "gathered-without-gradient",
    "all_gather gives numbers alone: what is computed of them trains nothing",
    "put the rank's own outputs back in their place: gathered[rank] = outputs",
)(gathered_without_gradient)
