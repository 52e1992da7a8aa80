"""What edges carry, where each edge is listed in both directions. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number
from probe.diagnose.code.finders.objectives.edges import both_ways
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short


def attributes_in_another_order(program: Program) -> Iterator[Remark]:
    """All edges are followed by all reversed ones, and what they carry is repeated edge by edge; both meet row by row."""
    computation = computation_of(program)
    for value in computation.of("add", "mul", "cat", "concatenate"):
        parts = value.args[0].parts if value.op in ("cat", "concatenate") and value.args and isinstance(value.args[0], Many) else list(value.args)
        if len(parts) < 2:
            continue
        listed = next((found for one in parts if (found := _ends(one)) is not None), None)
        carried = next((found for one in parts if (found := _repeated(one)) is not None), None)
        if listed is not None and carried is not None:
            yield Remark(carried.node, f"{short(carried.node)} gives each edge its two rows one behind the other, and {short(listed.node)} (line {listed.line}) lists all edges before all reversed ones: {short(value.node, 50)} (line {value.line}) joins an edge with what another one carries")
            return


def _ends(value: Value) -> Value | None:
    """Where edges are listed in both directions, of rows that one end of them takes."""
    for _ in range(12):
        value = bare(value)
        if value.op == "run" and len(value.args) == 2:
            value = value.args[1]
        elif value.op == "part" and len(value.args) == 2:
            index = bare(value.args[1])
            if index.op == "part" and len(index.args) == 2 and constant(index.args[1]) in (0, 1):
                return both_ways(index.args[0]) or both_ways(_joined(index.args[0]))
            value = value.args[0]
        elif value.op in ("relu", "mul") and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _joined(edges: Value) -> Value:
    """Edges of one graph of several that were joined, without a shift."""
    for _ in range(8):
        edges = bare(edges)
        if edges.op in ("cat", "concatenate") and edges.args and isinstance(edges.args[0], Many) and len(edges.args[0].parts) == 1:
            edges = edges.args[0].parts[0]
        elif edges.op == "add" and len(edges.args) == 2 and both_ways(bare(edges.args[0])) is not None:
            edges = edges.args[0]
        elif isinstance(edges, Many) and len(edges.parts) == 1:
            edges = edges.parts[0]
        else:
            break
    return edges


def _repeated(value: Value) -> Value | None:
    """Where each row is repeated once, right behind itself."""
    for _ in range(16):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op == "repeat_interleave" or (value.op == "repeat" and len(value.args) == 2 and _is_of_numpy(value)):
            return value if number(value.argument("repeats", 1)) == 2 else None
        elif value.op == "run" and len(value.args) == 2 and value.args[0].op in ("torch.nn.Embedding", "torch.nn.Linear"):
            value = value.args[1]
        elif value.op in ("cat", "concatenate") and value.args and isinstance(value.args[0], Many) and len(value.args[0].parts) == 1:
            value = value.args[0].parts[0]
        elif value.op == "part" and len(value.args) == 2 and isinstance(value.args[1], Many) and any(one.op == "@constant" and one.data is None for one in value.args[1].parts):
            value = value.args[0]
        else:
            return None
    return None


def _is_of_numpy(value: Value) -> bool:
    """Whether `repeat` is that of numpy, which repeats each number, and not that of a tensor, which repeats the whole."""
    func = getattr(value.node, "func", None)
    return getattr(getattr(func, "value", None), "id", "") in ("np", "numpy")
