"""Attention over the wrong axis, and decoders that see what they have to predict. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import Function, argument, is_false, is_method, short, text_of

RULES = Rules("model")
_TURNS = ("permute", "movedim", "rearrange", "swapaxes", "t", "einsum", "stack", "view", "reshape")
_DECODERS = {"torch.nn.Transformer": 3, "torch.nn.TransformerDecoder": 2, "torch.nn.TransformerDecoderLayer": 2}
"""Modules of torch that decode, and the place of tgt_mask among the arguments of their call."""


@RULES.add(
    "attention-over-the-batch",
    "samples read from one another, and no position reads from its own sequence",
    "make the attention with batch_first=True, or give it (positions, batch, width)",
)
def _over_the_batch(program: Program) -> Iterator[Remark]:
    """An attention without batch_first in a module, where the model around it keeps the batch in front."""
    flow = flow_of(program)
    for call in program.calls():
        made, of = flow.maker(call), program.class_of(call)
        if of is None or made is None or program.called(made) != "torch.nn.MultiheadAttention":
            continue
        first = argument(made, "batch_first")
        open_ended = any(one.arg is None for one in made.keywords)
        if open_ended or not (first is None or is_false(first)) or _turned(program.function_of(call)):
            continue
        makers = (program.class_of(one) for one in program.calls() if program.called(one) == of.name)
        for user in dict.fromkeys([of, *makers]):
            forward = program.method(user, "forward") if user is not None else None
            shown = None if forward is None or _turned(forward) else next(_in_front(program, forward), None)
            if shown is not None and user is not None:
                yield Remark(
                    call,
                    f"{short(made)} is made without batch_first=True and takes (positions, batch, width), and "
                    f"{user.name} has the batch in front: {short(shown)} (line {shown.lineno})",
                )
                break


def _turned(function: Function | None) -> bool:
    """Whether a function may exchange the first two axes."""
    return function is not None and any(
        is_method(one, *_TURNS)
        or (is_method(one, "transpose") and "0" in [text_of(part) for part in one.args])
        for one in ast.walk(function)
    )


def _in_front(program: Program, forward: Function) -> Iterator[ast.expr]:
    """Expressions that are right only where the batch is in front of the positions."""
    for one in ast.walk(forward):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Tuple):
            parts = [text_of(part) for part in one.slice.elts]
            if parts in ([":", "0"], [":", "-1"]) and isinstance(one.value, (ast.Name, ast.Call)):
                yield one
        elif is_method(one, "mean", "max", "sum") and program.called(one) == "":
            over = argument(one, "dim", 0)
            if over is not None and text_of(over) == "1":
                yield one
        elif isinstance(one, ast.Call) and program.called(one) == "torch.cat":
            along = argument(one, "dim", 1)
            expands = [part.args for part in ast.walk(one) if is_method(part, "expand", "repeat")]
            if along is not None and text_of(along) == "1" and any(_repeats_first(args) for args in expands):
                yield one
        elif is_method(one, "transpose") and text_of(one).endswith(".flatten(2).transpose(1, 2)"):
            yield one  # (batch, channels, height, width) to (batch, positions, channels)


def _repeats_first(sizes: list[ast.expr]) -> bool:
    """Whether `x.expand(n, -1, -1)` or `x.repeat(n, 1, 1)` repeats something for each sample."""
    return len(sizes) == 3 and all(text_of(one) in ("-1", "1") for one in sizes[1:])


@RULES.add(
    "decoder-without-mask",
    "each position reads the token that it has to predict: the loss falls, and what is generated is wrong",
    "give it tgt_mask=nn.Transformer.generate_square_subsequent_mask(length)",
)
def _without_mask(program: Program) -> Iterator[Remark]:
    """A decoder that gets the targets but for the last, is trained on those but for the first, and has no mask."""
    shifted = next(_shifted(program), None)
    flow = flow_of(program)
    for call in program.calls() if shifted is not None else ():
        name = program.called(flow.maker(call))
        if name not in _DECODERS or program.class_of(call) is None or len(call.args) < 2:
            continue
        named = {one.arg for one in call.keywords}
        if named & {"tgt_mask", "tgt_is_causal", None} or len(call.args) > _DECODERS[name]:
            continue
        if shifted is not None:
            yield Remark(call, f"{short(call)} has no tgt_mask, and {shifted} are read and predicted one apart")


def _shifted(program: Program) -> Iterator[str]:
    """What is cut both as x[:, :-1] and as x[:, 1:]."""
    cut: dict[str, set[str]] = {}
    for node in program.everywhere(ast.Subscript):
        index = text_of(node.slice).replace(" ", "").strip("()")
        for way in (":-1", "1:"):
            if index in (f":,{way}", way):
                cut.setdefault(text_of(node.value), set()).add(way)
    yield from (name for name, ways in cut.items() if len(ways) == 2)
