"""Gradients of 16 bit: the factor that keeps them above 0. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import argument, is_false, is_method, last_word, short
from probe.diagnose.code.traits.updates import is_scaler, plain

FINDERS = Finders()
_HALF = ("torch.float16", "torch.half")
_OTHERS = ("GradScaler", "Accelerator", "deepspeed", "Fabric", "lightning", "pytorch_lightning", "apex", "Trainer", "loss_scale", "scaler", "LossScaler", "grad_scaler", "set_autocast_gpu_dtype", "set_autocast_dtype")


@FINDERS.add("made-in-the-loop")
def _scaler_made_anew(program: Program) -> Iterator[Remark]:
    """The scaler of the loss is made in each pass that it steps in."""
    for step in computation_of(program).of("step"):
        scaler = plain(step.args[0]) if step.args else step
        if is_scaler(scaler) and scaler.where.loops and scaler.where.loops == step.where.loops and "init_scale" not in scaler.named:
            yield Remark(scaler.node, f"{short(scaler.node)} is made anew in each pass of the loop of line {getattr(step.where.loops[-1], 'lineno', 0)}, and steps once: its factor is always the first one")
            return


def half_without_scaler(program: Program) -> Iterator[Remark]:
    """A loss is computed in 16 bit, and backward starts from it without a factor."""
    words = {last_word(one) for one in program.everywhere(ast.Name, ast.Attribute)} | {one.arg or "" for one in program.everywhere(ast.keyword)}
    imported = {part for source in program.sources for full in source.imports.values() for part in full.split(".")}
    if (words | imported) & {*_OTHERS}:
        return
    for node in program.everywhere(ast.With):
        call = next((one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call) and last_word(one.context_expr.func) == "autocast"), None)
        if call is None or program.without_gradient(node) or is_false(argument(call, "enabled", 9)) or not _is_half(program, call):
            continue
        scope = program.frame(node)
        losses = {name.id for one in ast.walk(node) if isinstance(one, ast.Assign) for target in one.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        for back in ast.walk(scope):
            if is_method(back, "backward") and isinstance(back.func.value, ast.Name) and back.func.value.id in losses and back.lineno > node.lineno:
                yield Remark(back, f"{short(back)} starts from what {short(call)} (line {call.lineno}) computes in 16 bit, and nothing multiplies the loss: gradients below 6e-8 are 0")
                return


def _is_half(program: Program, call: ast.Call) -> bool:
    """Whether a region is certainly computed in float16."""
    name, kind = program.called(call), argument(call, "dtype", 9 if ".cuda." in program.called(call) else 1)
    if kind is not None:
        return program.called(kind) in _HALF or ast.unparse(kind) in _HALF
    first = argument(call, "device_type", 0)
    return name.endswith(".cuda.amp.autocast") or (isinstance(first, ast.Constant) and first.value == "cuda")
