"""Networks that are exchanged or shared, and outputs that are kept in another order. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, alternatives, bare, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import CUTS, has_gradient
from probe.diagnose.code.traits.basic import LOSSES, terms
from probe.diagnose.code.traits.held import contents, optimizers, sources
from probe.diagnose.code.traits.updates import backwards, optimizer_of, plain, runs
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()


@FINDERS.add("replaced-after-the-optimizer")
def _loaded_in_its_place(program: Program) -> Iterator[Remark]:
    """A whole network is loaded in the place of the one that the only optimizer was made for."""
    computation = computation_of(program)
    made = optimizers(computation)
    if len({one.node for one in made}) != 1 or any(True for _ in computation.of("add_param_group")):
        return
    optimizer = made[-1]
    held = {id(source.of) for source in sources(optimizer.argument("params", 0)) or []}
    for back, loss in backwards(computation):
        for one in origins(loss, CUTS):
            loaded = next((each for each in alternatives(plain(one.args[0])) if plain(each).op == "load"), None) if one.op == "run" and one.args else None
            if loaded is None or plain(loaded).number < optimizer.number or not held or runs(back) != runs(optimizer):
                continue
            step = next((each for each in computation.of("step") if optimizer_of(each) is optimizer and each.number > back.number), None)
            if step is not None:
                yield Remark(step.node, f"{short(step.node)} steps the network that {short(optimizer.node)} (line {optimizer.line}) was given, and line {plain(loaded).line} puts another one in its place, which nothing steps")
                return


def layers_of_its_teacher(program: Program) -> Iterator[Remark]:
    """A network is made of layers of another one, which was trained before, and is trained towards what that one gives."""
    computation = computation_of(program)
    made = [(one, roots) for one in optimizers(computation) if (found := sources(one.argument("params", 0))) and (roots := [source.of for source in found if not source.chosen])]
    inside = {id(root): {id(part): part for part in contents(root, computation) if has_parameters(part)} for _, roots in made for root in roots}
    for optimizer, roots in made:
        for other, elders in made:
            for root in roots:
                for elder in elders:
                    shared = [part for key, part in inside[id(root)].items() if key in inside[id(elder)]]
                    own = set(inside[id(root)]) - set(inside[id(elder)])
                    if root is elder or other is optimizer or not shared or not own or not set(inside[id(elder)]) - set(inside[id(root)]) or other.number > optimizer.number:
                        continue
                    term = _taught(computation, set(inside[id(root)]), set(inside[id(elder)]), own)
                    if term is not None:
                        yield Remark(optimizer.node, f"{short(optimizer.node)} also steps {short(shared[0].node)} (line {shared[0].line}), a layer of the network whose outputs line {term.line} takes for targets: the targets move with each step")
                        return


_MEASURED = ("size", "shape", "len", "numel", "randperm")
"""A number or an order of rows is no output of the network that gave the rows."""


def _taught(computation: Computation, pupil: set[int], teacher: set[int], own: set[int]) -> Value | None:
    """The loss that compares what one network gives with what another one gives without a gradient."""
    for _, loss in backwards(computation):
        for term, _ in terms(loss):
            if term.op not in LOSSES or len(term.args) < 2:
                continue
            for learned, given in (term.args[:2], term.args[1::-1]):
                ran = {id(plain(one.args[0])) for one in origins(given, _MEASURED) if one.op == "run" and one.args}
                mine = {id(plain(one.args[0])) for one in origins(learned, _MEASURED) if one.op == "run" and one.args}
                if ran & (teacher - pupil) and mine & own and not has_gradient(given) and has_gradient(learned):
                    return term
    return None


def outputs_of_another_order(program: Program) -> Iterator[Remark]:
    """Outputs for a loader that shuffles are kept in its order, and read beside the batches of another pass over it."""
    for _, loss in backwards(computation_of(program)):
        for term, _ in terms(loss):
            if term.op not in LOSSES or len(term.args) < 2:
                continue
            for learned, kept in (term.args[:2], term.args[1::-1]):
                place = next((one for one in origins(kept, ("run",)) if one.op == "part" and len(one.args) == 2 and bare(one.args[0]).op in ("cat", "list", "concatenate", "vstack") and one.where.loops), None)
                if place is None or not _counts(place.args[1]):
                    continue
                before = _loaders(bare(place.args[0]))
                again = next((one for one in _loaders(learned) if any(one is each for each in before)), None)
                sampled = again is not None and constant(again.argument("shuffle", 2)) is True
                if again is not None and sampled and not any(one.op == "rows" for one in origins(place.args[1], ("len", "size", "shape"))):
                    yield Remark(place.node, f"{short(place.node)} is an output that was kept in the order of an earlier pass, and {short(again.node)} (line {again.line}) shuffles: it belongs to another sample")
                    return


def _counts(index: Value) -> bool:
    """Whether an index goes on from batch to batch."""
    return any(one.op in ("index", "count", "len", "add") for one in (index, *index.made_of()))


def _loaders(value: Value) -> list[Value]:
    """The loaders whose batches a value is made of."""
    return [one.named["loader"] for one in origins(value) if one.op == "rows" and "loader" in one.named]


_BY_ELEMENT = ("softmax", "log_softmax", "div", "mul", "detach", "to", "float", "sigmoid", "logsigmoid", "exp", "log", "clamp", "normalize")
_COMPARED = ("kl_div", "mse_loss", "cross_entropy", "l1_loss", "smooth_l1_loss", "cosine_embedding_loss", "binary_cross_entropy_with_logits", "sub")


@FINDERS.add("outputs-of-another-order")
def _of_another_pass(program: Program) -> Iterator[Remark]:
    """What a network gave for the batches of one pass of a shuffling loader is compared, batch by batch, with those of another
    pass."""
    computation = computation_of(program)
    for value in computation.of(*_COMPARED):
        lines = [line for one in value.args[:2] for line in (_line_to_run(one),) if line]
        if len(lines) != 2 or not value.where.loops:
            continue
        for line, other in (lines, lines[::-1]):
            kept, fresh = line[-1], other[-1]
            loaders = [next((one.named["loader"] for one in origins(run, stop=("rows",)) if one.op == "rows" and "loader" in one.named), None) for run in (kept, fresh)]
            apart = kept.where.loops and fresh.where.loops and kept.where.loops[-1] is not fresh.where.loops[-1]
            listed = next((user for one in line for user in computation.users(one) if user.op == "append"), None)
            if listed is None or not apart or loaders[0] is None or loaders[0] is not loaders[1] or constant(loaders[0].argument("shuffle", 2)) is not True:
                continue
            yield Remark(value.node, f"{short(value.node)} compares batch by batch with what {short(listed.node)} (line {listed.line}) has kept of another pass over {short(loaders[0].node)}, which shuffles: the two are of different samples")
            return


def _line_to_run(value: Value) -> list[Value]:
    """A value and what it was before, element by element, back to the call of a network; empty where there is none."""
    line = [value]
    for _ in range(10):
        if line[-1].op == "run":
            return line
        if line[-1].op not in _BY_ELEMENT or not line[-1].args:
            return []
        line.append(line[-1].args[0])
    return []
