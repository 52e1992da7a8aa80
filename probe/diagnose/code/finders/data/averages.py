"""Sums and means over batches, epochs and reports. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Loop, own_nodes, short
from probe.diagnose.code.traits.tallies import (
    Tally,
    counts_batches,
    counts_samples,
    divisions,
    is_inside,
    is_mean_of_batch,
    is_set_in,
    is_size_of_batch,
    is_sum_of_batch,
    over_of,
    tally_of,
)

FINDERS = Finders()



@FINDERS.add("average-by-wrong-count")
def _wrong_count(program: Program) -> Iterator[Remark]:
    """A sum of means is divided by samples, or a sum over samples by batches."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value, tally, by in divisions(computation, program):
        if value.node in said or tally.turns < 1:
            continue
        name = short(tally.target)
        if is_mean_of_batch(tally.step) and counts_samples(computation, program, tally, by) and not _one_by_one(computation, tally):
            said.add(value.node)
            yield Remark(value.node, f"{name} adds up a mean for each batch (line {tally.total.line}) and is divided by {short(by.node)}, the number of samples: it is too small by the size of the batch")
        elif is_sum_of_batch(tally.step) and counts_batches(computation, program, tally, by):
            said.add(value.node)
            yield Remark(value.node, f"{name} adds up the sum over the samples of each batch (line {tally.total.line}) and is divided by {short(by.node)}, the number of batches: it is too large by the size of the batch")


def _one_by_one(computation: Computation, tally: Tally) -> bool:
    """Whether batches have one sample."""
    over = over_of(computation, tally)
    if over is None or over.op != "torch.utils.data.DataLoader":
        return False
    size = over.argument("batch_size", 1)
    return size is None or number(size) == 1


@FINDERS.add("average-by-wrong-count")
def _divided_in_the_loop(program: Program) -> Iterator[Remark]:
    """A sum is divided by the number of its terms in each turn of the loop that adds them up, and goes on from the quotient."""
    computation = computation_of(program)
    for value, tally, by in divisions(computation, program):
        if value.where.loops != tally.total.where.loops or value.where.under != tally.total.where.under or tally.turns < 1 or not _is_kept_in(program, value, tally):
            continue
        over, count = over_of(computation, tally), bare(by)
        turn = count.op == "add" and len(count.args) == 2 and any(one.op == "index" and one.where.loops[-1:] == (tally.loop,) for one in count.args) and any(number(one) == 1 for one in count.args)
        whole = over is not None and ((over.op == "range" and len(over.args) == 1 and same(bare(over.args[0]), count)) or (count.op == "len" and count.args[0] is over))
        if turn or whole or counts_batches(computation, program, tally, by) or counts_samples(computation, program, tally, by):
            yield Remark(value.node, f"{short(tally.target)} is divided by {short(by.node.target if isinstance(by.node, ast.AugAssign) else by.node)} in each turn of the loop that adds it up (line {tally.total.line}), and goes on from the quotient: what the first turns have added is divided again and again")
            return


def _is_kept_in(program: Program, value: Value, tally: Tally) -> bool:
    """Whether a quotient is kept in the place of its sum: `total /= n`, `total = total / n`."""
    statement = value.node if isinstance(value.node, ast.stmt) else program.statement(value.node)
    target = statement.target if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div) else statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is value.node else None
    return target is not None and ast.unparse(target) == ast.unparse(tally.target)


@FINDERS.add("average-by-wrong-count")
def _begins_with_a_number(program: Program) -> Iterator[Remark]:
    """The mean of a list that is filled in a loop, and that has had a number in it before."""
    computation = computation_of(program)
    for value in computation.of("mean", "div"):
        if value.op == "div":
            by = bare(value.args[-1], "max")
            total = bare(value.args[0])
            given = by.args[0] if by.op == "len" and by.args and total.op in ("sum", "sum_of") else None
        else:
            given = bare(value.args[0]) if value.args and not value.named and len(value.args) == 1 else None
        if not isinstance(given, Many) or given.op != "list" or not given.grown or len(given.parts) < 2 or (value.op == "div" and not _adds_up(value.args[0], given)):
            continue
        first, rest = given.parts[0], given.parts[1:]
        if number(first) == 0 and all(number(one) is None and len(one.where.loops) > len(first.where.loops) for one in rest) and len(value.where.loops) < len(rest[0].where.loops):
            yield Remark(value.node, f"{short(value.node)} is the mean of what the loop of line {getattr(rest[0].where.loops[-1], 'lineno', 0)} adds and of the {short(first.node)} that the list begins with (line {first.line}): it counts as one more")
            return


def _adds_up(total: Value, given: Many) -> bool:
    """Whether a sum is that of a list."""
    return any(one is given or one is given.parts[-1] for one in origins(total))


@FINDERS.add("sum-never-reset")
def _never_reset(program: Program) -> Iterator[Remark]:
    """A sum that is divided in each epoch by what one epoch has is never set back to its start."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value, tally, by in divisions(computation, program):
        loops = tally.total.where.loops
        if value.node in said or tally.turns < 2 or value.where.loops != loops[:-1] or value.where.under != tally.start.where.under:
            continue
        divisor = bare(by, "max")
        over = over_of(computation, tally)
        counted = divisor.op == "len" and over is not None and (divisor.args[0] is over or divisor.args[0].op in ("dataset", "sampler") or divisor.args[0] is over.argument("dataset", 0))
        other = tally_of(program, divisor)
        counted = counted or (other is not None and other.loop is tally.loop and other.turns < tally.turns)
        around = loops[-2]
        if counted and over is not None and over.op != "range" and not is_set_in(program, tally, around):
            said.add(value.node)
            yield Remark(value.node, f"{short(tally.target)} is never set back to {short(tally.start.node)} (line {tally.start.line}): it holds the sum of all epochs, and {short(by.node)} counts one")


@FINDERS.add("divided-by-another-interval")
def _another_interval(program: Program) -> Iterator[Remark]:
    """A sum since the last report is divided by another number than that of the turns between reports."""
    for value, tally, by, every in _reports(program):
        known, interval = number(by), number(every)
        given = isinstance(by.node, (ast.Constant, ast.Name, ast.Attribute, ast.keyword, ast.Call))
        if known is None or interval is None or known == interval or known <= 1 or not given or not is_set_in(program, tally, tally.loop):
            continue
        if is_mean_of_batch(tally.step):
            yield Remark(value.node, f"{short(tally.target)} adds up {interval:g} batches between two reports and is divided by {known:g}")


@FINDERS.add("sum-kept-between-reports")
def _kept_between(program: Program) -> Iterator[Remark]:
    """A sum is divided by the turns since the last report, and not set back to 0 after it."""
    for value, tally, by, every in _reports(program):
        if same(by, every) and tally.step.op != "@constant" and not is_set_in(program, tally, tally.loop):
            yield Remark(value.node, f"{short(tally.target)} is divided by {short(by.node)}, the batches since the last report, and is not set back to 0: the second report holds twice as many")


def _reports(program: Program) -> Iterator[tuple[Value, Tally, Value, Value]]:
    """Each division of a sum in every few turns of the loop that adds it up: with the sum, the divisor and the interval."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value, tally, by in divisions(computation, program):
        if value.where.loops[: len(tally.total.where.loops)] != tally.total.where.loops or value.node in said:
            continue
        asked = {id(test) for test, _ in tally.total.where.under}
        intervals = [every for test, holds in value.where.under if holds and id(test) not in asked and (every := _interval(test)) is not None]
        if len(intervals) == 1 and constant(by) != 0:  # of two, the turns between reports are a multiple of both
            said.add(value.node)
            yield value, tally, by, intervals[0]


def _interval(test: Value) -> Value | None:
    """k of `i % k == 0`, `(i + 1) % k == 0`, `i % k == k - 1` and `count == k`."""
    if test.op not in ("eq", "ge") or len(test.args) != 2:
        return None
    left, right = test.args
    if left.op == "mod" and test.op == "eq":
        return left.args[1]
    return right if bare(left).op == "add" and bare(left).args and bare(left).args[0].op == "count" else None


@FINDERS.add("divided-by-the-last-index")
def _last_index(program: Program) -> Iterator[Remark]:
    """A sum over all turns is divided by the number of the last one, counted from 0."""
    said: set[ast.AST] = set()
    for value, tally, by in divisions(computation_of(program), program):
        index = bare(by)
        while index.op == "max" and index.args:
            index = bare(index.args[0])
        if index.op != "index" or len(index.args) != 1 or value.node in said:
            continue
        from_zero = index.data != "enumerate" or number(index.args[0]) == 0
        if from_zero and index.where.loops == tally.total.where.loops and len(value.where.loops) < len(index.where.loops):
            said.add(value.node)
            yield Remark(value.node, f"{short(tally.target)} adds up all turns of the loop, and {short(by.node)} is the number of the last one, counted from 0: the division lacks one")


@FINDERS.add("divided-by-the-whole-data-set")
def _whole_data_set(program: Program) -> Iterator[Remark]:
    """A sum over what a sampler draws is divided by the size of the whole data set."""
    computation = computation_of(program)
    for value, tally, by in divisions(computation, program):
        over, size = over_of(computation, tally), bare(by)
        if over is None or over.op != "torch.utils.data.DataLoader" or size.op != "len":
            continue
        data, sampler = over.argument("dataset", 0), over.argument("sampler", 3)
        whole = size.args[0] is data or (size.args[0].op == "dataset" and size.args[0].args[0] is over)
        if whole and sampler is not None and _draws_a_part(sampler, data):
            yield Remark(value.node, f"{short(value.node)} divides by the size of the whole data set, and {short(sampler.node)} (line {sampler.line}) draws a part of it")


def _draws_a_part(sampler: Value, data: Value | None) -> bool:
    word = sampler.op.rpartition(".")[2]
    if word == "SubsetRandomSampler":
        return not any(one.op == "randperm" for one in sampler.args) and not any(one.op in ("range",) for one in sampler.args)
    drawn = sampler.argument("num_samples", 2 if word == "RandomSampler" else 1)
    if word not in ("RandomSampler", "WeightedRandomSampler") or drawn is None or drawn.op == "len":
        return False
    return not any(one is data or one.op == "len" for one in origins(drawn)) and number(drawn) is not None


@FINDERS.add("last-batch-counted-full")
def _counted_full(program: Program) -> Iterator[Remark]:
    """A count of hits is divided by the number of batches times the size of a full one."""
    computation = computation_of(program)
    for value, tally, by in divisions(computation, program):
        over, size = over_of(computation, tally), bare(by)
        if over is None or over.op != "torch.utils.data.DataLoader" or size.op != "mul" or is_mean_of_batch(tally.step):
            continue
        full, drops = over.argument("batch_size", 1), over.named.get("drop_last")
        if full is None or number(full) == 1 or drops is not None:
            continue
        for batches, one in (size.args, size.args[::-1]):
            if bare(batches).op == "len" and bare(batches).args[0] is over and (same(bare(one), full) or (bare(one).op == "batch_size" and bare(one).args[0] is over)):
                yield Remark(value.node, f"{short(by.node)} takes all batches for full, and the last one has fewer samples: the loader keeps it")


@FINDERS.add("value-of-another-loop")
def _other_loop(program: Program) -> Iterator[Remark]:
    """A loop over batches adds up what an earlier loop has computed last, and nothing of its own batch."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("add"):
        tally = tally_of(program, value)
        if tally is None or value.node in said or tally.step.op == "@constant" or not isinstance(tally.loop, Loop):
            continue
        over = over_of(computation, tally)
        if over is None or over.op in ("range", "items", "list", "tuple") or is_size_of_batch(tally.step):
            continue
        inner = list(origins(tally.step))
        mine = any(tally.loop in one.where.loops and one.op in ("element", "rows", "part", "index", "next", "run", "unknown") for one in inner)
        made = {id(one) for one in origins(over)}
        theirs = [one for one in inner if one.where.loops and one.where.loops[:-1] == value.where.loops[:-1] and one.where.loops[-1] is not tally.loop and one.op in ("run", "eq", "cross_entropy", "mse_loss")]
        if theirs and not mine and not any(id(one) in made for one in theirs):
            said.add(value.node)
            yield Remark(value.node, f"{short(tally.step.node)} is not computed from the batches of this loop: it is the last value of another loop (line {theirs[0].line}), the same for every batch")


@FINDERS.add("evaluation-ends-early")
def _ends_early(program: Program) -> Iterator[Remark]:
    """The return stands in the loop that gathers: it ends after its first turn."""
    for loop in program.everywhere(ast.For):
        last = loop.body[-1]
        while isinstance(last, ast.With) and last.body:
            last = last.body[-1]
        if not isinstance(last, ast.Return) or last.value is None or loop.orelse:
            continue
        inside = own_nodes(loop)
        if any(isinstance(one, (ast.Continue, ast.Break)) for one in inside) or _learns(inside):
            continue
        gathered = [one for statement in loop.body for one in ast.walk(statement) if _gathers(one)]
        gathered = [one for one in gathered if not any(isinstance(each, (ast.For, ast.While, ast.If)) and each is not loop and is_inside(program, each, loop) for each in _around(program, one, loop))]
        if gathered:
            yield Remark(last, f"the return stands inside the loop that {short(gathered[0])} gathers in (line {getattr(gathered[0], 'lineno', 0)}): it ends after its first turn")


def _learns(nodes: Iterable[ast.AST]) -> bool:
    """Whether a backward is among nodes."""
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in nodes)


def _gathers(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend") and isinstance(node.func.value, ast.Name)


def _around(program: Program, node: ast.AST, loop: ast.AST) -> list[ast.AST]:
    found = []
    for one in program.parents(node):
        if one is loop:
            break
        found.append(one)
    return found


@FINDERS.add("last-batch-alone")
def _last_batch(program: Program) -> Iterator[Remark]:
    """A loop over batches sets a score anew for each, gathers nothing, and what follows reads the last one."""
    computation = computation_of(program)
    scores: set[ast.AST] = {value.node for value in computation.of("item", "mean", "div", *_SCORES) if is_mean_of_batch(value)}
    scores |= {target for target, given in computation.stored.items() if any(one.where.loops and is_mean_of_batch(one) for one in given)}
    learned = {loop for one in computation.of("backward") for loop in one.where.loops}  # that shows how far a training is
    for loop in program.everywhere(ast.For):
        inside = [one for statement in loop.body for one in _plainly(statement)]
        if loop in learned or not all(isinstance(one, ast.Assign) for one in inside) or any(isinstance(one, ast.Call) and getattr(one.func, "id", "") == "range" for one in ast.walk(loop.iter)):
            continue
        block: ast.AST = loop
        after = [one for statement in program.after(block) for one in ast.walk(statement)]
        while isinstance(around := program.parent.get(block), ast.With):
            block = around
            after += [one for statement in program.after(block) for one in ast.walk(statement)]
        for one in inside:
            assert isinstance(one, ast.Assign)
            target = one.targets[0]
            base = target.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) else target
            if not isinstance(base, ast.Name) or not (base in scores or any(each in scores for each in ast.walk(one.value))) or _carries(loop, one, base.id):
                continue
            read = next((each for each in after if isinstance(each, ast.Name) and each.id == base.id), None)
            if read is not None and isinstance(read.ctx, ast.Load) and not _learns(after):
                yield Remark(one, f"{short(one)} is set anew for each batch: line {read.lineno} reads that of the last batch alone")


@FINDERS.add("last-batch-alone")
def _added_to_itself(program: Program) -> Iterator[Remark]:
    """The name of a sum is given the score of each batch, which is then added to itself: what follows the loop reads the last."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("add"):
        if not isinstance(value.node, ast.AugAssign) or not value.where.loops or value.node in said or len(value.args) != 2:
            continue
        score, added = value.args
        if bare(added) is not bare(score) or not any(one.op in _SCORES for one in origins(score)) or score.where.loops != value.where.loops:
            continue
        read = next((one for one in _told(computation, value) if value.where.loops[-1] not in one.where.loops), None)
        if read is not None:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} adds to what {short(score.node)} (line {score.line}) has just given the same name: {short(read.node)} (line {read.line}) is twice that of the last batch, and holds no other")


@FINDERS.add("last-batch-alone")
def _overwritten_and_divided(program: Program) -> Iterator[Remark]:
    """What a loop has left of its last batch is divided by the number of batches, as if the loop had added them up."""
    computation = computation_of(program)
    for value in computation.of("div"):
        score = bare(value.args[0], "builtins.float", "round") if len(value.args) == 2 else value
        loops = value.where.loops
        inner = score.where.loops[len(loops):]
        if score.op not in _SCORES or not inner or score.where.loops[: len(loops)] != loops or score.number > value.number or constant(score.named.get("reduction")) not in (None, "mean"):
            continue
        name = next((target for target, given in computation.stored.items() if any(bare(one) is score for one in given) and isinstance(target, ast.Name) and any(isinstance(each, ast.Name) and each.id == target.id for each in ast.walk(value.node))), None)
        by = value.args[1] if len(value.args) == 2 else value
        counted = any(one.op in ("len", "floordiv") for one in origins(by, stop=("len",))) or ((number(by) or 0) > 1 and not isinstance(by.node, ast.Constant))
        learns = any(one.op == "backward" for one in computation.users(value))
        if counted and not learns and name is not None and not any(isinstance(one, ast.AugAssign) and getattr(one.target, "id", None) == name.id for one in program.everywhere(ast.AugAssign)):
            yield Remark(value.node, f"{short(value.node)} divides what line {name.lineno} has set anew for each batch: it is the loss of the last batch, and a share of it")
            return


def _told(computation: Computation, value: Value) -> Iterator[Value]:
    """What is made of a value, as far as it is one number."""
    waiting = [value]
    for _ in range(20):
        if not waiting:
            return
        for user in computation.users(waiting.pop()):
            if user.op in ("float", "builtins.float", "item", "either"):
                waiting.append(user)
            elif user.op == "div":
                yield user


_SCORES = ("cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy", "nll_loss")


def _plainly(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement, or those that a `with` runs."""
    if isinstance(statement, ast.With):
        for one in statement.body:
            yield from _plainly(one)
    else:
        yield statement


def _carries(loop: ast.For, given: ast.Assign, name: str) -> bool:
    """Whether a turn of the loop reads what the one before has set."""
    alone = isinstance(given.targets[0], ast.Name)
    return alone and any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in ast.walk(loop))
