"""Arithmetic on bytes: images of unsigned 8-bit numbers, whose sums wrap around past 255. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import loaders_of, sample_of, steps_to
from probe.diagnose.code.flow import DEPTH, Flow, flow_of, place_of
from probe.diagnose.code.program import Binding, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_call,
    is_method,
    is_string,
    iterated,
    last_word,
    names_of,
    names_set,
    number_in,
    operands,
    returned,
    says,
    short,
    text_of,
)

RULES = Rules("data")
_LARGEST = 255
_CUTS = ("clip", "clamp", "clamp_", "minimum")
_SAME_BYTES = (
    "numpy", "copy", "clone", "contiguous", "flip", "fliplr", "flipud", "rot90", "roll", "pad", "stack", "concatenate",
    "cat", "transpose", "permute", "reshape", "view", "squeeze", "unsqueeze", "repeat", "from_numpy", "array", "asarray",
)
"""Functions and methods that give numbers of the type that they are given."""
_TIMES = re.compile(r"(^|[ _.])(times?|timestamps?|ts|stamps?|unix|epoch_s)($|[ _])", re.I)
_CLASSES = re.compile(r"(num|n|number)_?(of_)?_?classes", re.I)
_DRAWS = ("randint", "integers", "choice", "normal", "uniform", "poisson", "random")


@RULES.add("bytes-wrap-around", "bright values become dark ones and the other way round", "compute in a wider type first: x.astype(np.float32), or x.float()")
def _wraps(program: Program) -> Iterator[Remark]:
    """A sum, difference or product of bytes that is cut to 0…255 only afterwards, or whose other side is drawn."""
    if not any("uint8" in source.text or ".byte()" in source.text for source in program.sources):
        return
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Add, ast.Sub, ast.Mult):
            continue
        for one, other in operands(node):
            below = is_binary(node, ast.Sub) and one is node.left and flow.number(other) is None and _is_widened(flow, node)
            if (below or _is_drawn(flow, other) or _is_cut(flow, node)) and _may_wrap(flow, node, one, other) and _is_bytes(flow, one):
                wraps = f"what is below 0 wraps around to {_LARGEST}" if below else f"what passes {_LARGEST} wraps around to 0"
                yield Remark(node, f"{short(node)} is computed in unsigned 8-bit numbers: {wraps}")
                break


def _may_wrap(flow: Flow, node: ast.BinOp, one: ast.expr, other: ast.expr) -> bool:
    """Whether the other side keeps the type, and may take the value out of 0…255."""
    number = flow.number(other)
    if number is None:
        return _is_bytes(flow, other)
    if number != int(number) or isinstance(number_in(flow.value(other)), float):
        return False
    return number > 1 if is_binary(node, ast.Mult) else 0 < number < _LARGEST and not (is_binary(node, ast.Sub) and one is node.right)


def _is_cut(flow: Flow, node: ast.BinOp) -> bool:
    """Whether the result is at once cut to the values of a byte."""
    call = flow.program.parent.get(node)
    if isinstance(call, ast.Attribute):
        call = flow.program.parent.get(call)
    return isinstance(call, ast.Call) and last_word(call.func) in _CUTS and any(
        number_in(one) == _LARGEST for one in [*call.args, *(word.value for word in call.keywords)]
    )


def _is_widened(flow: Flow, node: ast.BinOp) -> bool:
    """Whether a difference is made a floating-point number only afterwards."""
    waiting: list[ast.AST] = [node]
    for use in waiting:
        around = flow.program.parent.get(use)
        if isinstance(around, ast.Assign) and (key := flow.key(around.targets[0])) is not None and len(waiting) < DEPTH:
            waiting += flow.reads.get(key, [])
        elif isinstance(around, ast.List) and last_word(getattr(joined := flow.program.parent.get(around), "func", None)) in ("stack", "cat", "concatenate"):
            waiting += [joined] if joined is not None else []
        if isinstance(around, ast.Attribute) and around.attr in ("float", "double", "astype", "to", "type"):
            return True
        if is_binary(around, ast.Div) and around.left is use:
            return True
    return False


def _is_drawn(flow: Flow, node: ast.AST) -> bool:
    found = flow.value(node)
    return isinstance(found, ast.Call) and any(
        isinstance(one, ast.Call) and last_word(one.func) in _DRAWS for one in ast.walk(found)
    )


def _says_bytes(node: ast.AST | None) -> bool:
    return last_word(node) in ("uint8", "ubyte") or (is_string(node) and node.value == "uint8")


def _is_bytes(flow: Flow, node: ast.AST | None, depth: int = DEPTH) -> bool:
    """Whether an expression is known to be an array or tensor of unsigned 8-bit numbers."""
    if node is None or not depth:
        return False
    program = flow.program
    found = flow.value(node)
    if isinstance(found, ast.Subscript):
        return _is_bytes(flow, found.value, depth - 1)
    if is_binary(found, ast.Add, ast.Sub, ast.Mult):
        return _is_bytes(flow, found.left, depth - 1) and _is_bytes(flow, found.right, depth - 1)
    if isinstance(found, ast.Call):
        if is_method(found, "astype", "to", "type") and found.args:
            return any(map(_says_bytes, found.args))
        if is_method(found, "byte") or (typed := argument(found, "dtype")) is not None:
            return is_method(found, "byte") or _says_bytes(typed)
        local = program.local_function(found)
        if local is not None:
            values = returned(local)
            return bool(values) and all(_is_bytes(flow, one, depth - 1) for one in values)
        if last_word(found.func) in _SAME_BYTES:
            given = found.func.value if is_method(found) and not program.called(found) else next(iter(found.args), None)
            if isinstance(given, ast.ListComp):
                given = given.elt
            return _is_bytes(flow, given, depth - 1)
        return _says_bytes(found.func)
    before = flow.given(found)
    if before is not None:
        return _elements_are_bytes(flow, before, depth - 1)
    around = list(program.parents(found))
    reaching = [one for one in flow.bindings(found) if place_of(one.node) < place_of(found) and one.node not in around]
    given_to = [value for one in reaching for value in flow.arguments(one)]
    return bool(given_to) and all(one.how == "parameter" for one in reaching) and all(_is_bytes(flow, one, depth - 1) for one in given_to)


def _elements_are_bytes(flow: Flow, binding: Binding, depth: int) -> bool:
    """Whether what a loop takes one by one are arrays of bytes."""
    over = binding.node.iter if binding.how == "for" and isinstance(binding.node, (ast.For, ast.comprehension)) else None
    if isinstance(over, (ast.Tuple, ast.List)):
        return bool(over.elts) and all(_is_bytes(flow, one, depth) for one in over.elts)
    for loader in loaders_of(flow, over):
        value = sample_of(flow, loader)
        if isinstance(value, ast.Tuple) and binding.place is not None and binding.place < len(value.elts):
            value = value.elts[binding.place]
        return argument(loader, "collate_fn") is None and _is_bytes(flow, value, depth)
    return over is not None and binding.place is None and _is_bytes(flow, over, depth)


@RULES.add("times-in-float32", "seconds since 1970 are 64 to 128 apart in float32: shorter differences are lost", "take the differences in int64 or float64, and convert them")
def _times(program: Program) -> Iterator[Remark]:
    """Differences of points in time that were made float32 before."""
    flow = flow_of(program)
    epoch = any(isinstance(one.value, (int, float)) and not isinstance(one.value, bool) and 1e9 <= one.value < 1e10 for one in program.everywhere(ast.Constant))
    for node in program.everywhere(ast.Assign) if epoch else ():
        value, target = node.value, node.targets[0]
        if not isinstance(value, ast.Call) or not isinstance(target, ast.Name) or not _to_float32(program, value) or not _TIMES.search(" ".join(names_of(value))):
            continue
        if any(is_binary(one, ast.Sub) for one in flow.origins(value)):
            continue  # counted from a nearer point
        for use in flow.reads.get((program.scope(target), target.id), []):
            around = program.parent.get(use)
            taken = program.parent.get(around) if isinstance(around, ast.Subscript) and around.value is use else around
            if flow.held(use) is not value:
                continue
            if (isinstance(around, ast.Call) and last_word(around.func) in ("diff", "ediff1d")) or is_binary(taken, ast.Sub):
                yield Remark(node, f"{short(node)} rounds the times, and line {getattr(use, 'lineno', 0)} takes their differences")
                break


def _to_float32(program: Program, call: ast.Call) -> bool:
    """Whether a call gives single precision."""
    typed = argument(call, "dtype") or (call.args[0] if is_method(call, "to", "astype", "type") and call.args else None)
    if is_method(call, "float") and not program.called(call):
        return True
    return last_word(typed) in ("float32", "float") or (is_string(typed) and typed.value == "float32")


@RULES.add("blue-for-red", "a network that was trained on red, green and blue gets its input as blue, green and red", "convert what is read: cv2.cvtColor(image, cv2.COLOR_BGR2RGB)")
def _blue_for_red(program: Program) -> Iterator[Remark]:
    """Images that cv2 reads, and that are given to ImageNet's normalization with their colours in the order of cv2."""
    reads = [call for call in program.calls() if program.called(call) == "cv2.imread"]
    if not reads or _turns_colours(program):
        return
    flow = flow_of(program)
    means = [call for call in program.calls() if program.called(call).rpartition(".")[2] in ("Normalize", "normalize") and _of_imagenet(flow, argument(call, "mean", 0) or argument(call, "mean", 1))]
    for call in reads:
        other = _read_otherwise(program, flow, call)
        if other is not None:
            yield Remark(call, f"{short(call)} gives blue, green, red, and line {other.lineno} gives the same transform red, green, blue")
    for call in reads if means and not any(is_method(one, "convert") for one in program.calls()) else ():
        function = program.function_of(call)
        grey = argument(call, "flags", 1)
        shown = function is not None and any(is_method(one, "imwrite", "imshow", "putText", "rectangle", "threshold", "bitwise_and") for one in ast.walk(function))
        returned_by = function is not None and (function.name == "__getitem__" or any(names_of(value) & names_set(program.statement(call)) for value in returned(function) if value is not None))
        if (grey is None or text_of(grey) == "cv2.IMREAD_COLOR") and returned_by and not shown and not says(program.statement(call), "mask", "label"):
            yield Remark(call, f"{short(call)} gives blue, green, red, and {short(means[0])} (line {means[0].lineno}) takes red, green, blue")


def _read_otherwise(program: Program, flow: Flow, call: ast.Call) -> ast.Call | None:
    """Where a transform that is given what cv2 reads is given what PIL reads."""
    used = [one for one in program.calls() if one.args and call in flow.origins(one.args[0])]
    for one in used:
        for other in program.calls():
            if other is not one and other.args and text_of(other.func) == text_of(one.func) and any(program.called(part) == "PIL.Image.open" for part in flow.origins(other.args[0])):
                return other
    return None


def _turns_colours(program: Program) -> bool:
    """Whether a program turns the colours of images round anywhere."""
    if any(is_method(one, "cvtColor", "flip", "split", "convert_color") or is_call(one, "cvtColor") for one in program.calls()):
        return True
    for one in program.everywhere(ast.Subscript):
        for part in ast.walk(one.slice):
            if (isinstance(part, ast.Slice) and isinstance(part.step, ast.UnaryOp)) or (isinstance(part, (ast.List, ast.Tuple)) and [number_in(each) for each in part.elts] == [2, 1, 0]):
                return True
    return False


def _of_imagenet(flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is the mean of ImageNet's colours, in the order red, green, blue."""
    value = flow.value(node)
    return isinstance(value, (ast.List, ast.Tuple)) and [number_in(one) for one in value.elts] == [0.485, 0.456, 0.406]


@RULES.add("scaled-twice", "all inputs lie between 0 and 0.004: nothing is left of their differences", "leave the division out: ToTensor gives numbers from 0 to 1")
def _scaled_twice(program: Program) -> Iterator[Remark]:
    """Images that ToTensor has brought to 0…1, divided by 255 again."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp, ast.Call):
        divided = node.left if is_binary(node, ast.Div) and flow.number(node.right) == _LARGEST else None
        if is_method(node, "div", "div_") and node.args and flow.number(node.args[0]) == _LARGEST:
            divided = node.func.value
        source = _made_as_tensor(flow, divided) if divided is not None else None
        if source is not None:
            yield Remark(node, f"{short(node)} divides by 255 what {short(source)} (line {getattr(source, 'lineno', 0)}) has brought to 0…1")


def _made_as_tensor(flow: Flow, node: ast.expr) -> ast.expr | None:
    """The transform with ToTensor that an image has passed: in the data set that it is taken of, or where it is called."""
    last = steps_to(flow, node)[-1]
    one = flow.given(last)
    of: list[ast.AST | None] = []
    if one is not None and isinstance(one.node, ast.For) and one.place == 0:
        of = [flow.value(argument(loader, "dataset", 0)) for loader in loaders_of(flow, iterated(one.node))]
    elif one is not None and one.place == 0 and isinstance(one.value, ast.Subscript):
        of = [flow.value(one.value.value)]
    for made in of:
        name = flow.program.called(made)
        transform = argument(made, "transform") if isinstance(made, ast.Call) and name.startswith("torchvision.datasets.") else None
        if transform is not None and (found := _with_to_tensor(flow, transform)) is not None:
            return found
    return None


def _with_to_tensor(flow: Flow, node: ast.AST) -> ast.expr | None:
    """The ToTensor that a transform ends in, or that only a change of shape follows."""
    value = flow.value(node)
    name = flow.program.called(value).rpartition(".")[2]
    if name == "ToTensor" and isinstance(value, ast.Call):
        return value
    steps = value.args[0] if name == "Compose" and isinstance(value, ast.Call) and value.args else None
    names = [flow.program.called(flow.value(one)).rpartition(".")[2] for one in steps.elts] if isinstance(steps, ast.List) else []
    return steps.elts[names.index("ToTensor")] if isinstance(steps, ast.List) and "ToTensor" in names and "Lambda" not in names and "" not in names else None


@RULES.add("reshaped-for-turned", "each channel holds pixels of all three colours, in thirds of the rows: the image is torn apart", "turn the axes: torch.from_numpy(image).permute(2, 0, 1)")
def _reshaped(program: Program) -> Iterator[Remark]:
    """An image with its colours behind, given the shape of one with its colours in front."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "reshape", "view") or program.dotted(call.func) is not None:
            continue
        shape = call.args[0].elts if len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List)) else call.args
        front = shape[1:] if len(shape) == 4 and flow.number(shape[0]) in (1, -1) else shape
        if len(front) == 3 and flow.number(front[0]) == 3 and flow.number(front[2]) != 3 and (source := _colours_behind(flow, call.func.value)) is not None:
            yield Remark(call, f"{short(call)} counts the numbers of {short(source)} anew: its colours lie behind, and are not brought to the front")


def _colours_behind(flow: Flow, node: ast.expr) -> ast.expr | None:
    """What reads an image of (height, width, 3) that a value is, but for its type and size."""
    at: ast.AST | None = flow.value(node)
    for _ in range(DEPTH):
        name = flow.program.called(at)
        if name in ("cv2.imread", "PIL.Image.open", "imageio.imread", "skimage.io.imread"):
            return at if isinstance(at, ast.expr) else None
        if is_binary(at, ast.Div, ast.Sub, ast.Mult) and flow.number(at.right) is not None:
            at = flow.value(at.left)
        elif name in ("cv2.resize", "cv2.cvtColor", "cv2.flip", "numpy.array", "numpy.asarray", "torch.from_numpy", "torch.tensor", "torch.as_tensor", "numpy.float32") and isinstance(at, ast.Call) and at.args:
            if any("GRAY" in text_of(one) for one in at.args):
                return None
            at = flow.value(at.args[0])
        elif is_method(at, "astype", "float", "copy", "resize", "convert", "crop", "double", "to", "div", "contiguous") and not name:
            if is_method(at, "convert") and not any(is_string(one) and one.value == "RGB" for one in at.args):
                return None
            at = flow.value(at.func.value)
        else:
            break
    return None


@RULES.add("classes-scaled-away", "ToTensor divides by 255: all class numbers of the mask become 0", "torch.from_numpy(np.array(mask)).long()")
def _classes_scaled(program: Program) -> Iterator[Remark]:
    """Class numbers of a mask that ToTensor has brought to 0…1, made whole again, in a program with several classes."""
    flow = flow_of(program)
    counts = {number for call in program.calls() for word in call.keywords if word.arg is not None and _CLASSES.fullmatch(word.arg) and (number := flow.number(word.value)) is not None}
    counts |= {number for node in program.everywhere(ast.Assign) if _CLASSES.fullmatch(last_word(node.targets[0])) and (number := flow.number(node.value)) is not None}
    if not counts or min(counts) <= 2:
        return
    for call in program.calls():
        whole = (is_method(call, "long") and not call.args) or (is_method(call, "to", "type") and bool(call.args) and text_of(call.args[0]) in ("torch.long", "torch.int64"))
        made = steps_to(flow, call.func.value)[-1] if whole and isinstance(call.func, ast.Attribute) else None
        scaled = isinstance(made, ast.Call) and (program.called(made).endswith("functional.to_tensor") or program.called(flow.value(made.func)).endswith("transforms.ToTensor"))
        if scaled and made is not None:
            yield Remark(call, f"{short(call)} makes numbers whole that {short(made)} has divided by 255: of the classes 0 to {max(counts) - 1:g} only 0 is left")
