"""Items that are drawn at random against those that a user has. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends
from probe.diagnose.code.traits.basic import losses, terms

FINDERS = Finders()
_DRAWS = ("randint", "integers", "randint_like")


@FINDERS.add("triplet-reversed")
def _drawn_items_pulled(program: Program) -> Iterator[Remark]:
    """A pairwise loss of two scores falls as the score of an item that was drawn at random rises above that of the other."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for term, factor in terms(loss):
            for one, sign in addends(term):
                value = bare(one)
                rises = sign * (1 if factor is None or factor > 0 else -1)
                if value.op == "log" and value.args and bare(value.args[0]).op == "sigmoid":
                    value = bare(value.args[0])
                elif value.op not in ("softplus", "logsigmoid"):
                    continue
                gap = bare(value.args[0])
                if gap.op == "neg":
                    gap, rises = bare(gap.args[0]), -rises
                if gap.op != "sub" or len(gap.args) != 2:
                    continue
                first, second = (_drawn(part) for part in gap.args)
                if first == second or first is None or second is None:
                    continue
                if (rises > 0) == second:
                    drawn = gap.args[0] if first else gap.args[1]
                    yield Remark(value.node, f"{short(value.node)} falls as {short(drawn.node)} rises above the other score, and its items are drawn at random: they are ranked above those that were chosen")
                    return


def _drawn(score: Value) -> bool | None:
    """Whether the items of a score are drawn at random; None where it looks up no embedding, or all were drawn."""
    given = [bare(one.args[1]) for one in origins(score) if one.op == "run" and len(one.args) == 2 and one.args[0].op == "torch.nn.Embedding"]
    found = [one.op in _DRAWS for one in given]
    return any(found) if found and not all(found) else None
