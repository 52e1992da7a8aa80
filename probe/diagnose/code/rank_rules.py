"""Several ranks: collectives that not all reach, samplers, gradients that are summed, files that all write. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program, own_nodes
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.tracing import keyword, own, trace

_COLLECTIVES = frozenset(
    "barrier all_reduce all_gather all_gather_object all_gather_into_tensor broadcast broadcast_object_list reduce "
    "gather gather_object scatter reduce_scatter all_to_all".split()
)
_WRAPPERS = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
_SAMPLER = ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler")
_TRAINERS = ("lightning", "pytorch_lightning", "accelerate", "ignite", "transformers", "fabric")
_MAIN = ("is_main_process", "is_master", "is_main", "master_process", "is_rank_zero", "is_rank0", "is_primary", "is_chief")


def _short(program: Program, node: ast.AST, longest: int = 60) -> str:
    text = program.text(node)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _collective(program: Program, node: ast.AST) -> str | None:
    """The name of the collective of the whole group that a call runs."""
    if not isinstance(node, ast.Call):
        return None
    name = program.dotted(node.func) or ""
    last = name.removeprefix("torch.distributed.")
    return last if name == f"torch.distributed.{last}" and last in _COLLECTIVES and keyword(node, "group") is None else None


def _one_rank(program: Program, test: ast.AST) -> int:
    """1: the test holds on one rank only; -1: on all but one; 0: neither is known."""
    if isinstance(test, ast.BoolOp):
        found = [one for value in test.values if (one := _one_rank(program, value))]
        if isinstance(test.op, ast.And):
            return 1 if 1 in found else 0
        rest = [program.text(value) for value in test.values if not _one_rank(program, value)]
        return 1 if found == [1] and all(any(word in text for word in ("distributed", "world", "ddp")) for text in rest) else 0
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return -_one_rank(program, test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        if isinstance(test.comparators[0].value, str) or test.comparators[0].value != 0 or isinstance(test.comparators[0].value, bool) or not _is_rank(program, test.left):
            return 0
        return {ast.Eq: 1, ast.NotEq: -1, ast.Gt: -1}.get(type(test.ops[0]), 0)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)) and _is_rank(program, test.left):
        among = test.comparators[0]
        zero = isinstance(among, (ast.List, ast.Tuple, ast.Set)) and any(isinstance(one, ast.Constant) and one.value == 0 for one in among.elts)
        return (1 if isinstance(test.ops[0], ast.In) else -1) if zero else 0
    at = test.func if isinstance(test, ast.Call) else test
    name = at.attr if isinstance(at, ast.Attribute) else at.id if isinstance(at, ast.Name) else ""
    return 1 if name in _MAIN else 0


def _is_rank(program: Program, node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return (program.dotted(node.func) or "") == "torch.distributed.get_rank" or program.text(node.func).endswith("get_rank")
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "rank" or name.endswith(("_rank", "RANK"))


def _side(program: Program, node: ast.AST) -> tuple[int, ast.If | None]:
    """On which ranks a node runs: 1 one, -1 all but one, 0 all or unknown; and the test that says so."""
    inner = node
    for around in program.parents(node):
        if isinstance(around, ast.If):
            side = _one_rank(program, around.test)
            if side and inner is not around.test:
                return (side if inner in around.body else -side), around
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            break
        inner = around
    return 0, None


def _on_one_rank(program: Program) -> Iterator[Remark]:
    inside: dict[ast.AST, str] = {}
    for functions in program.functions.values():
        for function in functions:
            for call in own(function, ast.Call):
                name = _collective(program, call)
                if name is not None and not _side(program, call)[0] and function not in inside:
                    inside[function] = f"{name} in line {getattr(call, 'lineno', 0)}"
    for call in program.calls():
        side, test = _side(program, call)
        if test is None:
            continue
        name = _collective(program, call)
        local = program.local_function(call) if name is None else None
        runs = name or (inside.get(local) if local is not None else None)
        if runs is None or _paired(program, call, side, runs.partition(" ")[0]):
            continue
        shown = _short(program, call, 40) if name else f"{_short(program, call.func, 40)}, which runs {runs},"
        which = "one rank" if side > 0 else "all ranks but one"
        yield Remark(call, f"{shown} is reached by {which} only (if {_short(program, test.test, 40)}): the others wait for it, or answer it with their next collective")


def _paired(program: Program, call: ast.Call, side: int, name: str) -> bool:
    """Whether the other ranks reach the same collective in a branch of their own."""
    around = program.function_of(call) or program.source_of[call].tree
    for other in own_nodes(around):
        if other is call or not isinstance(other, ast.Call):
            continue
        local = program.local_function(other)
        reaches = _collective(program, other) == name or (
            local is not None and any(_collective(program, one) == name for one in own_nodes(local))
        )
        if reaches and _side(program, other)[0] == -side:
            return True
    return False


def _after_return(program: Program) -> Iterator[Remark]:
    """`if rank != 0: return`, and a collective after it."""
    for node in program.everywhere(ast.If):
        assert isinstance(node, ast.If)
        if node.orelse or _one_rank(program, node.test) != -1 or not isinstance(node.body[-1], ast.Return):
            continue
        if any(_collective(program, one) for part in node.body for one in ast.walk(part)):
            continue
        body = getattr(program.parent.get(node), "body", [])
        for later in body[body.index(node) + 1 :] if node in body else []:
            found = next((one for one in ast.walk(later) if _collective(program, one)), None)
            if found is not None:
                yield Remark(found, f"{_short(program, found, 40)} is reached by one rank only: the others have returned in line {node.lineno}")
                break


def _trained_by_hand(program: Program) -> bool:
    """Whether the program has its own loop over several ranks."""
    imported = {name.partition(".")[0] for source in program.sources for name in source.imports.values()}
    if imported & set(_TRAINERS):
        return False
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "backward" for call in program.calls())


def _epochs(program: Program) -> Iterator[Remark]:
    if not _trained_by_hand(program) or any(
        isinstance(node, ast.Attribute) and node.attr == "set_epoch" for node in program.everywhere(ast.Attribute)
    ):
        return
    for call in program.calls():
        if program.dotted(call.func) not in _SAMPLER:
            continue
        shuffle = keyword(call, "shuffle", 3)
        around = program.parent.get(call)
        name = program.text(around.targets[0]) if isinstance(around, ast.Assign) else ""
        if isinstance(shuffle, ast.Constant) and shuffle.value is False:
            continue
        if any(word in f"{name} {program.text(call)}".lower() for word in ("val", "test", "eval", "dev")):
            continue
        yield Remark(call, f"set_epoch is never called on {name or 'the DistributedSampler'}: every epoch has the same batches in the same order")


def _sampler_unused(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign):
        assert isinstance(node, ast.Assign)
        if not isinstance(node.value, ast.Call) or program.dotted(node.value.func) not in _SAMPLER or not isinstance(node.targets[0], ast.Name):
            continue
        name, scope = node.targets[0].id, program.scope(node)
        if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            continue
        reads = [one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)]
        loaders = any(isinstance(one, ast.Call) and (program.dotted(one.func) or "").endswith(".DataLoader") for one in ast.walk(scope))
        if loaders and all(isinstance(program.parent.get(one), ast.Attribute) and getattr(program.parent.get(one), "attr", "") == "set_epoch" for one in reads):
            yield Remark(node, f"{name} is made and given to no loader: every rank draws from all of the data")


def _gradients_summed(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        if _collective(program, call) != "all_reduce" or not call.args:
            continue
        at: ast.AST = call.args[0]
        while isinstance(at, ast.Attribute) and at.attr == "data":
            at = at.value
        operation = keyword(call, "op", 1)
        if not isinstance(at, ast.Attribute) or at.attr != "grad" or (operation is not None and not program.text(operation).endswith("SUM")):
            continue
        function = program.function_of(call) or program.source_of[call].tree
        divides = any(
            isinstance(one, ast.Div) or (isinstance(one, ast.Attribute) and one.attr in ("div_", "mul_", "div", "get_world_size"))
            or (isinstance(one, ast.Name) and "world" in one.id.lower()) for one in own_nodes(function)
        )
        if not divides:
            yield Remark(call, f"{_short(program, call)} sums the gradients of all ranks and nothing divides them by their number")


def _no_result(program: Program) -> Iterator[Remark]:
    for node in program.everywhere(ast.Assign, ast.Return):
        value = getattr(node, "value", None)
        name = _collective(program, value) if value is not None else None
        if name in ("all_reduce", "broadcast", "reduce", "all_gather", "gather") and isinstance(value, ast.Call):
            flag = keyword(value, "async_op")
            if flag is None or (isinstance(flag, ast.Constant) and flag.value is False):
                yield Remark(node, f"{_short(program, value)} gives None: the result stands in the tensor that it was given")


def _saved_by_all(program: Program) -> Iterator[Remark]:
    ranks = any(program.dotted(call.func) in (*_WRAPPERS, "torch.distributed.init_process_group") for call in program.calls())
    if not ranks or not _trained_by_hand(program):
        return
    for call in program.calls():
        if program.dotted(call.func) != "torch.save" or len(call.args) < 2:
            continue
        if _guarded(program, call, 3) or _names_rank(program, call.args[1]):
            continue
        yield Remark(call, f"{_short(program, call)} is run by every rank: all write the same file at once")


def _names_rank(program: Program, path: ast.AST) -> bool:
    """Whether a path has the rank in it, or is no path but a buffer in memory."""
    texts = [program.text(one).lower() for one in trace(program).origins(path) if isinstance(one, ast.expr)]
    return any(word in text for text in texts for word in ("rank", "buffer", "bytesio"))


def _guarded(program: Program, node: ast.AST, depth: int) -> bool:
    """Whether a node runs under some test of ranks, in its function or where that is called."""
    words = ("rank", "main", "master", "primary", "local", "gpu", "device", "node", "chief", "save", "writer", "distributed")
    for around in program.parents(node):
        if isinstance(around, (ast.If, ast.IfExp)) and "__name__" in program.text(around.test):
            return False
        if isinstance(around, (ast.If, ast.IfExp)) and any(word in program.text(around.test).lower() for word in words):
            return True
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return) and any(word in program.text(one.test).lower() for word in words) for one in around.body):
                return True
            if around.decorator_list:
                return True
            calls = [one for one in program.calls() if (one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")) == around.name]
            return not calls or (depth > 0 and all(_guarded(program, one, depth - 1) for one in calls))
    return False


def _skips(program: Program) -> Iterator[Remark]:
    """A rank that leaves out its backward for a reason of its own."""
    if not _wrapped(program):
        return
    for node in program.everywhere(ast.If):
        assert isinstance(node, ast.If)
        if not isinstance(node.body[-1], ast.Continue) or not program.loops(node):
            continue
        names = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
        block = getattr(program.parent.get(node), "body", [])
        if node not in block or not any("loss" in name.lower() for name in names):
            continue
        later = [one for part in block[block.index(node) :] for one in ast.walk(part)]
        before = [one for part in block[: block.index(node)] for one in ast.walk(part)]
        backward = any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in later)
        agreed = any(_collective(program, one) for one in before) or any(isinstance(one, ast.Name) and "reduce" in one.id for one in before)
        if backward and not agreed:
            yield Remark(node, f"if {_short(program, node.test, 40)} skips the backward of this rank alone: the others wait for its gradients, or take those of its next batch")


def _wrapped(program: Program) -> bool:
    return any(program.dotted(call.func) in _WRAPPERS for call in program.calls())


def _ranks_part(program: Program) -> Iterator[Remark]:
    """Updates that differ from rank to rank: a step or a clip on one rank, a rate or a shuffle by rank."""
    if not _wrapped(program):
        return
    for call in program.calls():
        name = program.dotted(call.func) or ""
        changes = name.startswith("torch.nn.utils.clip_grad") or (
            isinstance(call.func, ast.Attribute) and call.func.attr in ("step", "zero_grad")
            and program.family(call.func.value) in ("optimizer", "scheduler")
        )
        side, test = _side(program, call)
        if changes and test is not None:
            which = "one rank" if side > 0 else "all ranks but one"
            yield Remark(call, f"{_short(program, call, 50)} is run by {which} only: the replicas part")
        made = program.kind(call)
        rate = keyword(call, "lr", 1) if made is not None and made.family == "optimizer" and name.startswith("torch.optim.") else None
        if rate is not None and _by_rank(program, rate):
            yield Remark(call, f"lr={_short(program, rate, 40)} is another rate on each rank: the replicas part")
        if name in _SAMPLER:
            seed, count = keyword(call, "seed", 4), keyword(call, "num_replicas", 1)
            if seed is not None and _by_rank(program, seed):
                yield Remark(call, f"seed={_short(program, seed, 40)} shuffles in another order on each rank: their shares overlap, and some samples are in none")
            if isinstance(count, ast.Constant) and count.value == 1:
                yield Remark(call, f"{_short(program, call)} counts one replica: each rank draws all of the data")


def _by_rank(program: Program, node: ast.AST) -> bool:
    return any(isinstance(one, (ast.Name, ast.Attribute, ast.Call)) and _is_rank(program, one) for one in trace(program).origins(node, 3))


def _never_reduced(program: Program) -> Iterator[Remark]:
    """All backward passes of a function stand in no_sync."""
    for node in program.everywhere(ast.With):
        assert isinstance(node, ast.With)
        item = next((one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call) and program.text(one.context_expr.func).endswith(".no_sync")), None)
        if item is None or any(isinstance(one, ast.If) for one in program.parents(node) if not program.text(getattr(one, "test", ast.Constant(0))).count("__name__")):
            continue
        within = [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr == "backward"]
        others = [one for one in program.everywhere(ast.Attribute) if isinstance(one, ast.Attribute) and one.attr == "backward"]
        if within and len(within) == len(others) and _wrapped(program):
            yield Remark(node, f"{_short(program, item)} stands around every backward: gradients are never averaged over the ranks")


RULES: tuple[Rule, ...] = (
    Rule("collective-on-one-rank", "rollout", "the ranks hang, or go on with values of different collectives", "let all ranks run the collective, and only the printing or saving be rank 0's", _on_one_rank),
    Rule("collective-after-return", "rollout", "the one rank that is left waits for ever", "run the collective before the return", _after_return),
    Rule("no-set-epoch", "rollout", "the shuffle is that of the first epoch again and again", "call sampler.set_epoch(epoch) at the start of each epoch", _epochs),
    Rule("sampler-not-used", "rollout", "an epoch is as many times longer as there are ranks, and all ranks may train on the same batches", "write DataLoader(dataset, sampler=sampler)", _sampler_unused),
    Rule("gradients-summed", "rollout", "each update is as many times too large as there are ranks", "divide by dist.get_world_size(), or use ReduceOp.AVG", _gradients_summed),
    Rule("ranks-differ", "rollout", "each rank has a model of its own after a few steps, or data of its own choice", "do the same on all ranks, with the same numbers", _ranks_part),
    Rule("never-averaged", "rollout", "each rank trains a model of its own", "leave the last backward before each step outside of no_sync", _never_reduced),
    Rule("result-of-a-collective", "rollout", "what uses the result uses None", "call it for what it does to the tensor, and go on with the tensor", _no_result),
    Rule("saved-by-every-rank", "rollout", "the file may be a mixture, or broken", "save on rank 0 alone: if dist.get_rank() == 0", _saved_by_all),
    Rule("skipped-on-one-rank", "rollout", "the ranks hang, or their gradients are of different steps", "let all ranks decide together (all_reduce the test), or multiply the loss by 0", _skips),
)
