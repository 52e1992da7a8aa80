"""Tensors that a network draws when it is made, and that no state dict holds. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.updates import plain

_DRAWN = ("randn", "rand", "randint", "randperm", "normal", "orthogonal_")
_SEEDS = ("manual_seed", "seed", "seed_everything", "set_seed", "default_rng", "Generator", "RandomState")


def drawn_outside_the_state(program: Program) -> Iterator[Remark]:
    """A network is trained and saved by its state dict, with a tensor that it drew when it was made and that is no part of the
    state; another one is made, loaded and run."""
    if any(last_word(call.func) in _SEEDS for call in program.calls()):
        return
    computation = computation_of(program)
    saved = {plain(one.args[0]).of for one in computation.of("state_dict") if one.args and isinstance(plain(one.args[0]), Instance)}  # type: ignore[attr-defined]
    made: dict[ast.ClassDef, list[Instance]] = {}
    for one in computation.of("@object"):
        if isinstance(one, Instance) and one.of is not None and program.is_module_class(one.of):
            made.setdefault(one.of, []).append(one)
    for load in computation.of("load_state_dict"):
        into = plain(load.args[0]) if load.args else load
        if not isinstance(into, Instance) or into.of not in saved or into.of is None or len({one.node for one in made[into.of]}) < 2:
            continue
        trained = any(one.op == "parameters" and isinstance(one.args[0], Instance) and one.args[0].of is into.of and one.args[0].node is not into.node for one in computation.of("parameters"))
        buffers = {constant(one.args[1]) for one in computation.of("register_buffer") if len(one.args) > 1 and one.args[0] is into}
        for name, value in into.attributes.items() if trained and not any(True for _ in _asks_to_keep(into.of)) else ():
            if name not in buffers and _is_drawn(value) and _computes(computation, value) and not _set_again(computation, into, name):
                yield Remark(value.node, f"self.{name} is drawn when the network is made, and is no parameter or buffer: {short(load.node)} (line {load.line}) does not load it, and the loaded network has another one than the one that was trained")
                return


def _asks_to_keep(of: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods by which a class saves more than its parameters and buffers."""
    yield from (one for one in of.body if isinstance(one, ast.FunctionDef) and one.name in ("get_extra_state", "state_dict", "__getstate__", "_save_to_state_dict"))


def _is_drawn(value: Value) -> bool:
    inside = list(origins(value, ("torch.nn.Parameter", "register_buffer", "state_dict")))
    return any(one.op in _DRAWN for one in inside) and not value.op.startswith("torch.nn.") and all(
        one.op in (*_DRAWN, "mul", "div", "add", "sub", "float", "to", "sign", "normalize", "norm", "@constant", "T", "sqrt", "tuple", "part", "long", "detach", "sort", "argsort", "pow", "@library", "cuda") for one in inside
    )


def _computes(computation: Computation, value: Value) -> bool:
    """Whether an output is computed with a value."""
    return any(user.op in ("matmul", "linear", "mul", "add", "part", "index_select", "einsum", "gather", "conv2d", "tuple") and user.where.functions and getattr(user.where.functions[-1], "name", "") != "__init__" for user in computation.users(value))


def _set_again(computation: Computation, home: Instance, name: str) -> bool:
    return len([one for one in computation.of("set_attribute") if one.data == name and one.args[0] is home]) > 1
