"""Several ranks: samplers, gradients that are summed, files that all write. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.finders.objects.whole_numbers import sum_of_ranks
from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.one_rank import collective, is_rank, side_of
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_false,
    is_method,
    is_name,
    is_read,
    last_word,
    mentions,
    names_of,
    own_nodes,
    says,
    short,
    text_of,
    without_data,
)

RULES = Rules("rollout")

WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel",
)
SAMPLERS = ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler")
_GUARDS = (
    "rank", "main", "master", "primary", "local", "gpu", "device", "node", "chief", "save", "writer",
    "distributed", "standalone", "single", "proc", "worker", "world",
)
"""Words of a test that lets only some ranks pass."""
_TRAINERS = ("lightning", "pytorch_lightning", "accelerate", "ignite", "transformers", "fabric")


def trained_by_hand(program: Program) -> bool:
    """Whether the program has its own loop over several ranks."""
    imported = {name.partition(".")[0] for source in program.sources for name in source.imports.values()}
    if imported & set(_TRAINERS):
        return False
    return any(is_method(call, "backward") for call in program.calls())


@RULES.add(
    "no-set-epoch", "the shuffle is that of the first epoch again and again",
    "call sampler.set_epoch(epoch) at the start of each epoch",
)
def _epochs(program: Program) -> Iterator[Remark]:
    told = any(is_attribute(node, "set_epoch") for node in program.everywhere(ast.Attribute))
    if told or not trained_by_hand(program):
        return
    for call in program.calls():
        if program.called(call) not in SAMPLERS:
            continue
        shuffle = argument(call, "shuffle", 3)
        around = program.parent.get(call)
        name = text_of(around.targets[0]) if isinstance(around, ast.Assign) else ""
        if is_false(shuffle):
            continue
        if any(word in f"{name} {text_of(call)}".lower() for word in ("val", "test", "eval", "dev")):
            continue
        yield Remark(
            call,
            f"set_epoch is never called on {name or 'the DistributedSampler'}: every epoch has the same "
            "batches in the same order",
        )


@RULES.add(
    "sampler-not-used",
    "an epoch is as many times longer as there are ranks, and all ranks may train on the same batches",
    "write DataLoader(dataset, sampler=sampler)",
)
def _sampler_unused(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign):
        target, scope = node.targets[0], program.scope(node)
        if (
            program.called(node.value) not in SAMPLERS
            or not is_name(target)
            or isinstance(scope, ast.ClassDef)
        ):
            continue
        name, nodes = target.id, list(ast.walk(scope))
        used = [
            one for one in nodes if is_read(one, name) and not is_attribute(program.parent[one], "set_epoch")
        ]
        if not used and any(program.called(one).endswith(".DataLoader") for one in nodes):
            yield Remark(
                node, f"{name} is made and given to no loader: every rank draws from all of the data"
            )


@RULES.add(
    "gradients-summed", "each update is as many times too large as there are ranks",
    "divide by dist.get_world_size(), or use ReduceOp.AVG",
)
def _gradients_summed(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        if collective(program, call) != "all_reduce" or not call.args:
            continue
        operation = argument(call, "op", 1)
        if not is_attribute(without_data(call.args[0]), "grad") or (
            operation is not None and not text_of(operation).endswith("SUM")
        ):
            continue
        function = program.frame(call)
        divides = any(
            isinstance(one, ast.Div)
            or (is_attribute(one, "div_", "mul_", "div", "get_world_size"))
            or (isinstance(one, ast.Name) and "world" in one.id.lower())
            for one in own_nodes(function)
        )
        if not divides:
            yield Remark(
                call,
                f"{short(call)} sums the gradients of all ranks and nothing divides them by their number",
            )


@RULES.add(
    "saved-by-every-rank", "the file may be a mixture, or broken",
    "save on rank 0 alone: if dist.get_rank() == 0",
)
def _saved_by_all(program: Program) -> Iterator[Remark]:
    if not _wrapped(program, "torch.distributed.init_process_group") or not trained_by_hand(program):
        return
    for call in program.calls():
        if program.called(call) != "torch.save" or len(call.args) < 2:
            continue
        if _guarded(program, call, 3) or _names_rank(program, call.args[1]):
            continue
        yield Remark(call, f"{short(call)} is run by every rank: all write the same file at once")


def _names_rank(program: Program, path: ast.AST) -> bool:
    """Whether a path has the rank in it, or is no path but a buffer in memory."""
    texts = [text_of(one).lower() for one in flow_of(program).origins(path) if isinstance(one, ast.expr)]
    return any(word in text for text in texts for word in ("rank", "buffer", "bytesio"))


def _guarded(program: Program, node: ast.AST, depth: int) -> bool:
    """Whether a node runs under some test of ranks, in its function or where that is called."""
    for around in program.parents(node):
        if isinstance(around, (ast.If, ast.IfExp)) and "__name__" in text_of(around.test):
            return False
        if isinstance(around, (ast.If, ast.IfExp)) and says(around.test, *_GUARDS):
            return True
        if isinstance(around, Function):
            tests = [
                one.test
                for one in around.body
                if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return)
            ]
            if around.decorator_list or any(says(test, *_GUARDS) for test in tests):
                return True
            calls = [one for one in program.calls() if last_word(one.func) == around.name]
            return not calls or (depth > 0 and all(_guarded(program, one, depth - 1) for one in calls))
    return False


@RULES.add(
    "skipped-on-one-rank", "the ranks hang, or their gradients are of different steps",
    "let all ranks decide together (all_reduce the test), or multiply the loss by 0",
)
def _skips(program: Program) -> Iterator[Remark]:
    """A rank that leaves out its backward for a reason of its own."""
    if not _wrapped(program):
        return
    for node in program.everywhere(ast.If):
        if not isinstance(node.body[-1], ast.Continue) or not program.loops(node):
            continue
        block = program.block(node)
        if not any("loss" in name.lower() for name in names_of(node.test)):
            continue
        before = [one for part in block[: block.index(node)] for one in ast.walk(part)]
        agreed = any(collective(program, one) or (is_name(one) and "reduce" in one.id) for one in before)
        if not agreed and any(mentions(part, "backward") for part in block[block.index(node) :]):
            yield Remark(
                node,
                f"if {short(node.test, 40)} skips the backward of this rank alone: the others "
                "wait for its gradients, or take those of its next batch",
            )


def _wrapped(program: Program, *others: str) -> bool:
    """Whether the gradients are averaged over ranks, or one of these other functions is called."""
    return any(program.called(call) in (*WRAPPERS, *others) for call in program.calls())


@RULES.add(
    "ranks-differ", "each rank has a model of its own after a few steps, or data of its own choice",
    "do the same on all ranks, with the same numbers",
)
def _ranks_part(program: Program) -> Iterator[Remark]:
    """Updates that differ from rank to rank: a step or a clip on one rank, a rate or a shuffle by rank."""
    if not _wrapped(program):
        return
    for call in program.calls():
        name = program.called(call)
        changes = name.startswith("torch.nn.utils.clip_grad") or (
            is_method(call, "step", "zero_grad")
            and program.family(call.func.value) in ("optimizer", "scheduler")
        )
        side, test = side_of(program, call)
        if changes and test is not None:
            which = "one rank" if side > 0 else "all ranks but one"
            yield Remark(call, f"{short(call, 50)} is run by {which} only: the replicas part")
        made = program.family(call) == "optimizer" and name.startswith("torch.optim.")
        rate = argument(call, "lr", 1) if made else None
        if rate is not None and _by_rank(program, rate):
            yield Remark(call, f"lr={short(rate, 40)} is another rate on each rank: the replicas part")
        if name in SAMPLERS:
            seed, count = argument(call, "seed", 4), argument(call, "num_replicas", 1)
            if seed is not None and _by_rank(program, seed):
                yield Remark(
                    call,
                    f"seed={short(seed, 40)} shuffles in another order on each rank: their shares "
                    "overlap, and some samples are in none",
                )
            if isinstance(count, ast.Constant) and count.value == 1:
                yield Remark(call, f"{short(call)} counts one replica: each rank draws all of the data")


def _by_rank(program: Program, node: ast.AST) -> bool:
    return any(
        isinstance(one, (ast.Name, ast.Attribute, ast.Call)) and is_rank(program, one)
        for one in flow_of(program).origins(node, 3)
    )


@RULES.add(
    "never-averaged", "each rank trains a model of its own",
    "leave the last backward before each step outside of no_sync",
)
def _never_reduced(program: Program) -> Iterator[Remark]:
    """All backward passes of a function stand in no_sync."""
    for node in program.everywhere(ast.With):
        item = next((one.context_expr for one in node.items if is_method(one.context_expr, "no_sync")), None)
        tests = [one.test for one in program.parents(node) if isinstance(one, ast.If)]
        if item is None or any("__name__" not in text_of(test) for test in tests):
            continue
        within = sum(is_attribute(one, "backward") for one in ast.walk(node))
        everywhere = sum(is_attribute(one, "backward") for one in program.everywhere(ast.Attribute))
        if within and within == everywhere and _wrapped(program):
            yield Remark(
                node,
                f"{short(item)} stands around every backward: gradients are never averaged over the ranks",
            )


RULES.add(
    "sum-of-ranks-shown", "the number that is shown grows with the number of ranks",
    "divide by dist.get_world_size(), or reduce with ReduceOp.AVG",
)(sum_of_ranks)
