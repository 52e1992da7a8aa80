"""What a picture is on its way into a network: where it was read, by which transform it is changed, in which numbers
and colours it stands. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins

_MOVES = frozenset({
    "Resize", "CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotation", "RandomResizedCrop", "Pad", "RandomAffine",
    "FiveCrop", "resize", "crop", "center_crop", "hflip", "vflip", "rotate", "pad", "affine", "resized_crop",
})
"""Transforms of torchvision that move pixels and keep their numbers, or means of them."""
_KEEPS = frozenset({"part", "transpose", "permute", "flip", "roll", "fliplr", "flipud", "cv2.resize", "cv2.flip", "resize", "convert", "crop", "rot90", "T"})
"""Operations that move pixels, or take some of them."""
_SHAPES = frozenset({"view", "reshape", "unsqueeze", "squeeze", "contiguous", "ascontiguousarray", "clone", "copy", "cpu", "cuda", "numpy", "from_numpy"})
_TYPED = frozenset({"float", "double", "half", "long", "int", "astype", "div", "mul", "float32", "float64", "type", "sub", "load", "imread"})
_INTEGERS = frozenset({"long", "int", "int64", "LongTensor"})


def applied(value: Value) -> str | None:
    """The name of the transform of torchvision that gives a value; None if it is none."""
    if value.op == "run" and value.args and value.args[0].op.startswith("torchvision.transforms."):
        return value.args[0].op.rpartition(".")[2]
    if value.op.startswith("torchvision.transforms.") and ".functional." in value.op and value.args:
        return value.op.rpartition(".")[2]
    return None


def untouched(value: Value) -> Value:
    """A value without what moves its pixels, or changes its shape, type or place."""
    for _ in range(60):
        inner = bare(value)
        name = applied(inner)
        if name in _MOVES:
            inner = inner.args[-1] if inner.op == "run" else inner.args[0]
        elif inner.op in _KEEPS and inner.args and applied(inner) is None:
            inner = inner.args[0]
        if inner is value or isinstance(inner, Many):
            return value
        value = inner
    return value


def is_scaled_to_one(value: Value) -> bool:
    """Whether a value is a picture of bytes that a transform has brought to 0…1, or that is divided by 255."""
    if value.op == "div" and len(value.args) == 2 and number(value.args[1]) == 255:
        return True
    name = applied(value)
    if name == "ToDtype":
        return constant(value.args[0].argument("scale", 1)) is True
    if name not in ("ToTensor", "to_tensor"):
        return False
    given = value.args[-1] if value.op == "run" else value.args[0]
    before = list(origins(given))
    return any(_reads_picture(one) for one in before) and not any(one.op in _TYPED and not one.op.startswith("PIL") for one in line_of(given))


def _reads_picture(value: Value) -> bool:
    return value.op.startswith(("torchvision.datasets.", "PIL.Image.open")) or value.op in ("open_image",)


def line_of(value: Value) -> Iterator[Value]:
    """A value and what it was before, along what each operation is done on; of a list, its first element."""
    for _ in range(80):
        yield value
        inner = value.parts if isinstance(value, Many) else value.args
        if not inner:
            return
        value = inner[-1] if value.op == "run" and applied(value) is not None else inner[0]


def whole_numbers(value: Value) -> bool:
    """Whether a value has been made whole."""
    for one in line_of(value):
        if one.op in _INTEGERS:
            return True
        if one.op in ("to", "astype", "type", "tensor", "as_tensor") and any(
            given.op == "@library" and str(given.data).rpartition(".")[2] in ("long", "int64", "int32") for given in (*one.args[1:], *one.named.values())
        ):
            return True
        if one.op not in ("to", "part", "squeeze", "rows", "cuda", "cpu", "sub", "view", "reshape", "add", "contiguous", "from_numpy", "flatten", "unsqueeze", "either", "stack") and not (isinstance(one, Many) and len(one.parts) == 1):
            return False
    return False


def _is_colour_read(value: Value) -> bool:
    """Whether a value is what OpenCV reads in colour."""
    if value.op == "cv2.imread":
        flag = value.argument("flags", 1)
        return flag is None or number(flag) == 1 or (flag.op == "@library" and str(flag.data).endswith(".IMREAD_COLOR"))
    return value.op == "part" and constant(value.args[1]) == 1 and value.args[0].op == "read" and value.args[0].args[0].op == "cv2.VideoCapture"


_COLOURS_KEPT = frozenset({
    "cv2.resize", "cv2.flip", "cv2.GaussianBlur", "astype", "div", "mul", "clamp", "transpose", "permute", "to", "float", "float32", "from_numpy", "tensor",
    "as_tensor", "ascontiguousarray", "rows", "array", "asarray", "copy", "uint8", "cv2.warpAffine", "cv2.copyMakeBorder", "PIL.Image.fromarray",
})


def red_first(value: Value) -> Value | None:
    """Where OpenCV has read a picture whose colours are still in its order; None if that is unknown or not so."""
    for _ in range(60):
        if _is_colour_read(value):
            return value
        name = applied(value)
        if name in _MOVES or name in ("ToTensor", "to_tensor", "ToPILImage", "to_pil_image"):
            value = value.args[-1] if value.op == "run" else value.args[0]
        elif (value.op == "part" and value.args and _keeps_colours(value.args[1])) or (value.op in _COLOURS_KEPT and value.args and value.op != "part"):
            value = value.args[0]
        else:
            return None
    return None


def _keeps_colours(index: Value) -> bool:
    """Whether an index cuts rows and columns only."""
    parts = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
    return len(parts) <= 2 and all(one.op == "slice" for one in parts)


def is_colours_last(value: Value) -> Value | None:
    """Where a picture was read whose colours are its last axis: an array of PIL or OpenCV, not turned since."""
    for _ in range(60):
        if _is_colour_read(value):
            return value
        if value.op in ("array", "asarray") and value.args and value.args[0].op in ("convert", "resize", "crop", "PIL.Image.open"):
            return value if any(one.op == "convert" and constant(one.args[1] if len(one.args) > 1 else None) == "RGB" for one in origins(value.args[0])) else None
        if value.op == "data" and value.args and value.args[0].op.startswith("torchvision.datasets.CIFAR"):
            return value
        if value.op in _COLOURS_KEPT - {"transpose", "permute", "rows"} and value.args:
            value = value.args[0]
        else:
            return None
    return None


def is_bytes(value: Value) -> bool:
    """Whether a value is a picture in unsigned 8-bit numbers."""
    for _ in range(40):
        if value.op in ("array", "asarray") and value.args and len(value.args) == 1 and "dtype" not in value.named:
            inner = value.args[0]
            while inner.op in ("convert", "resize", "crop", "rotate", "transpose") and inner.args:
                inner = inner.args[0]
            return inner.op == "PIL.Image.open"
        if value.op in ("cv2.imread", "torchvision.io.read_image", "torchvision.io.decode_image"):
            flag = value.argument("flags", 1) if value.op == "cv2.imread" else None
            return flag is None or (not (flag.op == "@library" and "UNCHANGED" in str(flag.data)) and "ANYDEPTH" not in str(flag.data))
        if value.op in ("astype", "to", "type", "asarray", "array") and any(one.op == "@library" and str(one.data).endswith(".uint8") for one in (*value.args[1:], *value.named.values())):
            return True
        if value.op in ("cv2.resize", "cv2.flip", "cv2.cvtColor", "flip", "roll", "fliplr", "flipud", "transpose", "permute", "part", "either", "element", *_SHAPES) and value.args:
            value = value.args[0]
        else:
            return False
    return False


def by_network(value: Value) -> bool:
    """Whether a network computes a value, and not only a transform of pictures."""
    return any(one.op == "run" and applied(one) is None for one in origins(value))
