"""What is seen of samples along a ray, of pictures below 0, and of a picture that is moved by pixels. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, product, sides
from probe.diagnose.code.traits.basic import without_small


def behind_itself(program: Program) -> Iterator[Remark]:
    """A sample of a ray is weighted by the light that is left behind it, and not by what comes to it."""
    said: set[int] = set()
    for value in computation_of(program).of("mul"):
        for opacity, light in sides(value):
            through = bare(light)
            if value.line in said or (complement_of(opacity) is None and not _is_opacity(opacity)):
                continue
            passed = without_small(through.args[0]) if through.op == "cumprod" and through.args else None
            shares = complement_of(opacity)
            left = complement_of(passed) if passed is not None else None
            held = shares is not None and _is_of_the_sum(through, bare(shares))
            if held or (passed is not None and ((left is not None and same(bare(left), bare(opacity))) or (shares is not None and same(bare(shares), passed)))):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)}: {short(through.node)} (line {through.line}) holds the sample's own factor too, so each sample is weighted by the light behind it, and not by the light that comes to it")


def _is_of_the_sum(through: Value, own: Value) -> bool:
    """Whether a value is exp(-cumsum(x)), and the other one exp(-x)."""
    if through.op != "exp" or own.op != "exp" or not through.args or not own.args:
        return False
    whole, single = product(through.args[0]), product(own.args[0])
    summed = bare(whole.above[0]) if len(whole.above) == 1 and not whole.below else through
    if summed.op != "cumsum" or not summed.args:
        return False
    inner = product(summed.args[0])
    alike = len(inner.above) == len(single.above) and all(any(same(bare(one), bare(other)) for other in single.above) for one in inner.above)
    return alike and not inner.below and not single.below and whole.sign * inner.sign == single.sign == -1


def _is_opacity(value: Value) -> bool:
    value = bare(value)
    return any(one.op in ("exp", "sigmoid") for one in origins(value, stop=("run",)))


def shown_below_zero(program: Program) -> Iterator[Remark]:
    """A picture of values from -1 to 1 is saved by what cuts off all that is below 0."""
    said: set[int] = set()
    for value in computation_of(program).of("torchvision.utils.save_image"):
        normalize = value.argument("normalize")
        shown = value.args[0] if value.args else None
        if shown is None or value.line in said or (normalize is not None and constant(normalize) is not False):
            continue
        for _ in range(8):
            inner = bare(shown, "part", "repeat")
            if inner.op == "torchvision.utils.make_grid" and inner.args and not (inner.argument("normalize") is not None and constant(inner.argument("normalize")) is not False):
                inner = inner.args[0]
            elif inner.op == "cat" and inner.args and isinstance(inner.args[0], Many) and inner.args[0].parts:
                inner = inner.args[0].parts[0]
            if inner is shown:
                break
            shown = inner
        if shown.op == "tanh":
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} cuts off what is below 0, and {short(value.args[0].node)} is what a tanh gives (line {shown.line}), from -1 to 1")


def counted_in_pixels(program: Program) -> Iterator[Remark]:
    """grid_sample reads places from -1 to 1, and is given places that are counted in pixels."""
    said: set[int] = set()
    for value in computation_of(program).of("grid_sample"):
        grid = value.argument("grid", 1)
        made = list(origins(grid, stop=("run", "shape", "size", "meshgrid"))) if grid is not None else []
        if value.line in said or any(one.op in ("mul", "div", "linspace", "affine_grid", "unknown", "matmul", "either", "tanh", "sigmoid", "floordiv", "mean", "max", "set_item", "clamp", "lerp", "sub", "einsum") for one in made):
            continue
        meshes = [one for one in made if one.op == "meshgrid"]
        axes = [bare(part) for one in meshes for given in one.args for part in (given.parts if isinstance(given, Many) else [given])]
        if len(axes) == 2 and all(one.op == "arange" and _counts_pixels(one) for one in axes):
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} takes places from -1 to 1, and {short(meshes[0].node)} (line {meshes[0].line}) counts pixels: nearly all of them are outside")


def _counts_pixels(axis: Value) -> bool:
    """Whether a row of numbers has one for each pixel along an axis."""
    if len(axis.args) not in (1, 2) or (len(axis.args) == 2 and number(axis.args[0]) != 0):
        return False
    length = bare(axis.args[-1])
    return (length.op == "part" and length.args[0].op in ("shape", "size", "part")) or (length.op == "size" and len(length.args) == 2)


_ORDERS = ("argsort", "randperm", "permutation")


def _axis_of(taken: Value) -> float | None:
    """The axis along which an order takes parts: 1 for `x[:, order]` and `x.index_select(1, order)`."""
    if taken.op != "part":
        return number(taken.argument("dim", 1))
    index = taken.args[-1]
    places = [place for place, one in enumerate(index.parts) if _order(one) is not None] if isinstance(index, Many) else []
    return float(places[0]) if places else 0.0


def put_in_order_twice(program: Program) -> Iterator[Remark]:
    """Rows that were put into an order are put into it once more, where they should get their first places back."""
    computation = computation_of(program)
    said: set[int] = set()
    taken: dict[int, list[Value]] = {}
    for value in computation.of("gather", "part", "index_select", "take_along_dim"):
        order = _order(value.args[-1]) if len(value.args) > 1 else None
        if order is not None:
            taken.setdefault(id(order[0]), []).append(value)
    for again in (one for uses in taken.values() for one in uses):
        order = _order(again.args[-1])
        if order is None or not order[1] or again.line in said:
            continue
        base = again.args[0]
        made = list(origins(base, stop=(*_ORDERS, "sort", "set_item")))  # what is written at places is no row of these
        first = next((one for one in taken[id(order[0])] if one is not again and _axis_of(one) == _axis_of(again) and any(part is one for part in made)), None)
        through = any(one.op == "run" for one in origins(base, without=[first])) if first is not None else False
        joined = any(one.op == "cat" for one in made)
        if first is not None and (joined or through):
            said.add(again.line)
            yield Remark(again.node, f"{short(again.node)} takes rows by {short(order[0].node)} (line {order[0].line}), by which line {first.line} has put them in order already: their first places are those that the argsort of it gives")


def _order(index: Value) -> tuple[Value, bool] | None:
    """The order that an index is, and whether it is the whole of it."""
    whole = True
    for _ in range(8):
        index = bare(index, "repeat", "expand")
        if isinstance(index, Many) and index.op == "tuple":
            known = [one for one in index.parts if one.op not in ("slice", "@constant") and bare(one).op != "arange"]
            if len(known) != 1:
                return None
            index = known[0]
        elif index.op == "part" and len(index.args) == 2 and (index.args[1].op == "slice" or isinstance(index.args[1], Many)):
            cuts = index.args[1].parts if isinstance(index.args[1], Many) else [index.args[1]]
            if not all(one.op == "slice" or (one.op == "@constant" and (one.data is None or one.data is Ellipsis)) for one in cuts):
                return None
            whole = whole and all(one.op != "slice" or all(end.op == "@constant" and end.data is None for end in one.args) for one in cuts)
            index = index.args[0]
        elif index.op in _ORDERS:
            inner = bare(index.args[0]) if index.args else index
            return None if index.op == "argsort" and inner.op in (*_ORDERS, "sort") else (index, whole)
        elif index.op == "part" and index.args[0].op == "sort" and number(index.args[1]) == 1:
            return index, whole
        else:
            return None
    return None
