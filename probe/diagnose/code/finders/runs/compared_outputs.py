"""Terms of a loss, and choices, that are made of one output or one batch alone. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, origins
from probe.diagnose.code.finders.objects.folds import is_start, takes_the_score
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.basic import terms
from probe.diagnose.code.traits.sides import draws_of
from probe.diagnose.code.traits.updates import backwards, conditions
from probe.diagnose.code.traits.weights import in_place

FINDERS = Finders()
_DIVERGENCES = ("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss")
_VIEWS = ("view", "reshape", "unsqueeze", "squeeze", "flatten", "transpose", "permute", "detach", "contiguous")
"""Operations that leave a tensor where it is, if they change nothing else."""
_SQUASHED = frozenset({"softmax", "log_softmax", "exp", "log", "sigmoid", "logsigmoid"})


@FINDERS.add("one-view-twice")
def _output_with_itself(program: Program) -> Iterator[Remark]:
    """A divergence between two outputs is given one and the same output twice."""
    for _, loss in backwards(computation_of(program)):
        for term, _ in terms(loss):
            if term.op not in _DIVERGENCES or len(term.args) < 2:
                continue
            if is_with_itself(term):
                one = _core(term.args[0])
                yield Remark(term.node, f"{short(term.node)} compares {short(one.node)} (line {one.line}) with itself: it is 0 whatever the network gives")
                return


def is_with_itself(term: Value) -> bool:
    """Whether a loss compares one output of a network with itself."""
    one, other = _core(term.args[0]), _core(term.args[1])
    alike = term.op == "kl_div" or _words(term.args[0]) == _words(term.args[1])
    return term.op in _DIVERGENCES and alike and one.op == "run" and one is other


def _core(value: Value) -> Value:
    """What was squashed into probabilities."""
    while value.args and (value.op in KEPT or value.op in SHAPED or value.op in _SQUASHED) and value.op not in ("stack", "either", "rows"):
        value = value.args[0]
    return value


def _words(value: Value) -> set[str]:
    """The operations between a value and its core that change its numbers."""
    found = set()
    while value.args and (value.op in KEPT or value.op in SHAPED or value.op in _SQUASHED):
        found |= {value.op} & _SQUASHED
        value = value.args[0]
    return found


@FINDERS.add("one-view-twice")
def _changed_in_place_twice(program: Program) -> Iterator[Remark]:
    """Two views of a batch are made by random changes of one tensor in place: both are that tensor, after both changes."""
    for _, loss in backwards(computation_of(program)):
        made: dict[tuple[ast.AST, int], Value] = {}
        for run in origins(loss):
            view = _same_memory(run.args[1]) if run.op == "run" and len(run.args) > 1 and not run.where.no_grad else run
            if view is run or not in_place(view) or not view.args:
                continue
            base, drawn = view, False
            while in_place(base) and base.args:
                base, drawn = _same_memory(base.args[0]), drawn or any(draws_of(one) for one in base.args[1:])
            other = made.setdefault((view.node, id(base)), view)
            if other is not view and drawn:
                yield Remark(view.node, f"{short(view.node)} changes {short(base.node)} (line {base.line}) itself, for one view and for the other: both are one tensor, and their codes are equal")
                return


def _same_memory(value: Value) -> Value:
    """What a tensor is a view of."""
    while value.args and value.op in _VIEWS:
        value = value.args[0]
    return value


def best_of_one_batch(program: Program) -> Iterator[Remark]:
    """The state that is kept, or the end of the training, is decided by the loss of single training batches."""
    computation = computation_of(program)
    found = list(backwards(computation))
    for test in computation.of("lt", "le", "gt", "ge"):
        if len(test.args) != 2 or len(test.where.loops) < 2:
            continue
        for score, best in (test.args, test.args[::-1]):
            core = _number(score)
            back = next((back for back, loss in found if core is loss and back.where.loops == test.where.loops), None)
            if back is None or not is_start(best) or not _is_of_a_batch(core, test.where.loops[-1]) or not any(takes_the_score(computation, test, one, best) for one in (score, *(each for each in computation.users(core) if _number(each) is core))):
                continue
            branch = next((one for one in program.parents(test.node) if isinstance(one, ast.If)), None)
            saved = next((one for one in computation.of("save", "state_dict", "deepcopy") if (id(test), True) in conditions(one)), None)
            if saved is not None:
                yield Remark(test.node, f"{short(test.node)} compares the loss of one training batch with the lowest of any batch, and line {saved.line} keeps the state: which batch was easy decides")
                return
            if branch is not None and _gives_up(branch, test.where.loops[-1]):
                yield Remark(test.node, f"{short(test.node)} compares the loss of one training batch with the lowest of any batch, and the training ends after some that are not lower: the noise between batches decides")
                return


def _is_of_a_batch(loss: Value, loop: ast.AST) -> bool:
    """Whether a loss is computed from what a loop takes out of the data in each pass, and not from all of them."""
    return any(one.op in ("element", "rows", "part", "next", "index") and loop in one.where.loops for one in origins(loss))


def _number(value: Value) -> Value:
    """A loss without what makes it a number of Python."""
    while value.op in ("item", "detach", "float", "cpu", "builtins.float") and value.args:
        value = value.args[0]
    return value


def _gives_up(branch: ast.If, loop: ast.AST) -> bool:
    """Whether a count of the turns without progress ends a loop."""
    counted = {name for one in branch.orelse for each in ast.walk(one) if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add) for name in names_of(each.target)}
    for one in ast.walk(loop):
        if isinstance(one, ast.If) and counted & names_of(one.test) and any(isinstance(each, (ast.Break, ast.Return)) for part in one.body for each in ast.walk(part)):
            return True
    return False
