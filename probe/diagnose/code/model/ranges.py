"""Values of a range that a loss, a distribution or a layer does not expect; tensors that two variables share.
Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import buffer_of, forwards
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    entry_of,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_set,
    is_string,
    is_true,
    names_of,
    names_read,
    names_set,
    number_in,
    operands,
    own,
    returned,
    short,
    text_of,
)

RULES = Rules("model")

_KEEPS = frozenset({
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "transpose", "permute", "contiguous", "float",
    "to", "cuda", "cpu", "t",
})
_CHANGE_NO_VALUE = ("requires_grad_", "detach_", "squeeze_", "unsqueeze_")
_ACTIVATIONS = {
    "softmax": "probabilities", "log_softmax": "log", "sigmoid": "sigmoid", "logsigmoid": "log",
    "relu": "relu", "gumbel_softmax": "probabilities", "softmax2d": "probabilities",
    "sparsemax": "probabilities",
}
_MODULES = {
    "torch.nn.Softmax": "probabilities", "torch.nn.LogSoftmax": "log", "torch.nn.Sigmoid": "sigmoid",
    "torch.nn.ReLU": "relu", "torch.nn.Softmax2d": "probabilities", "torch.nn.Dropout": "dropout",
}
_WORDS = {
    "probabilities": "the output of a softmax", "sigmoid": "the output of a sigmoid",
    "log": "the output of a log_softmax", "relu": "the output of a ReLU",
    "dropout": "the output of a Dropout",
}


class _Domains:
    """What range a tensor's values have: that of the activation that was applied last."""

    def __init__(self, program: Program) -> None:
        self.program, self.flow = program, flow_of(program)

    def of(self, node: ast.AST | None, depth: int = 10, index: int | None = None) -> str | None:
        if node is None or not depth:
            return None
        if isinstance(node, (ast.Name, ast.Attribute)):
            given = self.flow.given(node)
            if given is None or given.how != "assign" or (given.place is not None and index is not None):
                return None
            return self.of(given.value, depth - 1, given.place if given.place is not None else index)
        if isinstance(node, ast.Tuple):
            within = index is not None and index < len(node.elts)
            return self.of(node.elts[index or 0], depth - 1) if within else None
        if isinstance(node, ast.Subscript):
            if is_string(node.slice):
                return self._of_entry(node, node.slice.value, depth)
            place = number_in(node.slice)
            known = isinstance(place, int) and self._gives_tuple(node.value)
            return self.of(node.value, depth - 1, int(place)) if known and place is not None else None
        return self._of_call(node, depth, index) if isinstance(node, ast.Call) else None

    def _of_entry(self, node: ast.Subscript, key: str, depth: int) -> str | None:
        """The same, of one entry of a dict that is written out here, or that a function returns."""
        value = self.flow.value(node.value)
        method = self._forward(value) if isinstance(value, ast.Call) else None
        whole = [value] if method is None else [self.flow.value(one) for one in returned(method)]
        entries = [entry_of(one, key) for one in whole]
        return self.of(entries[0], depth - 1) if len(entries) == 1 and entries[0] is not None else None

    def _gives_tuple(self, node: ast.AST) -> bool:
        value = self.flow.value(node)
        method = self._forward(value) if isinstance(value, ast.Call) else None
        return method is not None and any(isinstance(one, ast.Tuple) for one in returned(method))

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
        module = self.flow.value(call.func)
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
        starred = any(isinstance(one, ast.Starred) for one in module.args)
        if name == "torch.nn.Sequential" and module.args and not starred:
            last = self.flow.value(module.args[-1])
            before = self.flow.value(module.args[-2]) if len(module.args) > 1 else None
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
        return name != "torch.nn.Dropout" or not (module.args and self.flow.number(module.args[0]) == 0)

    def _is_linear(self, module: ast.AST | None) -> bool:
        return self.program.called(module) == "torch.nn.Linear"

    def _linear(self, node: ast.AST | None) -> bool:
        """Whether a value comes out of nn.Linear."""
        value = self.flow.value(node) if node is not None else None
        return isinstance(value, ast.Call) and self._is_linear(self.flow.value(value.func))

    def _forward(self, call: ast.Call) -> Function | None:
        if is_call(call, "self"):
            of = self.program.class_of(call)
            return None if of is None else self.program.method(of, "forward")
        return self.program.local_function(call)

    def _returned(self, method: Function, depth: int, index: int | None) -> str | None:
        found = {self.of(value, depth - 1, index) for value in returned(method)}
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


@RULES.add(
    "values-of-another-range",
    "the loss or distribution takes these values for something else, and its gradients are wrong or small",
    "give it what it takes",
)
def _wrong_range(program: Program) -> Iterator[Remark]:
    domains = _Domains(program)
    by_module = {module: name for name, (_, _, module) in _EXPECTS.items() if module}
    for call in program.calls():
        name = program.called(call)
        last = name.rpartition(".")[2]
        module: ast.AST | None = None
        if name.startswith("torch.distributions."):
            given = argument(call, "logits")
        elif name in (f"torch.nn.functional.{last}", f"torch.{last}"):
            given = call.args[0] if call.args else argument(call, "input")
        else:
            module = _module(domains.flow, call)
            made = program.called(module) if isinstance(module, ast.Call) else program.kind_name(call.func)
            last = by_module.get(made, "")
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
        elif last == "kl_div" and not any(
            isinstance(one, ast.Call) and argument(one, "log_target") is not None for one in (call, module)
        ):
            target = call.args[1] if len(call.args) > 1 else argument(call, "target")
            if domains.of(target) == "log":
                yield Remark(
                    call,
                    "kl_div takes probabilities as its target without log_target=True, and "
                    f"{short(target or call, 40)} is {_WORDS['log']}",
                )


def _module(flow: Flow, call: ast.Call) -> ast.AST:
    """What made the module that a call runs, also where a dict keeps it: `self.losses["cls"](x, y)`."""
    of = flow.value(call.func)
    if not isinstance(of, ast.Subscript) or not is_string(of.slice):
        return of
    kept = flow.value(of.value)
    if flow.program.called(kept) == "torch.nn.ModuleDict" and isinstance(kept, ast.Call) and kept.args:
        kept = flow.value(kept.args[0])
    return entry_of(kept, of.slice.value) or of


@RULES.add(
    "no-activation-between", "the second layer adds no depth to the first", "put an activation in between"
)
def _linear_twice(program: Program) -> Iterator[Remark]:
    """Two nn.Linear in a row with nothing in between are one linear map."""
    flow = flow_of(program)
    for call in program.calls():
        pairs: list[tuple[ast.AST, ast.AST, ast.AST]] = []
        if program.called(call) == "torch.nn.Sequential":
            pairs = [(one, flow.value(one), flow.value(other)) for one, other in pairwise(call.args)]
        elif len(call.args) == 1 and isinstance(call.func, (ast.Name, ast.Attribute)):
            before = flow.value(call.args[0])
            key = flow.key(call.args[0])
            also_read = key is not None and len(flow.reads.get(key, ())) > 1  # an embedding that is given too
            if isinstance(before, ast.Call) and len(before.args) == 1 and not also_read:
                pairs = [(call, flow.value(before.func), flow.value(call.func))]
        for node, first, second in pairs:
            if not isinstance(first, ast.Call) or not isinstance(second, ast.Call) or first is second:
                continue
            if {program.called(first), program.called(second)} != {"torch.nn.Linear"}:
                continue
            into = flow.number(argument(first, "in_features", 0))
            width = flow.number(argument(first, "out_features", 1))
            out = flow.number(argument(second, "out_features", 1))
            narrow = width is None or (into is not None and width < into and (out or 0) > width)
            if narrow or argument(first, "bias", 2) is not None or _is_tied(program, call):
                continue
            yield Remark(
                node,
                f"{short(first)} is followed by {short(second)} with no activation in "
                "between: both are one linear map",
            )


def _is_tied(program: Program, call: ast.Call) -> bool:
    """Whether a layer is given the weight of another one: its input is brought to that width before."""
    weight = f"{text_of(call.func)}.weight"
    assigned = program.everywhere(ast.Assign)
    return any(text_of(target) == weight for node in assigned for target in node.targets)


def _axis_of_log(domains: _Domains, node: ast.AST) -> float | None:
    """The axis of the log_softmax that a value comes out of."""
    value = domains.flow.value(node)
    if isinstance(value, ast.Call) and (domains.program.called(value)).endswith(".log_softmax"):
        return domains.flow.number(argument(value, "dim", 1))
    return None


@RULES.add(
    "shared-tensor-changed", "what was kept for later (a residual, a shortcut) is no longer what it was",
    "write x = x + y instead of x += y, or keep x.clone()",
)
def _alias_changed(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for method in forwards(program):
        for node in own(method, ast.Assign):
            target = node.targets[0]
            if len(node.targets) != 1 or not is_name(target) or not is_name(node.value):
                continue
            kept, source = target.id, node.value.id
            changed: ast.stmt | None = None
            for later in program.after(node):
                if changed is not None and kept in names_read(later):
                    said = (
                        f"{kept} and {source} are the same tensor since line {node.lineno}: line "
                        f"{changed.lineno} changes it in place, so {kept} changes too"
                    )
                    yield Remark(changed, said)
                    break
                if changed is None and _in_place(flow, later, source):
                    changed = later
                    if kept in names_of(later):
                        break  # x += f(x, kept): the sum that was meant
                    continue
                if any(is_set(one, kept, source) for one in ast.walk(later)) and (
                    changed is None or kept in names_set(later)
                ):
                    break


def _in_place(flow: Flow, statement: ast.stmt, name: str) -> bool:
    """Whether a plain statement changes the tensor of that name in place."""
    if isinstance(statement, ast.AugAssign):
        return is_name(statement.target, name)
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        return False
    for call in ast.walk(statement):
        if is_method(call) and is_name(call.func.value, name):
            word = call.func.attr
            if word.endswith("_") and not word.endswith("__") and word not in _CHANGE_NO_VALUE:
                return True
        if isinstance(call, ast.Call) and call.args and is_name(call.args[0], name):
            made = flow.maker(call)
            if any(one is not None and is_true(argument(one, "inplace")) for one in (call, made)):
                return True
    return False


@RULES.add(
    "noise-of-one-step",
    "the network is trained on almost clean inputs, and the sampler starts from noise that it never met",
    "index the cumulative product of the alphas",
)
def _noise_of_one_step(program: Program) -> Iterator[Remark]:
    """Diffusion inputs that are noised by the alpha of their step alone."""
    cumulated = [one for one in program.calls() if is_method(one, "cumprod")]
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp) if cumulated else ():
        if not is_binary(node, ast.Add) or program.loops(node):
            continue
        for kept, noised in operands(node):
            alpha, rest = _root_times(kept), _root_times(noised)
            if alpha is None or rest is None or not is_binary(rest, ast.Sub):
                continue
            if number_in(rest.left) != 1 or text_of(rest.right) != text_of(alpha):
                continue
            made = _schedule(flow, alpha)
            if is_binary(made, ast.Sub) and number_in(made.left) == 1 and not _mentions_product(made):
                yield Remark(
                    node,
                    f"{short(node)} takes {short(alpha)} of 1 - beta, the share that one step keeps: t steps "
                    f"keep its cumulative product (line {cumulated[0].lineno})",
                )


def _root_times(node: ast.AST) -> ast.expr | None:
    """`a` in `a.sqrt() * x`, `torch.sqrt(a) * x` or `a**0.5 * x`."""
    for one in (node.left, node.right) if is_binary(node, ast.Mult) else ():
        if is_method(one, "sqrt"):
            return one.args[0] if one.args else one.func.value
        if is_binary(one, ast.Pow) and number_in(one.right) == 0.5:
            return one.left
    return None


def _schedule(flow: Flow, node: ast.AST) -> ast.AST:
    """What an indexed value was computed as, also where a buffer holds it."""
    for _ in range(8):
        node = flow.value(node)
        found = buffer_of(flow.program, node)
        if found is not None:
            node = found
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif is_method(node, "view", "reshape", "unsqueeze", "to", "gather", "index_select"):
            node = node.func.value
        else:
            break
    return node


def _mentions_product(node: ast.AST) -> bool:
    return any(is_method(one, "cumprod") for one in ast.walk(node))
