"""What a network does to its own input by chance, also where it is judged. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.sides import DRAWS

FINDERS = Finders()
_JUDGED = ("argmax", "gt", "ge", "topk")
_MOVES = ("flip", "roll", "set_item", "masked_fill", "add")
_NOISE = ("randn", "randn_like", "normal")


@FINDERS.add("held-out-augmented")
def _changed_in_forward(program: Program) -> Iterator[Remark]:
    """A forward flips, shifts or blanks parts of its input by chance, whether the network is trained or judged."""
    computation = computation_of(program)
    moved = [one for one in computation.of(*_MOVES) if any(getattr(function, "name", "") == "forward" for function in one.where.functions) and one.args and _is_by_chance(one) and _is_of_the_input(one)]
    learned = {one.node for one in moved if not one.where.no_grad}
    asked = any(word in source.text for source in program.sources for word in ("self.training", ".training:", "is_training", "if train", "augment="))
    for value in computation.of(*_JUDGED) if moved and not asked else ():
        found = next((one for one in origins(value) if any(one is each for each in moved)), None) if value.where.no_grad else None
        if found is not None and found.node in learned and any(user.op in ("eq", "ne", "and") and not _asks_for_it(user, value, found) for user in computation.users(value)):
            yield Remark(found.node, f"{short(found.node)} changes the input by chance in each forward, also in that whose result {short(value.node)} (line {value.line}) judges")
            return


@FINDERS.add("held-out-augmented")
def _turned_in_a_helper(program: Program) -> Iterator[Remark]:
    """A function flips, shifts or turns batches by chance, and those that are judged go through it as those that are learned."""
    computation = computation_of(program)
    moved = [one for one in computation.of("flip", "roll", "rot90", "where") if one.where.functions and one.args and _is_turned_by_chance(one) and _is_of_the_input(one)]
    in_losses = {id(one) for _, loss in losses(computation) for one in origins(loss)} if moved else set()
    learned = {one.node for one in moved if one.where.loops and id(one) in in_losses}
    for value in computation.of(*_JUDGED) if learned else ():
        found = next((one for one in origins(value, ("shape", "size", "len")) if id(one) not in in_losses and any(one is each for each in moved)), None) if value.where.no_grad else None
        if found is not None and not found.where.no_grad and found.where.loops[:1] != value.where.loops[:1]:
            continue  # turned once, before
        averaged = any(one.op in ("mean", "stack", "sum_of", "add") and any(part.op == "run" and any(each is found for each in origins(part)) for part in one.args) for one in origins(value))
        if found is not None and found.node in learned and not averaged and any(user.op in ("eq", "ne", "and") for user in computation.users(value)):
            yield Remark(found.node, f"{short(found.node)} moves by chance also what {short(value.node)} (line {value.line}) judges: each evaluation sees other samples")
            return


def _asks_for_it(compared: Value, value: Value, changed: Value) -> bool:
    """Whether what a result is compared with is made of the same draw: where words are hidden, and asked for."""
    drawn = {id(one) for part in changed.args[1:] for one in origins(part, stop=("shape", "size", "len", "run", "empty_like", *DRAWS)) if one.op in DRAWS}
    return any(id(one) in drawn for side in compared.args if side is not value for one in origins(side, stop=("run",)))


def _is_turned_by_chance(value: Value) -> bool:
    """Whether a value is flipped or shifted where a draw says so, or by what is drawn, and nothing else is asked."""
    drawn = all(any(one.op in DRAWS for one in origins(test)) for test, _ in value.where.under)
    if value.op == "where":
        return drawn and len(value.args) == 3 and any(one.op in DRAWS for one in origins(value.args[0])) and any(one.op in ("flip", "roll", "rot90") for one in value.args[1:])
    return drawn and (bool(value.where.under) or any(one.op in DRAWS for part in (*value.args[1:], *value.named.values()) for one in origins(part)))


def _is_by_chance(value: Value) -> bool:
    """Whether where, or whether, something is changed is drawn."""
    moves = [*value.args[1:], *value.named.values(), *(test for test, _ in value.where.under)]
    if value.op == "add":
        return len(value.args) == 2 and ((_is_noise(value.args[1]) and any(one.op == "rows" for one in origins(value.args[0]))) or (_is_embedded(value.args[0]) and _is_scaled_draw(value.args[1])))
    placed = value.op not in ("set_item", "masked_fill") or (len(value.args) > 2 and number(value.args[2]) is not None)
    return placed and any(one.op in DRAWS for each in moves for one in origins(each, stop=("run",)))


def _is_noise(value: Value) -> bool:
    """Whether a value is noise of a fixed strength."""
    parts = value.args if value.op == "mul" else (value,)
    strengths = [number(one) for one in parts if one.op not in _NOISE]
    return any(one.op in _NOISE for one in parts) and None not in strengths and 0 not in strengths


def _is_of_the_input(value: Value) -> bool:
    """Whether no layer has a part in what is changed."""
    return _is_embedded(value.args[0]) if value.op == "add" and not _is_noise(value.args[1]) else not any(one.op == "run" for one in origins(value.args[0]))


def _is_embedded(value: Value) -> bool:
    """Whether a value is the vectors of words, as a table has them."""
    return value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Embedding"


def _is_scaled_draw(value: Value) -> bool:
    """Whether a value is drawn anew, whatever is asked for: noise as strong as the sizes of what it is added to say."""
    found = list(origins(value, stop=("run", "shape", "size", "len")))
    drawn = [one for one in found if one.op in (*_NOISE, "uniform", "rand_like", "rand")]
    return len(drawn) == 1 and all(one.op in ("mul", "sub", "add", "div", "sqrt", "pow", "part", "size", "shape", "neg", "empty_like", "zeros_like", "run", "@constant", drawn[0].op) for one in found)
