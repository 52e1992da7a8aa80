"""What a training does to its optimizers, in order: backward, clear, clip, step. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Value, alternatives, bare, origins

_NO_OPTIMIZERS = ("lr_scheduler", "swa_utils")
_SAME = frozenset({
    "train", "eval", "requires_grad_", "share_memory", "apply", "to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "compile", "module",
})
COUNTS = frozenset({"mod", "count", "index"})
"""Operations of what says the number of a pass."""


def is_optimizer(value: Value) -> bool:
    """Whether a value is an optimizer of torch or transformers."""
    words = value.op.split(".")
    return value.op.startswith(("torch.optim.", "transformers.", "bitsandbytes.optim.")) and words[-1][:1].isupper() and not (
        {*words} & {*_NO_OPTIMIZERS}
    ) and bool(value.args or value.named) and ("optim" in words or words[-1] in ("AdamW", "Adafactor"))


def is_schedule(value: Value) -> bool:
    """Whether a value is a schedule of the rate, of torch."""
    return value.op.startswith("torch.optim.lr_scheduler.") or value.op == "torch.optim.swa_utils.SWALR"


def is_scaler(value: Value) -> bool:
    """Whether a value is a GradScaler."""
    return value.op.endswith(".GradScaler")


def plain(value: Value) -> Value:
    """A module without what gives the module itself."""
    while value.op in _SAME and value.args:
        value = value.args[0]
    return value


def optimizer_of(value: Value) -> Value | None:
    """The optimizer that a call of `step` steps, directly or by a scaler; None if it is another thing, or given a closure."""
    found = value.args[1:] if value.args and value.op == "step" and is_scaler(plain(value.args[0])) else value.args
    return found[0] if value.op == "step" and len(found) == 1 and is_optimizer(found[0]) and not value.named else None


def parameters(optimizer: Value) -> Value | None:
    """What an optimizer is given."""
    return optimizer.argument("params", 0)


def modules(optimizer: Value) -> list[Value]:
    """The modules whose parameters an optimizer holds, as far as they are known."""
    given = parameters(optimizer)
    found = () if given is None else (one for one in origins(given, ("parameters", "named_parameters")) if one.op in ("parameters", "named_parameters"))
    return [plain(one.args[0]) for one in found if one.args]


def clears(value: Value, optimizer: Value) -> bool:
    """Whether a value sets all gradients of an optimizer to zero: of itself, or of the one module that it holds."""
    held = modules(optimizer)
    if value.op == "zero_grad" and value.args:
        of = plain(value.args[0])
        return of is optimizer or bool(held and all(one is of for one in held))
    if value.op == "set_attribute" and value.data == "grad" and value.args[1].op == "@constant":
        return any(one is optimizer for one in origins(value.args[0]) if one.op != "@object") or any(
            one.op == "parameters" and len(held) == 1 and plain(one.args[0]) is held[0] for one in origins(value.args[0])
        )
    return False


def runs(value: Value) -> tuple[ast.AST, ...]:
    """The function that runs a value, outermost, where the script never calls it: values of two of them have no order.
    None of what the script runs itself."""
    return value.where.functions[:1] if value.where.apart else ()


def conditions(value: Value) -> frozenset[tuple[int, bool]]:
    """The unknown conditions that a value is computed under."""
    return frozenset((id(test), holds) for test, holds in value.where.under)


def never_both(one: Value, other: Value) -> bool:
    """Whether no pass computes both of two values: they stand in the two branches of a condition."""
    return any((test, not holds) in conditions(other) for test, holds in conditions(one))


def always_with(one: Value, other: Value) -> bool:
    """Whether `one` is computed in each pass that computes `other`."""
    return runs(one) == runs(other) and one.where.loops == other.where.loops and conditions(one) <= conditions(other)


def in_parts_of(one: Value, other: Value) -> bool:
    """Whether `one` is computed in each of several passes that `other` is computed once for: after their loop, or in
    every few of them, by a count."""
    if runs(one) != runs(other):
        return False
    outer, inner = other.where.loops, one.where.loops
    if len(inner) > len(outer):
        return len(inner) == len(outer) + 1 and inner[: len(outer)] == outer and other.number > one.number
    if inner != outer or not (inner or runs(one)) or not conditions(one) < conditions(other):
        return False
    known = conditions(one)
    more = [test for test, holds in other.where.under if (id(test), holds) not in known]
    return any(by_count(test) for test in more)


def by_count(test: Value) -> bool:
    """Whether a condition is met in every few passes: it asks a remainder, or whether a count has reached a number."""
    for one in origins(test, ("part", "run")):
        if one.op == "mod" and any(each.op in COUNTS for each in origins(one.args[0])):
            return True
        if one.op in ("eq", "ge") and any(bare(each).op == "add" and any(part.op == "count" for part in each.args) for each in one.args):
            return True
    return False


def between(computation: Computation, first: Value, last: Value) -> list[Value]:
    """What is computed after one value and before another."""
    return computation.values[first.number + 1 : last.number]


def may_call_back(value: Value) -> bool:
    """Whether a value may run a backward that is not seen: a function that the program is given, or whose name says so."""
    if value.op in ("backward", "manual_backward", "unknown", "grad") or "backward" in value.op:
        return True
    return value.op == "run" and bool(value.args) and value.args[0].op in ("@input", "@library", "unknown", "element") and not value.where.no_grad and (
        any(is_optimizer(one) or is_scaler(one) for one in value.args[1:])
    )


def backwards(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Each backward, and what it is called on, without a scaler's factor; each of several that it may be."""
    for value in computation.of("backward"):
        loss = value.args[0] if value.args else None
        if loss is not None and loss.op == "scale" and len(loss.args) > 1:
            loss = loss.args[1]
        for one in alternatives(loss) if loss is not None else ():
            if one.op not in ("@constant", "@library"):
                yield value, one


def gradients_of(value: Value) -> list[Value]:
    """The modules or lists whose gradients a value reads or changes."""
    return [plain(one.args[0]) for one in origins(value) if one.op in ("parameters", "named_parameters") and one.args]


def is_clip(value: Value) -> bool:
    """Whether a value clips gradients: by torch, or by hand on `.grad`."""
    if value.op.rpartition(".")[2] in ("clip_grad_norm_", "clip_grad_value_") and value.op.startswith("torch."):
        return True
    written = getattr(getattr(value.node, "func", None), "attr", "")
    if value.op == "clamp" and value.args and written in ("clamp_", "clip_") and bare(value.args[0], shapes=False).op == "grad":
        return True
    return _is_scaled_to_a_norm(value)


def _is_scaled_to_a_norm(value: Value) -> bool:
    """Whether a gradient is multiplied in place by a factor that is made of the lengths of gradients and a limit."""
    written = getattr(getattr(value.node, "func", None), "attr", "")
    changed = written == f"{value.op}_" or (isinstance(value.node, ast.AugAssign) and getattr(value.node.target, "attr", "") == "grad")
    if value.op not in ("mul", "div") or len(value.args) != 2 or not changed or bare(value.args[0], shapes=False).op != "grad":
        return False
    made = {one.op for one in origins(value.args[1], ("run", "parameters"))}
    return "grad" in made and bool(made & {"norm", "square", "pow", "linalg.norm", "torch.linalg.vector_norm", "vector_norm", "dot"}) and "div" in made
