"""Values of a range that a loss, a distribution or a layer does not expect; tensors that two variables share.
Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.model.modules import forwards
from probe.diagnose.code.origins import Trace, trace
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_call,
    is_method,
    is_name,
    is_set,
    is_true,
    names_of,
    names_read,
    names_set,
    own,
    own_nodes,
    short,
    text_of,
)

_KEEPS = frozenset(
    [
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "transpose",
        "permute",
        "contiguous",
        "float",
        "to",
        "cuda",
        "cpu",
        "t",
    ]
)
_ACTIVATIONS = {
    "softmax": "probabilities",
    "log_softmax": "log",
    "sigmoid": "sigmoid",
    "logsigmoid": "log",
    "relu": "relu",
    "gumbel_softmax": "probabilities",
    "softmax2d": "probabilities",
    "sparsemax": "probabilities",
}
_MODULES = {
    "torch.nn.Softmax": "probabilities",
    "torch.nn.LogSoftmax": "log",
    "torch.nn.Sigmoid": "sigmoid",
    "torch.nn.ReLU": "relu",
    "torch.nn.Softmax2d": "probabilities",
    "torch.nn.Dropout": "dropout",
}
_WORDS = {
    "probabilities": "the output of a softmax",
    "sigmoid": "the output of a sigmoid",
    "log": "the output of a log_softmax",
    "relu": "the output of a ReLU",
    "dropout": "the output of a Dropout",
}


class _Domains:
    """What range a tensor's values have: that of the activation that was applied last."""

    def __init__(self, program: Program) -> None:
        self.program, self.known = program, trace(program)

    def of(self, node: ast.AST | None, depth: int = 10, index: int | None = None) -> str | None:
        if node is None or not depth:
            return None
        if isinstance(node, (ast.Name, ast.Attribute)):
            given = self.known.given(node)
            if (
                given is None
                or given.value is None
                or given.changed
                or (given.place is not None and index is not None)
            ):
                return None
            return self.of(given.value, depth - 1, given.place if given.place is not None else index)
        if isinstance(node, ast.Tuple):
            return (
                self.of(node.elts[index], depth - 1) if index is not None and index < len(node.elts) else None
            )
        if isinstance(node, ast.Subscript):
            if (
                isinstance(node.slice, ast.Constant)
                and isinstance(node.slice.value, int)
                and node.slice.value >= 0
            ):
                return (
                    self.of(node.value, depth - 1, node.slice.value)
                    if self._gives_tuple(node.value)
                    else None
                )
            return None
        return self._of_call(node, depth, index) if isinstance(node, ast.Call) else None

    def _gives_tuple(self, node: ast.AST) -> bool:
        value = self.known.value(node)
        method = self._forward(value) if isinstance(value, ast.Call) else None
        return method is not None and any(
            isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple) for one in own_nodes(method)
        )

    def _of_call(self, call: ast.Call, depth: int, index: int | None) -> str | None:
        name = self.program.called(call)
        last = name.rpartition(".")[2]
        if name in (f"torch.{last}", f"torch.nn.functional.{last}", f"torch.special.{last}"):
            return self._activation(last, call.args[0] if call.args else None, depth)
        if is_method(call) and not name:
            if call.func.attr in _KEEPS:
                return self.of(call.func.value, depth - 1, index)
            if call.func.attr in _ACTIVATIONS and self.program.kind(call.func) is None:
                return self._activation(call.func.attr, call.func.value, depth)
        module = self.known.value(call.func)
        if isinstance(module, ast.Call) and index is None:
            found = self._of_module(module, call.args[0] if call.args else None, depth)
            if found is not None:
                return found
        method = self._forward(call)
        return None if method is None else self._returned(method, depth, index)

    def _activation(self, name: str, argument: ast.AST | None, depth: int) -> str | None:
        found = _ACTIVATIONS.get(name)
        return found if found != "relu" or self._linear(argument) else None

    def _of_module(self, module: ast.Call, argument: ast.AST | None, depth: int) -> str | None:
        name = self.program.called(module)
        if (
            name == "torch.nn.Sequential"
            and module.args
            and not any(isinstance(one, ast.Starred) for one in module.args)
        ):
            last = self.known.value(module.args[-1])
            before = self.known.value(module.args[-2]) if len(module.args) > 1 else None
            if isinstance(last, ast.Call):
                found = _MODULES.get(self.program.called(last))
                if found in ("relu", "dropout"):
                    return found if self._is_linear(before) and self._drops(last) else None
                return found or self._of_module(last, None, depth - 1)
            return None
        found = _MODULES.get(name)
        if found in ("relu", "dropout"):
            return found if self._linear(argument) and self._drops(module) else None
        return found

    def _drops(self, module: ast.Call) -> bool:
        name = self.program.dotted(module.func)
        return name != "torch.nn.Dropout" or not (module.args and self.known.number(module.args[0]) == 0)

    def _is_linear(self, module: ast.AST | None) -> bool:
        return self.program.called(module) == "torch.nn.Linear"

    def _linear(self, node: ast.AST | None) -> bool:
        """Whether a value comes out of nn.Linear."""
        value = self.known.value(node) if node is not None else None
        return isinstance(value, ast.Call) and self._is_linear(self.known.value(value.func))

    def _forward(self, call: ast.Call) -> Function | None:
        if is_call(call, "self"):
            of = self.program.class_of(call)
            return None if of is None else self.program.method(of, "forward")
        return self.program.local_function(call)

    def _returned(self, method: Function, depth: int, index: int | None) -> str | None:
        found = {
            self.of(node.value, depth - 1, index)
            for node in own_nodes(method)
            if isinstance(node, ast.Return)
        }
        return next(iter(found)) if len(found) == 1 else None


_EXPECTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "cross_entropy": ("logits", ("probabilities", "sigmoid", "relu", "dropout"), "torch.nn.CrossEntropyLoss"),
    "nll_loss": ("log probabilities", ("probabilities", "sigmoid"), "torch.nn.NLLLoss"),
    "binary_cross_entropy_with_logits": (
        "logits",
        ("probabilities", "sigmoid", "relu", "dropout"),
        "torch.nn.BCEWithLogitsLoss",
    ),
    "kl_div": ("log probabilities", ("probabilities", "sigmoid"), "torch.nn.KLDivLoss"),
    "softmax": ("logits", ("probabilities", "sigmoid"), "torch.nn.Softmax"),
    "log_softmax": ("logits", ("probabilities", "sigmoid"), "torch.nn.LogSoftmax"),
    "gumbel_softmax": ("logits", ("probabilities", "sigmoid"), ""),
    "sigmoid": ("logits", ("probabilities", "sigmoid"), "torch.nn.Sigmoid"),
    "Categorical": ("logits", ("probabilities", "sigmoid"), ""),
    "Bernoulli": ("logits", ("probabilities", "sigmoid"), ""),
}
"""What takes what as its first argument, and which values are none of it."""


def _wrong_range(program: Program) -> Iterator[Remark]:
    domains = _Domains(program)
    by_module = {module: name for name, (_, _, module) in _EXPECTS.items() if module}
    for call in program.calls():
        name = program.called(call)
        last = name.rpartition(".")[2]
        if name.startswith("torch.distributions."):
            given = argument(call, "logits")
        elif name in (f"torch.nn.functional.{last}", f"torch.{last}"):
            given = call.args[0] if call.args else argument(call, "input")
        else:
            module = domains.known.value(call.func)
            kind = program.kind(call.func)
            made = (
                program.dotted(module.func)
                if isinstance(module, ast.Call)
                else kind.name
                if kind is not None
                else None
            )
            last = by_module.get(made or "", "")
            given = call.args[0] if call.args else argument(call, "input")
        if last not in _EXPECTS or given is None:
            continue
        expected, wrong, _ = _EXPECTS[last]
        found = domains.of(given)
        axis = _axis_of_log(domains, given) if last == "nll_loss" else None
        if axis == 0:
            yield Remark(
                call,
                f"{short(given, 40)} is normalized over axis 0, the batch, and nll_loss takes "
                "classes along axis 1",
            )
        elif found in wrong:
            shown = last if name else text_of(call.func)
            yield Remark(call, f"{shown} takes {expected}, and {short(given, 40)} is {_WORDS[found]}")
        elif last == "kl_div" and argument(call, "log_target") is None and name:
            target = call.args[1] if len(call.args) > 1 else argument(call, "target")
            if domains.of(target) == "log":
                yield Remark(
                    call,
                    "kl_div takes probabilities as its target without log_target=True, and "
                    f"{short(target or call, 40)} is {_WORDS['log']}",
                )


def _linear_twice(program: Program) -> Iterator[Remark]:
    """Two nn.Linear in a row with nothing in between are one linear map."""
    known = trace(program)
    for call in program.calls():
        pairs: list[tuple[ast.AST, ast.AST, ast.AST]] = []
        if program.called(call) == "torch.nn.Sequential":
            pairs = [
                (one, known.value(one), known.value(other))
                for one, other in zip(call.args, call.args[1:], strict=False)
            ]
        elif len(call.args) == 1 and isinstance(call.func, (ast.Name, ast.Attribute)):
            before = known.value(call.args[0])
            if isinstance(before, ast.Call) and len(before.args) == 1:
                pairs = [(call, known.value(before.func), known.value(call.func))]
        for node, first, second in pairs:
            if not isinstance(first, ast.Call) or not isinstance(second, ast.Call) or first is second:
                continue
            if {program.dotted(first.func), program.dotted(second.func)} != {"torch.nn.Linear"} or argument(
                first, "bias", 2
            ) is not None:
                continue
            narrow = [
                known.number(one)
                for one in (
                    argument(first, "in_features", 0),
                    argument(first, "out_features", 1),
                    argument(second, "out_features", 1),
                )
            ]
            if any(one is None for one in narrow[1:2]) or (
                narrow[0] is not None
                and narrow[1] is not None
                and narrow[1] < narrow[0]
                and (narrow[2] or 0) > narrow[1]
            ):
                continue
            yield Remark(
                node,
                f"{short(first)} is followed by {short(second)} with no activation in "
                "between: both are one linear map",
            )


def _axis_of_log(domains: _Domains, node: ast.AST) -> float | None:
    """The axis of the log_softmax that a value comes out of."""
    value = domains.known.value(node)
    if isinstance(value, ast.Call) and (domains.program.called(value)).endswith(".log_softmax"):
        return domains.known.number(argument(value, "dim", 1))
    return None


def _alias_changed(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for method in forwards(program):
        for node in own(method, ast.Assign):
            if (
                len(node.targets) != 1
                or not isinstance(node.targets[0], ast.Name)
                or not isinstance(node.value, ast.Name)
            ):
                continue
            kept, source = node.targets[0].id, node.value.id
            block = next(
                (
                    found
                    for name in ("body", "orelse")
                    if isinstance(found := getattr(program.parent[node], name, None), list) and node in found
                ),
                [],
            )
            changed: ast.stmt | None = None
            for later in block[block.index(node) + 1 :] if node in block else []:
                if changed is not None and kept in names_read(later):
                    said = (
                        f"{kept} and {source} are the same tensor since line {node.lineno}: line "
                        f"{changed.lineno} changes it in place, so {kept} changes too"
                    )
                    yield Remark(changed, said)
                    break
                if changed is None and _in_place(program, known, later, source):
                    changed = later
                    if kept in names_of(later):
                        break  # x += f(x, kept): the sum that was meant
                    continue
                if any(is_set(one, kept, source) for one in ast.walk(later)) and (
                    changed is None or kept in names_set(later)
                ):
                    break


def _in_place(program: Program, known: Trace, statement: ast.stmt, name: str) -> bool:
    """Whether a plain statement changes the tensor of that name in place."""
    if isinstance(statement, ast.AugAssign):
        return is_name(statement.target, name)
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        return False
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call):
            continue
        if (is_method(call) and is_name(call.func.value, name)) and (
            call.func.attr.endswith("_")
            and not call.func.attr.endswith("__")
            and call.func.attr not in ("requires_grad_", "detach_", "squeeze_", "unsqueeze_")
        ):
            return True
        if call.args and is_name(call.args[0], name):
            made = known.value(call.func)
            flag = argument(call, "inplace") or (
                argument(made, "inplace") if isinstance(made, ast.Call) else None
            )
            if is_true(flag):
                return True
    return False


RULES: tuple[Rule, ...] = (
    Rule(
        "values-of-another-range",
        "model",
        "the loss or distribution takes these values for something else, and its gradients are wrong or "
        "small",
        "give it what it takes",
        _wrong_range,
    ),
    Rule(
        "no-activation-between",
        "model",
        "the second layer adds no depth to the first",
        "put an activation in between",
        _linear_twice,
    ),
    Rule(
        "shared-tensor-changed",
        "model",
        "what was kept for later (a residual, a shortcut) is no longer what it was",
        "write x = x + y instead of x += y, or keep x.clone()",
        _alias_changed,
    ),
)
