"""Whether the network whose score was the best is the one that is kept. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, origins
from probe.diagnose.code.finders.losses.followers import mixtures
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.updates import plain

_AVERAGED = "torch.optim.swa_utils.AveragedModel"


def another_network_kept(program: Program) -> Iterator[Remark]:
    """An average of weights is judged, and where its score is the best one, the weights of the network in training are kept."""
    computation = computation_of(program)
    averages = list(_averages(computation))
    for state in computation.of("state_dict") if averages else ():
        network = plain(state.args[0]) if state.args else state
        for test, holds in state.where.under:
            if test.op not in ("lt", "le", "gt", "ge") or not holds:
                continue
            judged = [(average, source, run) for average, source in averages for side in test.args if (run := _run_of(average, side)) is not None]
            if not judged:
                continue
            average, source, run = judged[0]
            beside = [one for one in computation.of("state_dict") if one.args and any(each is test for each, _ in one.where.under) and plain(one.args[0]) is not network]
            own = any(_run_of(network, side) is not None for side in test.args)
            if network is source and not beside and not own and not any(_is_of(average, one.args[0]) for one in computation.of("save", "deepcopy") if one.args and any(each is test for each, _ in one.where.under)):
                yield Remark(state.node, f"{short(state.node)} keeps the network in training where the score is the best, and the score is that of its average: {short(run.node)} (line {run.line})")
                return


def _averages(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Averages of weights, each with the network that it follows."""
    for one in computation.of(_AVERAGED):
        if one.args:
            yield one, plain(one.args[0])
    seen: set[int] = set()
    for mixture in mixtures(computation):
        others = mixture.others()
        if len(others) == 1 and id(mixture.into) not in seen and mixture.share_of(mixture.into) > 0.5:
            seen.add(id(mixture.into))
            yield plain(mixture.into), plain(others[0])


def _run_of(network: Value, value: Value) -> Value | None:
    """Where a network gives something that a value is made of."""
    layers = {id(plain(one)) for one in layers_of(network)} | {id(network)}
    return next((one for one in origins(value) if one.op == "run" and one.args and id(plain(one.args[0])) in layers), None)


def _is_of(network: Value, value: Value) -> bool:
    """Whether a value is a network, or made of it."""
    return any(one is network or plain(one) is network for one in origins(value, ("run",)))
