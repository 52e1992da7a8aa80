"""Losses: which of their parts get a gradient, and how large. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Many,
    Table,
    Value,
    alternatives,
    bare,
    comes_from,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import (
    CUTS,
    cut_in,
    flows,
    has_gradient,
    is_learned,
    is_place,
    layers_of,
    networks_in,
)
from probe.diagnose.code.traits.basic import LOSSES, terms
from probe.diagnose.code.traits.updates import backwards, is_optimizer, modules, runs

FINDERS = Finders()
_MAKERS = ("tensor", "as_tensor", "torch.autograd.Variable", "torch.Tensor", "torch.FloatTensor", "FloatTensor", "from_numpy")
_QUIET = frozenset({
    "item", "detach", "print", "text", "append", "add", "div", "mul", "list", "tuple", "dict", "set_item", "set_attribute", "tolist", "float", "cpu",
    "tensor", "sum_of", "either", "part", "log", "add_scalar", "update", "numpy", "data", "format", "builtins.float", "round",
})
"""Operations that only report a number."""


@FINDERS.add("term-without-gradient")
def _term_without_gradient(program: Program) -> Iterator[Remark]:
    """A term of a loss is computed from the network that it trains, and its gradient is cut off."""
    seen: set[ast.AST] = set()
    for _, loss in backwards(computation_of(program)):
        parts = [one for one, _ in terms(loss) if one.op != "@constant"]
        learned = [one for one in parts if has_gradient(one)]
        networks = {one for part in learned for one in networks_in(part)}
        for part in parts:
            if any(part is one for one in learned) or not networks & networks_in(part) or part.node in seen:
                continue
            cut = cut_in(part)
            if cut is None or _undone(cut, learned) or cut.op in ("len", "size", "shape", "numel"):
                continue
            seen.add(part.node)
            yield Remark(part.node, f"{short(part.node)} is added to the loss without its gradient: it ends at {short(cut.node)} (line {cut.line})")


@FINDERS.add("term-without-gradient")
def _loss_of_another(program: Program) -> Iterator[Remark]:
    """A term of a loss judges what a network gives without a gradient, beside terms that are learned from."""
    for value, loss in backwards(computation_of(program)):
        parts = [one for one, _ in terms(loss) if one.op in LOSSES and len(one.args) > 1]
        if not any(has_gradient(one) for one, _ in terms(loss)):
            continue
        for part in parts:
            run = bare(part.args[0])
            if run.op == "run" and run.where.no_grad and run.args[0].op.startswith("torch.nn.") and not has_gradient(part):
                yield Remark(part.node, f"{short(part.node)} is a term of the loss of {short(value.node)} (line {value.line}), and judges {short(run.node)} (line {run.line}), which runs without a gradient: the term is a constant")
                return


def _undone(cut: Value, learned: list[Value]) -> bool:
    """Whether what is cut off stands in a term with its gradient too: `x - x.detach()`."""
    given = [part for part in cut.args if part.op not in ("run", "parameters", "@input", "@constant") and not is_place(part)]
    if cut.op in _COUNTED or is_place(cut):
        inside = {id(part) for part in given}
        return any(flows(one, lambda value: id(value) in inside) for one in learned)
    return any(comes_from(one, part) for one in learned for part in given)


_COUNTED = ("one_hot", "bincount", "histc", "argmax", "topk", "count_nonzero")
"""Operations that say which are the largest, or how often each is: the same numbers train nothing else."""


@FINDERS.add("loss-made-anew")
def _loss_made_anew(program: Program) -> Iterator[Remark]:
    """Backward starts from a new tensor that holds only the numbers of what the network gave."""
    computation = computation_of(program)
    for value, loss in backwards(computation):
        if has_gradient(loss) or not networks_in(loss) or loss.where.no_grad:
            continue
        for one in origins(loss, CUTS):
            if one.op in _MAKERS and one.args and networks_in(one) and _asks(one, loss) and not any(user.op == "grad" for user in computation.users(one)):
                yield Remark(one.node, f"{short(one.node)} makes a new tensor of what the network gave: {short(value.node)} (line {value.line}) ends there")
                break


def _asks(made: Value, loss: Value) -> bool:
    """Whether a tensor is made to require a gradient, when it is made or right after."""
    return constant(made.argument("requires_grad")) is True or any(one.op == "requires_grad_" and bare(one.args[0]) is bare(made) for one in origins(loss))


@FINDERS.add("gradient-asked-of-the-loss")
def _gradient_asked_of_the_loss(program: Program) -> Iterator[Remark]:
    """A gradient is asked of a loss whose graph ends before it comes to the network."""
    computation = computation_of(program)
    for value in computation.of("requires_grad_", "set_attribute"):
        if not value.args or (value.op == "set_attribute" and (value.data != "requires_grad" or constant(value.args[1]) is not True)):
            continue
        loss = value.args[0]
        if loss.op == "@input" or has_gradient(loss) or not networks_in(loss) or value.where.no_grad:
            continue
        if any(bare(one) is loss or one is loss or (one.op == "requires_grad_" and one.args[0] is loss) for _, one in backwards(computation)):
            cut = cut_in(loss)
            if cut is not None:
                yield Remark(value.node, f"{short(value.node)} asks for a gradient of a loss that has no graph: it ends at {short(cut.node)} (line {cut.line})")


@FINDERS.add("total-not-used")
def _total_not_used(program: Program) -> Iterator[Remark]:
    """Backward starts from one term of a sum of losses, and the others get no gradient anywhere."""
    computation = computation_of(program)
    found = list(backwards(computation))
    if not found:
        return
    started = [(value, {id(one) for one, _ in terms(loss)}) for value, loss in found]
    taken = [*(loss for _, loss in found), *(one for one in computation.of("grad") if one.args)]
    for total in computation.of("add"):
        parts = [one for one, _ in terms(total) if one.op != "@constant"]
        starts = [value for value, own in started if own and own < {id(one) for one in parts} and runs(value) == runs(total) and value.where.loops == total.where.loops]
        if not starts or total.where.no_grad or any(comes_from(loss, total) for loss in taken):
            continue
        own = next(own for value, own in started if value is starts[0])
        others = [one for one in parts if id(one) not in own]
        if all(_is_a_loss(one) and not any(comes_from(each, one) for each in taken) for one in others) and _only_reported(computation, total):
            lost = others[0]
            yield Remark(starts[0].node, f"{short(starts[0].node)} starts from one term of {short(total.node)} (line {total.line}): {short(lost.node)} (line {lost.line}) never gets a gradient")
            return


def _is_a_loss(value: Value) -> bool:
    """Whether a value is computed from a network with its gradient."""
    return flows(value, lambda one: is_learned(one) and one.op != "@input") and bool(networks_in(value))


def _only_reported(computation: Computation, total: Value) -> bool:
    """Whether a value is used for nothing but a report."""
    return all(one.op in _QUIET or one.op.rpartition(".")[2] in _QUIET for one in computation.users(total)) and bool(computation.users(total))


@FINDERS.add("averaged-twice")
def _averaged_twice(program: Program) -> Iterator[Remark]:
    """A mean over a batch, on its way to backward, is divided by the size of the batch or a count in it again."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for _, loss in backwards(computation):
        for one, _ in terms(loss) if loss.op not in ("div",) else [(loss, 1.0)]:
            if one.op != "div" or len(one.args) != 2 or one.node in seen:
                continue
            mean = bare(one.args[0])
            by = _counted(one.args[1])
            if by is not None and _is_whole_mean(mean) and mean.where.loops == one.where.loops and comes_from(mean, by) and not _goes_over(computation, one, by):
                seen.add(one.node)
                yield Remark(one.node, f"{short(mean.node)} is a mean already, and {short(one.node)} divides it by {short(one.args[1].node)} again")


def _goes_over(computation: Computation, value: Value, by: Value) -> bool:
    """Whether a loop around a value goes over what it is divided by the length of: micro batches add up."""
    return any(
        node in value.where.loops and any(bare(one) is by for one in (over, *(over.args if over.op in ("enumerate", "zip", "reversed") else ())))
        for _, node, over in computation.passes
    )


def _is_whole_mean(value: Value) -> bool:
    """Whether a value is the mean over all of a batch."""
    if value.op == "mean":
        return len(value.args) == 1 and not value.named
    return value.op in LOSSES and (constant(value.named.get("reduction")) or "mean") == "mean" and value.op not in ("ctc_loss", "kl_div") and not (
        value.named.get("reduce") or value.named.get("size_average")
    )


def _counted(value: Value) -> Value | None:
    """The batch whose size, or the condition whose count, a value is."""
    value = bare(value, "clamp", "builtins.max", "max")
    if value.op == "len" and value.args:
        return bare(value.args[0])
    if value.op == "size" and len(value.args) == 2 and number(value.args[1]) == 0:
        return bare(value.args[0])
    if value.op == "part" and number(value.args[1]) == 0 and value.args[0].op in ("shape", "size"):
        return bare(value.args[0].args[0])
    if value.op == "sum" and len(value.args) == 1 and bare(value.args[0]).op in ("ne", "eq", "gt", "ge", "lt"):
        return bare(bare(value.args[0]).args[0])
    return None


@FINDERS.add("only-the-last-counts")
def _only_the_last_counts(program: Program) -> Iterator[Remark]:
    """A loss is computed anew in each pass of a loop, and backward runs once after it, on the last one."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value, loss in backwards(computation):
        for term in {id(one): one for one in (loss, *(part for part, _ in terms(loss)))}.values():
            dropped = _dropped(program, computation, term)
            if dropped is not None and term.node not in said:
                said.add(term.node)
                yield Remark(term.node, f"{short(term.node)} is computed in each pass of the loop of line {dropped.lineno}, and {short(value.node)} (line {value.line}) sees that of the last pass only")
        one = _scaled(loss)
        outer, inner = value.where.loops, one.where.loops
        if len(inner) != len(outer) + 1 or inner[: len(outer)] != outer or runs(one) != runs(value) or one.number > value.number:
            continue
        loop = inner[-1]
        if (one.op not in LOSSES and one.op != "mean") or not isinstance(loop, ast.For) or _ends_early(loop) or one.where.under != value.where.under:
            continue
        if has_gradient(one) and networks_in(one) and one.node not in said:
            yield Remark(one.node, f"{short(one.node)} is computed in each pass of the loop of line {loop.lineno}, and {short(value.node)} (line {value.line}) comes after it: only the last pass counts")


def _dropped(program: Program, computation: Computation, term: Value) -> ast.For | None:
    """The loop whose passes each compute a term of a loss anew, where nothing reads those of the passes before the last."""
    statement = program.statement(term.node)
    loop = next((one for one in program.parents(term.node) if isinstance(one, (ast.For, ast.FunctionDef))), None)
    if not isinstance(loop, ast.For) or not isinstance(statement, ast.Assign) or statement.value is not term.node or _ends_early(loop) or not networks_in(term):
        return None
    before = [one for one in computation.of(term.op) if one.node is term.node and one.where == term.where and one is not term]
    return loop if before and all(not computation.users(one) for one in before) and has_gradient(term) else None


def _scaled(loss: Value) -> Value:
    """A loss without the numbers that it is multiplied by."""
    loss = bare(loss)
    while loss.op in ("mul", "div") and len(loss.args) == 2:
        learned = [one for one in loss.args if networks_in(one)]
        if len(learned) != 1:
            break
        loss = bare(learned[0])
    return loss


def _ends_early(loop: ast.For) -> bool:
    """Whether a loop may end before its last pass."""
    return any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(loop))


@FINDERS.add("graph-kept")
def _graph_kept(program: Program) -> Iterator[Remark]:
    """A loss that has run backward is kept with its graph, pass after pass, in what outlives the loop."""
    computation = computation_of(program)
    found = list(backwards(computation))
    for value, loss in found:
        if not value.where.loops or loss.op == "@input" or not (networks_in(loss) and has_gradient(loss)):
            continue
        for one in computation.users(loss):
            if (one.op == "append" and len(one.args) == 2 and one.args[1] is loss) or (one.op == "add" and isinstance(one.node, ast.AugAssign) and one.args[1] is loss and constant(one.args[0]) == 0):
                kept = one.args[0]
            else:
                continue
            ends = any(comes_from(each, kept if one.op == "append" else one) for _, each in found) or "deque" in kept.op
            longer = len(kept.where.loops) < len(one.where.loops) or not isinstance(kept, Many)
            if not ends and longer and runs(one) == runs(value) and one.where.loops[: len(value.where.loops)] == value.where.loops:
                yield Remark(one.node, f"{short(one.node)} keeps {short(loss.node)} (line {loss.line}) with its graph in every pass: memory grows")


@FINDERS.add("loss-maximized")
def _loss_maximized(program: Program) -> Iterator[Remark]:
    """An optimizer that is told to maximize steps on a loss that is to become small."""
    computation = computation_of(program)
    found = list(backwards(computation))
    for value in computation.values:
        if not is_optimizer(value) or constant(value.argument("maximize")) is not True:
            continue
        if found and all(_small_is_good(loss) for _, loss in found):
            yield Remark(value.node, f"maximize=True makes {short(found[0][1].node)} (line {found[0][1].line}) larger with each step, and it is a loss")


def _small_is_good(loss: Value) -> bool:
    """Whether each term of a value is a loss of torch, added with a positive factor."""
    parts = [(one, factor) for one, factor in terms(loss) if one.op != "@constant"]
    return bool(parts) and all(factor is not None and factor > 0 and any(each.op in LOSSES for each in origins(one, LOSSES | {"run"})) for one, factor in parts)


@FINDERS.add("own-similarity-kept")
def _own_similarity_kept(program: Program) -> Iterator[Remark]:
    """Similarities of all rows to all rows go into a softmax over candidates with each row's own among them."""
    computation = computation_of(program)
    for value in computation.of("cross_entropy", "logsumexp", "log"):
        added = bare(value.args[0]) if value.args else value
        if value.op == "log" and added.op == "div" and len(added.args) == 2:  # -log(positive / all)
            added = bare(added.args[1])
        powers = bare(added.args[0]) if value.op == "log" and added.op == "sum" and added.args else value
        if not value.args or (value.op == "log" and powers.op != "exp"):
            continue
        chain, product = _down_to_product(powers.args[0])
        rows = _with_itself(product)
        if rows is None or not _is_normalized(rows):
            continue
        if value.op == "cross_entropy" and (len(value.args) < 2 or bare(value.args[1]).op == "arange"):
            continue
        changed = any(one.op in ("diagonal", "diag", "set_item", "fill_diagonal_", "masked_fill", "where") for each in (*chain, powers) for one in computation.users(each) if each is not value)
        if not changed:
            yield Remark(value.node, f"{short(product.node)} (line {product.line}) holds the similarity of each row to itself, and {short(value.node)} leaves it among the candidates")


def _down_to_product(value: Value) -> tuple[list[Value], Value]:
    """Logits without their temperature, and what was passed on the way."""
    chain = [value]
    while value.args and value.op in ("div", "mul", "float", "to", "contiguous", "sub"):
        if value.op == "sub" and bare(value.args[1], "part").op not in ("max", "detach", "amax"):
            break
        value = value.args[0] if value.op != "mul" or number(value.args[0]) is None else value.args[1]
        chain.append(value)
    return chain, value


def _with_itself(value: Value) -> Value | None:
    """The rows that are multiplied with themselves: z @ z.T, or an einsum of z with z."""
    if value.op == "matmul" and len(value.args) == 2:
        left, right = bare(value.args[0]), bare(value.args[1])
        if right.op in ("t", "T", "transpose", "mT", "permute") and right.args and same(bare(right.args[0]), left):
            return left
    if value.op == "einsum" and len(value.args) == 3 and isinstance(how := constant(value.args[0]), str):
        left, right = bare(value.args[1]), bare(value.args[2])
        sides = how.replace(" ", "").split("->")
        one, _, other = sides[0].partition(",")
        crossed = len(one) == len(other) == 2 and one[1] == other[1] and one[0] != other[0] and sides[1:] in ([one[0] + other[0]], [other[0] + one[0]])
        if crossed and same(left, right):
            return left
    return None


def _is_normalized(rows: Value) -> bool:
    """Whether rows have length one, or are two views of a batch one below the other."""
    rows = bare(rows)
    return rows.op in ("normalize", "cat") or (rows.op == "div" and any(one.op == "norm" for one in origins(rows.args[1])))


@FINDERS.add("cut-off-from-the-loss")
def _cut_off_from_the_loss(program: Program) -> Iterator[Remark]:
    """A network has an optimizer, and each of its results loses its gradient at once."""
    computation = computation_of(program)
    found = list(backwards(computation))
    for optimizer in [one for one in computation.values if is_optimizer(one)]:
        held = modules(optimizer)
        stepped = any(one.op == "step" and any(part is optimizer for part in one.args) for one in computation.users(optimizer))
        if len(held) == 1 and stepped:
            inside = {id(one) for one in layers_of(held[0])}
            uses = [one for one in computation.values if one.op not in _NO_USES and any(id(part) in inside and (i == 0 or part.op == "torch.nn.Parameter") for i, part in enumerate(one.args))]
            used = [one for one in uses if any(comes_from(loss, one) and has_gradient(loss) for _, loss in found)]
            if used and all(_is_cut(computation, one) for one in uses):
                yield Remark(used[-1].node, f"{short(used[-1].node)} is cut off from its gradient in every loss, and the optimizer of line {optimizer.line} steps {short(held[0].node)}")
                continue
        if stepped and found:
            yield from _part_cut_off(computation, optimizer, held, found)


def _part_cut_off(computation: Computation, optimizer: Value, held: list[Value], found: list[tuple[Value, Value]]) -> Iterator[Remark]:
    """Of several networks that an optimizer steps, one that losses are computed with gets no gradient from any of them."""
    parts = {id(one): one for whole in held for one in (whole.made_of() if isinstance(whole, (Table, Many)) else [whole])}
    before = found[0][0].number
    for part in parts.values() if len(parts) > 1 else ():
        inside = {id(one) for one in layers_of(part)} | {id(part)}
        runs_of = [one for _, loss in found for one in origins(loss) if one.op == "run" and one.args and id(one.args[0]) in inside]
        frozen = any(one.op in ("requires_grad_", "load_state_dict", "pretrained") and one.number < before and any(id(each) in inside for each in one.args[:1]) for one in computation.values)
        if not runs_of or frozen or any(flows(loss, lambda one, inside=inside: any(id(each) in inside for each in one.made_of())) for _, loss in found):  # type: ignore[misc]
            continue
        learned = [loss for _, loss in found if has_gradient(loss) and any(one is runs_of[0] for one in origins(loss))]
        if learned:
            yield Remark(runs_of[0].node, f"{short(part.node)} (line {part.line}) gets no gradient from any loss that it is used in, and the optimizer of line {optimizer.line} steps it")
            return


_NO_USES = frozenset({
    "parameters", "named_parameters", "train", "eval", "to", "cuda", "zero_grad", "state_dict", "load_state_dict", "modules", "children",
    "named_modules", "requires_grad_", "set_attribute", "torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict", "deepcopy", "tuple",
    "apply", "list", "dict", "share_memory", "float", "cpu", "half", "append", "compile", "buffers",
})


def _is_cut(computation: Computation, value: Value, depth: int = 6) -> bool:
    """Whether all that is made of a value is made without its gradient."""
    if value.where.no_grad:
        return True
    users = computation.users(value)
    return bool(users) and all(
        one.op in CUTS or one.where.no_grad or (depth > 0 and one.op in ("part", "tuple", "list", "either") and _is_cut(computation, one, depth - 1)) for one in users
    )


def _is_of_learned(derivative: Value) -> bool:
    """Whether a derivative is one of what a network gives, and not of a known function (a target)."""
    of = derivative.argument("outputs", 0)
    return of is None or any(one.op in _LEARNED or one.op in ("@input", "either") for one in origins(of))


_LEARNED = ("run", "parameters", "named_parameters", "torch.nn.Parameter")
"""What a gradient flows into on another way than through a derivative: an adapted weight is the weight itself less a step."""


@FINDERS.add("derivative-without-graph")
def _derivative_without_graph(program: Program) -> Iterator[Remark]:
    """A term of a loss is made of a derivative that has no graph of its own, and of nothing else that is learned."""
    said: set[ast.AST] = set()
    for _, loss in backwards(computation_of(program)):
        for term, _ in terms(loss):
            inside = list(origins(term, stop=("torch.autograd.grad", *CUTS)))
            found = [one for one in inside if one.op == "torch.autograd.grad" and len(one.args) <= 4 and "**" not in one.named]
            taken = [one for one in found if "create_graph" not in one.named and _is_of_learned(one)]
            if taken and len(taken) == sum(map(_is_of_learned, found)) and not any(one.op in _LEARNED for one in inside) and not taken[0].where.no_grad and taken[0].node not in said:
                said.add(taken[0].node)
                yield Remark(taken[0].node, f"{short(taken[0].node)} is taken without create_graph=True, and {short(term.node)} (line {term.line}) is a term of the loss: nothing flows back through the derivative")


@FINDERS.add("derivative-without-graph")
def _part_without_graph(program: Program) -> Iterator[Remark]:
    """Beside what is learned, a term of a loss has a derivative by an input that has no graph of its own: of a differential
    equation, say, whose second derivative trains nothing."""
    said: set[ast.AST] = set()
    computation = computation_of(program)
    for _, loss in backwards(computation):
        for term, _ in terms(loss):
            for one in origins(term, stop=("run", "torch.autograd.grad", *CUTS)):
                graph = one.named.get("create_graph")
                if one.op != "torch.autograd.grad" or one.where.no_grad or one.node in said or len(one.args) > 3 or "**" in one.named or not (graph is None or constant(graph) is False):
                    continue
                by = one.argument("inputs", 1)
                if by is not None and _is_input(by) and _is_of_learned(one) and not _is_passed_on(computation, one, by) and not _moves_its_input(computation, one, by):
                    said.add(one.node)
                    yield Remark(one.node, f"{short(one.node)} is taken without create_graph=True, and is a part of the loss (line {term.line}): nothing flows back through the derivative")


def _is_passed_on(computation: Computation, derivative: Value, by: Value) -> bool:
    """Whether a derivative by outputs that were computed without gradients is multiplied by the same outputs, computed anew:
    that passes it on to the weights, and is no term of its own."""
    if not any(one.op == "run" and one.where.no_grad for one in origins(by)):
        return False
    waiting = [derivative]
    for _ in range(40):
        if not waiting:
            return False
        for user in computation.users(waiting.pop()):
            if user.op == "mul" and any(one.op == "run" and not one.where.no_grad for side in user.args for one in origins(side, stop=("torch.autograd.grad",))):
                return True
            if user.op in ("part", "element", "split", "chunk", "zip", "tuple", "list", "flatten", "view", "reshape"):
                waiting.append(user)
    return False


def _moves_its_input(computation: Computation, derivative: Value, by: Value) -> bool:
    """Whether a derivative moves the very point that it was taken at, as a sampler or an attack does: `x.detach() - step * grad`."""
    place = _point(by)
    waiting, seen = [derivative], {id(derivative)}
    while waiting and len(seen) < 40:
        for user in computation.users(waiting.pop()):
            if user.op in ("add", "sub", "sub_", "add_") and len(user.args) > 1 and any(_point(side) is place for side in user.args[:2]):
                return True
            if user.op in ("part", "element", "tuple", "list", "mul", "div", "neg", "sign", "normalize", "clamp", "add", "sub", "detach") and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False


def _point(value: Value) -> Value:
    return bare(value, "detach", "detach_", "requires_grad_", "clone", "data")


def _is_input(value: Value) -> bool:
    """Whether a derivative is asked by an input, which was told to have a gradient, and not by a weight."""
    for one in alternatives(value):
        told = False
        while (inside := one.parts if isinstance(one, Many) else one.args) and (isinstance(one, Many) or one.op in (*KEPT, "cat", "part", "sub", "add", "mul")):
            told = told or one.op == "requires_grad_"
            one = inside[0]
        if one.op in ("parameters", "named_parameters", "torch.nn.Parameter", "element") or not (told or "requires_grad" in one.named):
            return False
    return True
