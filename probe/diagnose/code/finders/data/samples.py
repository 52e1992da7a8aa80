"""Samples on their way into a network: the numbers, colours and axes of pictures, and what is drawn for each. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
    Many,
    Value,
    alternatives,
    bare,
    comes_from,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, is_name, short
from probe.diagnose.code.traits.basic import LOSSES, losses
from probe.diagnose.code.traits.pictures import (
    applied,
    by_network,
    is_bytes,
    is_colours_last,
    is_scaled_to_one,
    red_first,
    untouched,
    whole_numbers,
)

FINDERS = Finders()
_MEANS = (0.485, 0.456, 0.406)
_DEVIATIONS = (0.229, 0.224, 0.225)
_INTEGERS = ("randint", "randrange")


@FINDERS.add("scaled-twice")
def _scaled_twice(program: Program) -> Iterator[Remark]:
    """What was brought to 0…1 is divided by 255 once more."""
    for value in computation_of(program).of("div"):
        if len(value.args) < 2 or number(value.args[1]) not in (255.0, 256.0, 127.5):
            continue
        scaled = untouched(value.args[0])
        asked = any(one is scaled for test, _ in value.where.under for one in origins(test))
        if is_scaled_to_one(scaled) and not asked:
            yield Remark(value.node, f"{short(value.node)} divides what {short(scaled.node)} (line {scaled.line}) has brought to 0…1 already")


@FINDERS.add("classes-scaled-away")
def _classes_scaled_away(program: Program) -> Iterator[Remark]:
    """A mask of several classes is brought to 0…1 and made whole: all classes are 0."""
    for loss in computation_of(program).of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or not whole_numbers(loss.args[1]):
            continue
        scaled = untouched(loss.args[1])
        if is_scaled_to_one(scaled) and _has_many_classes(loss):
            yield Remark(loss.args[1].node, f"{short(loss.args[1].node)} makes numbers whole that {short(scaled.node)} (line {scaled.line}) has divided by 255: of the classes only 0 is left")


def _has_many_classes(loss: Value) -> bool:
    """Whether a loss has more than two classes, or a class 255 to leave out."""
    if number(loss.named.get("ignore_index")) == 255:
        return True
    for one in origins(loss.args[0]):
        size = number(one.named.get("num_classes") or one.named.get("num_labels") or one.named.get("out_channels"))
        if size is not None and size > 2:
            return True
    last = bare(loss.args[0])
    made = last.args[0] if last.op == "run" and last.args else None
    size = number(made.argument("out_features", 1)) if made is not None and made.op in ("torch.nn.Linear", "torch.nn.Conv2d") else None
    return size is not None and size > 2


@FINDERS.add("reshaped-for-turned")
def _reshaped_for_turned(program: Program) -> Iterator[Remark]:
    """Rows of pixels with their colours behind are counted anew, as if the colours stood in front."""
    for value in computation_of(program).of("reshape", "view"):
        sizes = [number(one) for one in _sizes(value)]
        in_front = len(sizes) == 3 and sizes[0] in (3.0, 4.0) and sizes[2] != sizes[0]
        in_rows = len(sizes) == 4 and sizes[1] in (3.0, 4.0) and sizes[3] != sizes[1]
        if (in_front or in_rows) and (source := is_colours_last(value.args[0])) is not None:
            yield Remark(value.node, f"{short(value.node)} counts the numbers of {short(source.node)} (line {source.line}) anew: its colours lie behind, and are not brought to the front")


def _sizes(value: Value) -> list[Value]:
    given = value.args[1:]
    return list(given[0].parts) if len(given) == 1 and isinstance(given[0], Many) else list(given)


@FINDERS.add("blue-for-red")
def _blue_for_red(program: Program) -> Iterator[Remark]:
    """A picture that OpenCV has read as blue, green, red is taken for red, green, blue."""
    for value in computation_of(program).of("PIL.Image.fromarray", "sub", "run", "torchvision.transforms.functional.normalize"):
        taken = value.args[0] if value.args else None
        name = applied(value)
        if name in ("Normalize", "normalize"):
            given = value.args[0].argument("mean", 0) if value.op == "run" else value.argument("mean", 1)
            taken = value.args[-1] if value.op == "run" else taken
            right = given is not None and _numbers(given) == _MEANS
        else:
            right = value.op == "PIL.Image.fromarray" or (value.op == "sub" and len(value.args) == 2 and _numbers(value.args[1]) == _MEANS)
        if right and taken is not None and (read := red_first(taken)) is not None:
            yield Remark(read.node, f"{short(read.node)} gives blue, green, red, and {short(value.node)} (line {value.line}) takes red, green, blue")


def _numbers(value: Value) -> tuple[float, ...]:
    """The numbers in a list, a tuple or an array of them."""
    while value.args and not isinstance(value, Many) and value.op in ("tensor", "array", "asarray", "as_tensor", "view", "reshape", "FloatTensor", "to", "float32", "unsqueeze", "part"):
        value = value.args[0]
    parts = [number(one) for one in value.parts] if isinstance(value, Many) else []
    return tuple(one for one in parts if one is not None)


@FINDERS.add("bytes-wrap-around")
def _wraps_around(program: Program) -> Iterator[Remark]:
    """Whole numbers are added to bytes, or bytes subtracted from bytes."""
    for value in computation_of(program).of("add", "sub"):
        if len(value.args) != 2 or value.named:
            continue
        left, right = value.args
        if value.op == "sub" and is_bytes(left) and is_bytes(right) and left is not right:
            yield Remark(value.node, f"{short(value.node)} is computed in unsigned 8-bit numbers: what is below 0 wraps around to 255")
        elif is_bytes(left) and _is_whole(right):
            yield Remark(value.node, f"{short(value.node)} is computed in unsigned 8-bit numbers: what is above 255 or below 0 wraps around")


def _is_whole(value: Value) -> bool:
    """Whether a value is a whole number of some size, known or drawn."""
    known = constant(value)
    if isinstance(known, int) and not isinstance(known, bool):
        return abs(known) >= 10
    if value.op in ("int", "builtins.int") and value.args:
        return value.args[0].op in (*_INTEGERS, "integers", "uniform", "round", "rint")
    return value.op in _INTEGERS and not isinstance(value.argument("size", 2), Many)


@FINDERS.add("classes-interpolated")
def _interpolated(program: Program) -> Iterator[Remark]:
    """A mask of classes is resized by a mean of neighbours, and read as classes."""
    for loss in computation_of(program).of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or not whole_numbers(loss.args[1]):
            continue
        rounded = False
        for one in _path(loss.args[1]):
            rounded = rounded or one.op in _ROUNDS
            if _blends(one) and (not rounded or _has_many_classes(loss)):  # of two classes, rounding gives the nearer one
                yield Remark(one.node, f"{short(one.node)} averages the class numbers of neighbours, and {short(loss.node)} (line {loss.line}) takes the result for classes")
                break


def _path(value: Value) -> Iterator[Value]:
    """What a mask was before: the values along which its numbers are kept, moved or shifted."""
    for _ in range(60):
        yield value
        if applied(value) is not None and value.op == "run":
            value = value.args[-1]
        elif value.args and (value.op in _PASSES or bare(value) is not value or applied(value) is not None):
            value = value.args[0]
            if isinstance(value, Many) and value.parts:
                value = value.parts[0]
        else:
            return


_ROUNDS = ("round", "rint")
_PASSES = frozenset({"part", "sub", "add", "transpose", "permute", "flip", "cv2.resize", "interpolate", "cv2.flip", "element", "fliplr", "flipud", "adaptive_avg_pool2d", "avg_pool2d", *_ROUNDS})


def _blends(value: Value) -> bool:
    """Whether a value is resized by means of neighbours; what PIL resizes may be a palette, which it never blends."""
    if value.op == "cv2.resize":
        given = value.argument("interpolation", 4)
        return given is None or (given.op == "@library" and str(given.data).rpartition(".")[2] in ("INTER_LINEAR", "INTER_CUBIC", "INTER_AREA"))
    if value.op in ("adaptive_avg_pool2d", "avg_pool2d"):
        return True
    if value.op == "interpolate":
        return constant(value.argument("mode", 3)) in ("bilinear", "bicubic", "area")
    if value.op == "grid_sample":
        return is_none(value.argument("mode", 2)) or constant(value.argument("mode", 2)) in ("bilinear", "bicubic")
    if value.op in ("scipy.ndimage.zoom", "scipy.ndimage.rotate"):
        order = value.named.get("order")
        return len(value.args) < 3 and (order is None or (number(order) or 0) > 0)
    if applied(value) not in ("Resize", "resize", "RandomResizedCrop", "resized_crop"):
        return False
    settings, given = (value.args[0], value.args[-1]) if value.op == "run" else (value, value.args[0])
    way = settings.argument("interpolation", 1 if value.op == "run" else 2)
    smooth = way is None or (way.op == "@library" and str(way.data).rpartition(".")[2] in ("BILINEAR", "BICUBIC"))
    kept = bare(given)
    return smooth and any(one.op in ("from_numpy", "tensor", "as_tensor") for one in _path(given)) and kept.op != "one_hot"


@FINDERS.add("normalized-by-wrong-constants")
def _wrong_constants(program: Program) -> Iterator[Remark]:
    """Mean and deviation are in each other's place, or those of numbers up to 255 meet numbers up to 1."""
    computation = computation_of(program)
    for value in computation.of("div"):
        centred = bare(value.args[0], shapes=False)
        if len(value.args) == 2 and centred.op == "sub" and len(centred.args) == 2:
            taken, by = _numbers(centred.args[1]), _numbers(value.args[1])
            if taken == _DEVIATIONS and by == _MEANS:
                yield Remark(value.node, f"{short(value.node)} subtracts the deviations of the colours and divides by their means")
            elif len(taken) == 3 and min(taken) > 60 and is_scaled_to_one(untouched(centred.args[0])):
                yield Remark(value.node, f"{short(value.node)} takes means of numbers up to 255, and its input lies in 0…1")
    for value in computation.of("run"):
        if applied(value) != "Normalize":
            continue
        mean, deviation = value.args[0].argument("mean", 0), value.args[0].argument("std", 1)
        if mean is None or deviation is None:
            continue
        if _numbers(mean) == _DEVIATIONS and _numbers(deviation) == _MEANS:
            yield Remark(mean.node, f"{short(value.args[0].node)} has mean and deviation in each other's place")
        elif len(_numbers(mean)) == 3 and min(_numbers(mean)) > 60 and is_scaled_to_one(untouched(value.args[-1])):
            yield Remark(value.args[0].node, f"{short(value.args[0].node)} takes means of numbers up to 255, and its input lies in 0…1")


# What is drawn for a sample ------------------------------------------------------------

_MOVING = ("RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotation", "RandomAffine", "RandomResizedCrop", "RandomPerspective", "ElasticTransform")
_CHANGING = (*_MOVING, "ColorJitter", "RandAugment", "TrivialAugmentWide", "AutoAugment", "AugMix", "RandomErasing", "RandomGrayscale")
_SEEDING = frozenset({"manual_seed", "set_rng_state", "seed", "setstate", "seed_everything", "torch.random.set_rng_state"})
_PLACES = frozenset({"randint", "integers", "randrange", "rand", "random", "uniform", "RandomState"})
_STORED = frozenset({"load", "tensor", "as_tensor", "from_numpy", "array", "asarray", "stack", "cat", "astype", "randn", "rand", "zeros", "float", "to"})
_VIEWS = frozenset({"part", "from_numpy", "transpose", "permute", "view", "unsqueeze", "squeeze", "T", "mul", "add", "set_item"})


def _pairs(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Each loss with what it compares: what a network gives, and a target that no network gives."""
    for loss in computation.of(*LOSSES):
        if len(loss.args) > 1 and not loss.where.no_grad:
            given, target = loss.args[:2]
            if by_network(given) and not by_network(target):
                yield loss, given, target


def _random(value: Value, names: tuple[str, ...]) -> bool:
    return applied(value) in names and value.op == "run"


@FINDERS.add("augmented-apart")
def _augmented_apart(program: Program) -> Iterator[Remark]:
    """The input and its target are moved by the same code, and each by a draw of its own."""
    computation = computation_of(program)
    if any(one.where.loops for one in computation.of(*_SEEDING)):
        return  # both are drawn from one seed
    said: set[ast.AST] = set()
    for _, given, target in _pairs(computation):
        inputs, targets = list(origins(given)), list(origins(target))
        known = {id(one) for one in inputs}
        for one in targets:
            if id(one) in known or not _moves(computation, one):
                continue
            other = next((each for each in inputs if _same_draw(each, one) and not any(part is each for part in targets)), None)
            if other is not None and other.node not in said and _sources(other) != _sources(one):
                said.add(other.node)
                yield Remark(one.node, f"{short(one.node)} is drawn once for the input and once more for its target: the target is moved in another way than its input")
                break


_FLIPS = ("flip", "fliplr", "flipud", "rot90")


def _moves(computation: Computation, value: Value) -> bool:
    """Whether a value is moved at random, or is a draw that says which part is taken."""
    if _random(value, _MOVING) or (value.op in _FLIPS and _drawn_tests(value)):
        return True
    return value.op in _PLACES and any(user.op in ("slice", "int", "add", "roll") for user in computation.users(value))


def _same_draw(one: Value, other: Value) -> bool:
    """Whether two values are draws by the same code, one after the other."""
    if one.op != other.op or _statements(one) != _statements(other):
        return False
    if one.op in _FLIPS and _drawn_tests(one) & _drawn_tests(other):
        return False
    return one.args[0] is other.args[0] if one.op == "run" else one.node is other.node and one is not other


def _statements(value: Value) -> list[ast.AST]:
    """The loops around a value, without comprehensions."""
    return [one for one in value.where.loops if isinstance(one, ast.stmt)]


def _drawn_tests(value: Value) -> set[int]:
    """The conditions that a value is computed under and that are drawn at random."""
    return {id(test) for test, _ in value.where.under if any(one.op in DRAWN for one in origins(test))}


def _sources(value: Value) -> set[int]:
    """What a moved picture was before; of a draw, itself."""
    return {id(bare(value.args[-1]))} if value.op == "run" else {id(value)}


@FINDERS.add("flipped-along-another-axis")
def _flipped_apart(program: Program) -> Iterator[Remark]:
    """Of two pictures, one is flipped along its width and the other along its height, under one condition."""
    flips = [(one, side) for one in computation_of(program).values if one.args and one.where.under and (side := _side(one)) is not None]
    said: set[ast.AST] = set()
    for flip, side in flips:
        beside = [(one, at) for one, at in flips if one is not flip and _tests(one) == _tests(flip) and one.where.functions == flip.where.functions]
        if len(beside) != 1 or beside[0][1] == side or beside[0][0].number < flip.number or flip.node in said:
            continue
        other = beside[0][0]
        if not comes_from(other, flip) and not same(bare(other.args[-1]), bare(flip.args[-1])):
            said.add(flip.node)
            yield Remark(other.node, f"{short(other.node)} beside {short(flip.node)}: the two are flipped along different axes")


def _tests(value: Value) -> tuple[tuple[int, bool], ...]:
    return tuple((id(test), holds) for test, holds in value.where.under)


def _side(value: Value) -> str | None:
    """The side along which a picture of rows and columns is flipped."""
    name = applied(value) or value.op
    return {"fliplr": "width", "hflip": "width", "flipud": "height", "vflip": "height"}.get(name)


@FINDERS.add("augmentation-cached")
def _cached(program: Program) -> Iterator[Remark]:
    """A random change of a training sample is computed once: where the data are read, or in a function that keeps its results."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for _, given, _target in _pairs(computation):
        for one in origins(given):
            if one.node in said:
                continue
            keeper = next((each for each in one.where.functions if _keeps_results(each)), None)
            fetched = any(getattr(each, "name", "") == "__getitem__" for each in one.where.functions)
            if keeper is not None and fetched and (_random(one, _CHANGING) or (one.op in _PLACES and one.args)):
                said.add(one.node)
                yield Remark(one.node, f"{short(one.node)} is drawn in {getattr(keeper, 'name', 'a function')}, which keeps what it has given: each sample has one random change for the whole training")
            elif _random(one, _CHANGING) and _while_made(one):
                said.add(one.node)
                yield Remark(one.node, f"{short(one.node)} draws while the data are read, once: each sample has one random change for the whole training")


def _keeps_results(function: ast.AST) -> bool:
    marks = function.decorator_list if isinstance(function, Function) else []
    return any(ast.unparse(one).split("(")[0].rpartition(".")[2] in ("lru_cache", "cache", "memoize") for one in marks)


def _while_made(value: Value) -> bool:
    """Whether a value is computed as a data set is made, in a loop over all samples."""
    return any(getattr(one, "name", "") == "__init__" for one in value.where.functions) and bool(value.where.loops)


@FINDERS.add("sample-changed-in-place")
def _changed_in_place(program: Program) -> Iterator[Remark]:
    """A sample is changed where it is stored, each time that it is drawn."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("set_item", "mul", "add", "sub", "div"):
        drawn = any(getattr(one, "name", "") == "__getitem__" for one in value.where.functions)
        shared = any(getattr(one, "name", "") == "__call__" for one in value.where.functions)
        if (drawn and shared) or not value.where.functions or value.node in said or not value.args or (value.where.under and not _asks_option(value)):
            continue
        in_place = value.op == "set_item" or isinstance(value.node, ast.AugAssign) or (isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) and value.node.func.attr == f"{value.op}_")
        random = any(one.op in DRAWN for part in (*value.args[1:], *value.named.values()) for one in origins(part))
        stored = _stored(value.args[0]) if in_place else None
        again = random or (value.op != "set_item" and stored is not None and _is_window(stored.args[1]))
        if stored is not None and again and (drawn or (stored.args[1].op == "index" and not stored.args[1].args)):
            said.add(value.node)
            what = "a sample" if isinstance(stored.node, ast.Tuple) else f"{short(stored.node)} (line {stored.line})"
            yield Remark(value.node, f"{short(value.node)} changes {what} where it is stored: the sample is changed once more each time it is drawn")


def _asks_option(value: Value) -> bool:
    return all(bare(test).op in ("@input", "lt", "gt", "random", "part") for test, _ in value.where.under)


def _stored(value: Value) -> Value | None:
    """The sample of a store that a value is or shares its numbers with; None where it is a copy."""
    for _ in range(40):
        if value.op == "part" and (value.args[1].op in ("index", "@input") or _is_window(value.args[1])) and not any(getattr(one, "name", "") in ("__getitem__", "__iter__") for one in value.args[0].where.functions):
            return value if any(_is_array(one) for one in alternatives(value.args[0])) else None
        if value.op == "either" or (value.op in _VIEWS and value.args):
            value = value.args[0]
        else:
            return None
    return None


def _is_window(index: Value) -> bool:
    """Whether an index takes places that begin at the number of a sample: two windows may have places in common."""
    *before, last = index.parts if isinstance(index, Many) and index.parts else [index]
    begin = last.args[0] if last.op == "slice" else last
    return last.op == "slice" and begin.op in ("index", "@input", "mul") and any(one.op in ("index", "@input") for one in origins(begin)) and all(one.op in ("index", "@input", "@constant") for one in before)


def _is_array(value: Value) -> bool:
    """Whether a value is an array or tensor in memory, made where the data set is."""
    return value.op in (*_STORED, "normal", "uniform", "set_item", "clamp") or (value.op == "part" and value.args[0].op == "load" and value.args[1].op == "@constant")


_NO_VIEWS = frozenset({"len", "int", "float", "str", "numel", "size", "@constant"})  # one number however often repeated


@FINDERS.add("one-object-twice")
def _one_object(program: Program) -> Iterator[Remark]:
    """Two random views are one value under two names."""
    computation = computation_of(program)
    for value in computation.of("list", "tuple"):
        node = value.node
        if isinstance(node, ast.BinOp) and isinstance(value, Many) and isinstance(node.op, ast.Mult):
            row = node.left if isinstance(node.left, (ast.List, ast.Tuple)) else node.right
            if isinstance(row, (ast.List, ast.Tuple)) and len(row.elts) == 1 and isinstance(row.elts[0], ast.Call) and value.parts and value.parts[0].op not in DRAWN | _NO_VIEWS and _is_view(value.parts[0]):
                yield Remark(node, f"{short(node)} calls {short(row.elts[0].func)} once: all its elements are the same random view")
    for given in program.everywhere(ast.Assign):
        names = [one.id for one in given.targets if isinstance(one, ast.Name)]
        if len(names) == 2 == len(given.targets) and isinstance(given.value, ast.Call) and _go_the_same_way(program, given, names):
            view = next((one for one in computation.values if one.where.functions[-1:] != () and program.function_of(given) in one.where.functions and _is_drawn_by(program, given.value, one)), None)
            if view is not None:
                yield Remark(given, f"{short(given.value)} is called once, and draws (line {view.line}): {names[0]} and {names[1]} are the same object")


def _is_drawn_by(program: Program, call: ast.Call, value: Value) -> bool:
    function = program.local_function(call)
    return function is not None and function in value.where.functions and value.op in DRAWN


def _go_the_same_way(program: Program, given: ast.Assign, names: list[str]) -> bool:
    """Whether two names are each given to the same function, alone, and are never set anew."""
    around = program.frame(given)
    taken: dict[str, set[str]] = {name: set() for name in names}
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and node.args and is_name(node.args[0], *names):
            assert isinstance(node.args[0], ast.Name)
            taken[node.args[0].id].add(ast.unparse(node.func))
    sets = [one for one in ast.walk(around) if isinstance(one, ast.Name) and one.id in names and isinstance(one.ctx, ast.Store)]
    return len(sets) == 2 and bool(taken[names[0]] & taken[names[1]])


def _is_view(value: Value) -> bool:
    return any(_random(one, _CHANGING) or one.op in DRAWN - {"dropout", "next"} for one in origins(value, ("shape", "size", "device", "dtype", "torch.nn.Parameter")))


@FINDERS.add("seeded-in-each-draw")
def _seeded(program: Program) -> Iterator[Remark]:
    """A draw of the training is made by a generator that each step or sample makes anew from one seed."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    said: set[ast.AST] = set()
    for value in computation.values:
        maker = value.named.get("generator") or (value.args[0] if value.args and value.op not in ("manual_seed", "list", "tuple", "seed") else None)
        if maker is None or maker.node in said or not _is_seeded(maker) or maker.where.loops != value.where.loops or value.where.no_grad:
            continue
        if any(user.op == "matmul" for user in computation.users(value)):
            continue
        in_sample = any(getattr(one, "name", "") == "__getitem__" for one in maker.where.functions)
        each_time = any(len(one.where.loops) > 0 and maker.where.loops[: len(one.where.loops)] == one.where.loops for one in computation.of("backward"))
        in_step = id(value) in learned and each_time and len(maker.where.functions) > 1
        if (in_sample and not maker.where.under) or in_step:
            said.add(maker.node)
            yield Remark(maker.node, f"{short(maker.node)} makes the generator anew for each {'sample' if in_sample else 'step'}, always from the same seed: all get the same random numbers")


def _is_seeded(value: Value) -> bool:
    """Whether a value is a generator that is made of a seed that stays the same."""
    seed: Value | None = None
    if value.op == "manual_seed" and len(value.args) == 2 and value.args[0].op == "Generator":
        seed = value.args[1]
        if value.args[0].where.loops != value.where.loops:
            return False
    elif value.op in ("random.Random", "Random", "default_rng", "RandomState") and len(value.args) == 1:
        seed = value.args[0]
    if seed is None or is_varying(seed):
        return False
    return isinstance(constant(seed), int) or seed.op == "@input"


def is_varying(seed: Value) -> bool:
    """Whether a seed may be another one for each sample or step."""
    if seed.op == "@input":
        own = [getattr(one, "name", "") for one in seed.where.functions]
        return "__init__" not in own and bool(own)
    return seed.op != "@constant"


@FINDERS.add("target-of-nothing")
def _of_nothing(program: Program) -> Iterator[Remark]:
    """The target of a network's loss is drawn at random, and is in none of its inputs."""
    computation = computation_of(program)
    differences = ((one, first, second) for one in computation.of("sub") if len(one.args) == 2 and any(user.op in ("square", "abs", "pow") for user in computation.users(one)) for first, second in (one.args, one.args[::-1]) if by_network(first))
    for loss, given, target in (*_pairs(computation), *differences):
        drawn = bare(target)
        if loss.op not in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub") or drawn.op not in ("randn", "randn_like", "normal", "rand", "rand_like"):
            continue
        if all(one.op == "@constant" for part in drawn.args for one in (part.parts if isinstance(part, Many) else [part])):
            continue
        inputs = list(origins(given))
        another = any(one.op in ("randn", "randn_like", "normal") and one.where.loops == drawn.where.loops for one in inputs)
        if another and not any(one is drawn for one in inputs) and drawn.where.loops == loss.where.loops:
            yield Remark(drawn.node, f"{short(drawn.node)} is drawn at random, and only {short(loss.node)} reads it: it is in no input")
