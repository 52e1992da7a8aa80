"""Layers of a model that stand in each other's place, and what they compute that nothing uses. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import commented, forwards, module_classes
from probe.diagnose.code.program import Binding, Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    is_read,
    iterated,
    last_word,
    names_of,
    names_set,
    own,
    own_nodes,
    parameters,
    returned,
    short,
    text_of,
)

RULES = Rules("model")
_LEARNED = ("Linear", "Conv", "LSTM", "GRU", "RNN", "Embedding", "BatchNorm", "LayerNorm", "GroupNorm", "Bilinear", "Multihead", "Transformer")
"""Beginnings of the layers of torch.nn that have parameters or statistics."""
_MIXING = ("Linear", "Conv", "Bilinear", "LazyLinear", "LazyConv")
_PASSES = ("ReLU", "GELU", "Dropout", "LeakyReLU", "Tanh", "Sigmoid", "SiLU", "ELU", "MaxPool", "AvgPool")
_FUNCTIONS = ("relu", "gelu", "dropout", "leaky_relu", "tanh", "sigmoid", "silu", "elu", "max_pool2d", "contiguous")
_CELLS = frozenset({"GRUCell", "LSTMCell", "RNNCell", "GRU", "LSTM", "RNN"})
_CELL, _HIDDEN = re.compile(r"^(c|cell|cn|c_n|cx|c_t|c0|c_0|cell_state)$", re.I), re.compile(r"^(h|hidden|hn|h_n|hx|h_t|h0|h_0|hidden_state)$", re.I)
_MAINTAINED = ("eval", "train", "to", "cuda", "cpu", "load_state_dict", "requires_grad_", "parameters", "named_parameters", "half", "float", "state_dict")
"""What is done with a network without an input."""
_GIVING_ITSELF = ("eval", "train", "to", "cuda", "cpu", "requires_grad_", "half", "float")
"""Of these, what gives the network itself."""
_BY_NAME = ("getattr", "_modules", "named_children", "children", "modules", "named_modules", "__getattr__", "vars", "__dict__")
"""What reaches the layers of a module without their names."""


def _layers(program: Program, of: ast.ClassDef) -> dict[str, str]:
    """The attributes of a module that are made once, each by one call of a layer of torch.nn; with its class."""
    made: dict[str, list[str]] = {}
    for node in ast.walk(of):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) else [node.value] * len(parts)
            for part, value in zip(parts, values, strict=False):
                each = value.elt if isinstance(value, (ast.GeneratorExp, ast.ListComp)) and isinstance(target, ast.Tuple) else value
                if is_own(part):
                    made.setdefault(part.attr, []).append(program.called(each).removeprefix("torch.nn."))
    return {name: kinds[0] for name, kinds in made.items() if len(kinds) == 1 and kinds[0].rpartition(".")[0] == "" and kinds[0]}


@RULES.add(
    "one-norm-for-several-layers",
    "in training each is normalized by its own batch, in evaluation by a mixture of them all: the scores of evaluation are wrong",
    "give each layer a BatchNorm of its own",
)
def _shared_norm(program: Program) -> Iterator[Remark]:
    """One BatchNorm that stands behind several layers: its running statistics are those of none."""
    flow = flow_of(program)
    for of in module_classes(program):
        layers = _layers(program, of)
        norms = {name for name, kind in layers.items() if kind.startswith(("BatchNorm", "SyncBatchNorm", "LazyBatchNorm"))}
        norms = {name for name in norms if not _without_statistics(program, of, name)}
        for method in (one for one in of.body if isinstance(one, Function)) if norms else ():
            yield from _behind_many(program, layers, norms, method)
            behind: dict[str, dict[str, ast.Call]] = {}
            for call in own(method, ast.Call):
                if not is_own(call.func) or call.func.attr not in norms or len(call.args) != 1:
                    continue
                before = _layer_before(flow, layers, call.args[0])
                if before is None:
                    continue
                others = behind.setdefault(call.func.attr, {})
                first = next((name for name, other in others.items() if name != before and not _either(program, call, other)), None)
                if first is not None and len(others) == 1:
                    yield Remark(call, f"self.{call.func.attr} is one BatchNorm, and stands behind self.{first} (line {others[first].lineno}) and self.{before}: its running mean and variance are those of neither")
                others.setdefault(before, call)


def _behind_many(program: Program, layers: dict[str, str], norms: set[str], method: Function) -> Iterator[Remark]:
    """A BatchNorm in a loop over the layers of a ModuleList, one after the other."""
    for call in own(method, ast.Call):
        if not is_own(call.func) or call.func.attr not in norms or len(call.args) != 1 or not isinstance(call.args[0], ast.Call):
            continue
        before = call.args[0].func
        for loop in (one for one in program.loops(call)[:1] if isinstance(one, ast.For)):
            over = iterated(loop)
            drawn = loop.target.elts[1] if isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2 else loop.target
            if isinstance(before, ast.Name) and is_name(drawn, before.id) and is_own(over) and layers.get(over.attr) == "ModuleList":
                yield Remark(call, f"self.{call.func.attr} is one BatchNorm, and stands behind each layer of self.{over.attr}: its running mean and variance are those of none")


@RULES.add(
    "one-layer-in-two-places",
    "the two places share weights and running statistics, which were meant to be two layers' own",
    "make a new layer for each place",
)
def _two_places(program: Program) -> Iterator[Remark]:
    """A layer with weights or statistics that stands twice in one Sequential."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) != "torch.nn.Sequential":
            continue
        names = [one for one in call.args if isinstance(one, ast.Name) or is_own(one)]
        for one in names:
            first = next(other for other in names if text_of(other) == text_of(one))
            made = flow.value(one)
            kind = program.called(made).removeprefix("torch.nn.")
            if first is not one and kind.startswith(_LEARNED) and program.called(made).startswith("torch.nn."):
                yield Remark(one, f"{text_of(one)} is one {kind}, and stands twice in {short(call, 50)}")
                break


def _without_statistics(program: Program, of: ast.ClassDef, name: str) -> bool:
    """Whether a BatchNorm keeps no running statistics."""
    made = [node.value for node in ast.walk(of) if isinstance(node, ast.Assign) and any(is_own(one) and one.attr == name for one in node.targets)]
    return any(isinstance(one, ast.Call) and argument(one, "track_running_stats") is not None for one in made)


def _layer_before(flow: Flow, layers: dict[str, str], node: ast.AST) -> str | None:
    """The layer with weights, an attribute of self, whose output a value is but for activations."""
    for _ in range(6):
        node = flow.value(node)
        if not isinstance(node, ast.Call) or not node.args:
            return None
        kind = layers.get(node.func.attr, "") if is_own(node.func) else ""
        if is_own(node.func) and kind.startswith(_MIXING):
            return node.func.attr
        passes = kind.startswith(_PASSES) or (last_word(node.func) in _FUNCTIONS and flow.program.called(node).startswith("torch."))
        if not passes:
            return None
        node = node.args[0]
    return None


def _either(program: Program, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes stand in different branches of one `if`, or behind a return of the first one's."""
    around = dict(_ways(program, other))
    for at, child in _ways(program, one):
        if at in around and isinstance(at, (ast.If, ast.IfExp)):
            return around[at] is not child
    return any(isinstance(at, ast.If) and any(isinstance(last, ast.Return) for last in at.body[-1:]) for at in program.parents(other))


def _ways(program: Program, node: ast.AST) -> Iterator[tuple[ast.AST, object]]:
    """The nodes around a node, each with the branch of it that the node is in."""
    child = node
    for at in program.parents(node):
        branch: object = child
        if isinstance(at, ast.If):
            branch = "body" if child in at.body else "orelse"
        yield at, branch
        child = at


@RULES.add(
    "layer-in-anothers-place",
    "the two places share one layer's weights, and the other layer is never trained",
    "call the other one in its place",
)
def _in_anothers_place(program: Program) -> Iterator[Remark]:
    """Numbered layers of which one is called twice and its neighbour never, in one forward."""
    flow = flow_of(program)
    for of in module_classes(program):
        layers = _layers(program, of)
        unused = [name for name, kind in layers.items() if not flow.attributes.get(name) and _has_weights(program, kind)]
        if not unused or any(last_word(one) in _BY_NAME for one in ast.walk(of) if isinstance(one, (ast.Name, ast.Attribute))):
            continue
        if program.method(of, "forward") is None or any(of.name in [last_word(base) for base in other.bases] for other in program.everywhere(ast.ClassDef)):
            continue
        for name in unused:
            alike = {
                other for other, kind in layers.items() if other != name and kind == layers[name]
                and ((_numbered(name) and _numbered(other) == _numbered(name)) or _made_by(of, other) == _made_by(of, name) != "")
            }
            for method in (one for one in of.body if isinstance(one, Function)):
                calls = [one for one in own(method, ast.Call) if is_own(one.func) and one.func.attr in alike]
                twice = next((two for one in calls for two in calls if two is not one and _after(two, one) and text_of(one.func) == text_of(two.func) and not _either(program, two, one)), None)
                if twice is not None:
                    yield Remark(twice, f"{text_of(twice.func)} is called a second time, and self.{name}, a {layers[name]} too, is never called")
                    break


def _made_by(of: ast.ClassDef, name: str) -> str:
    """The call that makes a layer, as the program writes it; empty where it has no arguments."""
    for node in ast.walk(of):
        if not isinstance(node, ast.Assign):
            continue
        each = node.value.elt if isinstance(node.value, (ast.GeneratorExp, ast.ListComp)) else node.value
        for target in node.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            known = len(parts) == 1 or each is not node.value
            if known and any(is_own(one) and one.attr == name for one in parts) and isinstance(each, ast.Call) and each.args:
                return text_of(each)
    return ""


def _numbered(name: str) -> str:
    """The name of a numbered layer without its number (`conv` of `conv1`, `bn_x` of `bn2_x`); else empty."""
    return re.sub(r"\d", "#", name) if len(re.findall(r"\d+", name)) == 1 else ""


def _has_weights(program: Program, kind: str) -> bool:
    of = program.classes.get(kind, [])
    return kind.startswith(_LEARNED) or (len(of) == 1 and program.is_module_class(of[0]) and "torch.nn" not in kind)


def _after(one: ast.AST, other: ast.AST) -> bool:
    return (getattr(one, "lineno", 0), getattr(one, "col_offset", 0)) > (getattr(other, "lineno", 0), getattr(other, "col_offset", 0))


@RULES.add(
    "layer-output-unread",
    "what the layer computes is in no output: it has no effect, and its weights get no gradient",
    "use the result where it was meant, or leave the layer out",
)
def _output_unread(program: Program) -> Iterator[Remark]:
    """The output of a layer that forward keeps under a name which nothing reads."""
    for method in forwards(program):
        of = program.class_of(method)
        layers = _layers(program, of) if of is not None else {}
        for node in own(method, ast.Assign):
            target, value = node.targets[0], node.value
            if len(node.targets) != 1 or not is_name(target) or target.id.startswith("_") or not isinstance(value, ast.Call):
                continue
            while last_word(value.func) in _FUNCTIONS and value.args and isinstance(value.args[0], ast.Call) and program.called(value).startswith("torch."):
                value = value.args[0]
            kind = layers.get(value.func.attr, "") if is_own(value.func) else ""
            known = kind.startswith((*_LEARNED, "Dropout", "ReLU", "Sequential")) and not kind.startswith(("LSTM", "GRU", "RNN"))
            read = any(is_read(one, target.id) or (isinstance(one, (ast.Global, ast.Nonlocal)) and target.id in one.names) for one in ast.walk(method))
            hidden = any(is_call(one, "locals", "eval", "exec", "vars") for one in ast.walk(method))
            once = len([one for one in ast.walk(method) if is_name(one, target.id)]) == 1
            if known and value.args and not read and not hidden and once and _goes_on(node, method) and not commented(program, method, target.id):
                yield Remark(node, f"{target.id} = {short(value)} is read nowhere in {method.name}")


def _goes_on(node: ast.stmt, method: Function) -> bool:
    """Whether a method returns a value after a statement."""
    return any(value is not None and _after(value, node) for value in returned(method))


@RULES.add(
    "residual-of-itself",
    "the sum is twice the output: the input does not go round the layers",
    "keep the input before the layers: residual = x at the start of forward",
)
def _of_itself(program: Program) -> Iterator[Remark]:
    """A shortcut that was taken from the output to which it is added."""
    flow = flow_of(program)
    for method in forwards(program):
        for node in own(method, ast.BinOp):
            if not is_binary(node, ast.Add) or not isinstance(node.left, ast.Name) or not isinstance(node.right, ast.Name):
                continue
            if node.left.id == node.right.id and method.name == "forward":
                yield Remark(node, f"{text_of(node)} adds {node.left.id} to itself")
                continue
            for kept, output in ((node.left, node.right), (node.right, node.left)):
                one = flow.given(kept)
                if one is None or not isinstance(one.whole, ast.Name) or one.whole.id != output.id:
                    continue
                now, then = flow.given(output), flow.given(one.whole)
                if isinstance(now, Binding) and now is then and now.how == "assign" and not _changed(method, output.id, one.node, node):
                    yield Remark(node, f"{text_of(node)} adds {output.id} to itself: {kept.id} has been the same tensor since line {getattr(one.node, 'lineno', 0)}, which stands after the layers")


def _changed(method: Function, name: str, start: ast.AST, end: ast.AST) -> bool:
    """Whether a tensor may be changed in place between two nodes."""
    return any(
        (is_method(one) and is_name(one.func.value, name) and one.func.attr.endswith("_"))
        or (isinstance(one, ast.AugAssign) and name in names_of(one.target))
        or (isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript) and name in names_of(one.targets[0].value))
        for one in own_nodes(method) if _after(one, start) and _after(end, one)
    )


@RULES.add(
    "cell-without-its-past",
    "each position is read with the first state: the layer remembers nothing of the positions before",
    "take the new state in each pass: h = self.cell(x[:, t], h)",
)
def _without_its_past(program: Program) -> Iterator[Remark]:
    """A recurrent cell that is called for each position with a state that the loop never sets."""
    for call in program.calls():
        kind = program.kind_name(call.func).rpartition(".")[2]
        if kind not in _CELLS or len(call.args) < 2:
            continue
        loop = next((one for one in program.loops(call) if isinstance(one, ast.For)), None)
        steps = names_of(loop.target) if loop is not None else set()
        if loop is None or not _over_positions(loop) or not any(_picks(one, steps) for one in ast.walk(call.args[0])):
            continue
        states = [one for one in ast.walk(call.args[1]) if isinstance(one, ast.Name)]
        plain = isinstance(call.args[1], ast.Name) or (isinstance(call.args[1], ast.Tuple) and len(states) == len(call.args[1].elts))
        inside = {name for part in loop.body for name in names_set(part)}
        if plain and states and not inside & {one.id for one in states} and not any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(loop)):
            changed = any(isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and names_of(one.value) & {state.id for state in states} for one in ast.walk(loop))
            if not changed:
                yield Remark(call, f"{short(call)} is given {text_of(call.args[1])} as it was before the loop of line {loop.lineno}, for every position")


def _over_positions(loop: ast.For) -> bool:
    """Whether a loop counts the positions of a sequence: range(x.size(1)), range(T)."""
    return is_call(loop.iter, "range") and isinstance(loop.target, ast.Name)


def _picks(node: ast.AST, steps: set[str]) -> bool:
    """Whether a node takes one position of a sequence: x[:, t], x[t]."""
    return isinstance(node, ast.Subscript) and bool(names_of(node.slice) & steps)


@RULES.add(
    "network-never-called",
    "what it was made and loaded for does not happen: the training goes on without it",
    "call it where its output is meant",
)
def _never_called(program: Program) -> Iterator[Remark]:
    """A second network that is moved, loaded and put in a mode, beside one that is trained, and never called."""
    flow = flow_of(program)
    if not any(is_method(one, "backward") for one in program.calls()):
        return
    for key, values in flow.assigned():
        made = _new_network(program, values)
        if made is None:
            yield from _kept_and_never_called(flow, key, values)
            continue
        reads = flow.reads.get(key, [])
        kept = [program.parent.get(one) for one in reads]
        used = [one for one in kept if not is_attribute(one, *_MAINTAINED) or _gives_itself_on(program, one)]
        readied = any(is_attribute(one, "eval", "load_state_dict", "requires_grad_") for one in kept)
        if not reads or used or not readied or _reached_by_name(flow, key):
            continue
        others = [one for one, more in flow.assigned() if one != key and (other := _new_network(program, more)) is not None and program.called(other) == program.called(made)]
        called = any(isinstance(program.parent.get(one), ast.Call) for other in others for one in flow.reads.get(other, []))
        if called:
            yield Remark(made, f"{key[1]} is made and put in place, and never called: no loss and no output depends on it")


def _gives_itself_on(program: Program, attribute: ast.AST) -> bool:
    """Whether what a method gives, which is the network itself, is used: `return network.eval()`."""
    call = program.parent.get(attribute)
    return is_attribute(attribute, *_GIVING_ITSELF) and isinstance(call, ast.Call) and not isinstance(program.parent.get(call), ast.Expr)


def _kept_and_never_called(flow: Flow, key: Key, values: list[ast.expr | None]) -> Iterator[Remark]:
    """An attribute of an object that is a network which it was given, beside another such network that it calls."""
    program, given = flow.program, values[0] if len(values) == 1 else None
    function = program.function_of(given) if isinstance(given, ast.Name) else None
    if function is None or function.name != "__init__" or not isinstance(given, ast.Name) or given.id not in [one.arg for one in parameters(function)]:
        return
    around = [program.parent.get(one) for one in flow.reads.get(key, [])]
    if not any(is_attribute(one, "eval") for one in around) or not all(is_attribute(one, *_MAINTAINED) for one in around) or _reached_by_name(flow, key):
        return
    others = [one for one in flow.bound if one[0] is key[0] and one != key and is_name(flow.only(one)) and one[1].startswith("self.")]
    called = any(isinstance(user := program.parent.get(use), ast.Call) and user.func is use for one in others for use in flow.reads.get(one, []))
    asked = key[1].removeprefix("self.")
    passed = sum(is_read(one, given.id) for one in ast.walk(function))
    if called and passed == 1:
        yield Remark(given, f"self.{asked} is put into eval mode and never called: no loss and no output depends on it")


def _new_network(program: Program, values: list[ast.expr | None]) -> ast.Call | None:
    """The call that makes a module of the program, which is all that a variable is given."""
    made = values[0] if len(values) == 1 else None
    while is_method(made, "to", "cuda", "eval", "float") and not program.called(made):
        made = made.func.value
    return made if isinstance(made, ast.Call) and program.called(made) in program.classes and program.family(made) == "module" else None


def _reached_by_name(flow: Flow, key: Key) -> bool:
    """Whether an attribute of self, or a variable of a file, may be read from elsewhere."""
    if key[1].startswith("self."):
        name = key[1].removeprefix("self.")
        return sum(one.attr == name for one in flow.program.everywhere(ast.Attribute)) > len(flow.reads.get(key, [])) + 1
    return len(flow.program.sources) > 1 and isinstance(key[0], ast.Module)


@RULES.add(
    "part-written-twice",
    "the first values are lost, and the part that was meant keeps what it was filled with",
    "give the second one its own part: pe[:, 1::2] = torch.cos(...)",
)
def _written_twice(program: Program) -> Iterator[Remark]:
    """The same part of a tensor that is set in two statements in a row."""
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Subscript) or not isinstance(target.value, (ast.Name, ast.Attribute)) or not _has_slice(target.slice):
            continue
        later = next(iter(program.after(node)), None)
        if not isinstance(later, ast.Assign) or text_of(later.targets[0]) != text_of(target) or text_of(later.value) == text_of(node.value):
            continue
        calls = [one for value in (node.value, later.value) for one in ast.walk(value) if isinstance(one, ast.Call)]
        if last_word(target.value) not in {last_word(one) for one in ast.walk(later.value)} and len(calls) > 1:
            yield Remark(later, f"{short(later, 50)} writes over line {node.lineno}, which set the same part")


def _has_slice(index: ast.AST) -> bool:
    return any(isinstance(one, ast.Slice) for one in ast.walk(index))


@RULES.add(
    "cell-for-hidden",
    "the model reads the memory cell where its output was meant, and its numbers are not bounded",
    "an LSTM gives and takes (h, c): out, (h, c) = lstm(x, (h, c))",
)
def _cell_for_hidden(program: Program) -> Iterator[Remark]:
    """The two states of an LSTM under each other's names."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        call = node.value
        if not isinstance(call, ast.Call) or _recurrent(flow, call) not in ("LSTM", "LSTMCell"):
            continue
        whole = _recurrent(flow, call) == "LSTM"
        target = node.targets[0]
        pair: ast.AST | None = target
        if whole:
            pair = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None
        given = call.args[1] if len(call.args) > 1 else None
        for states in (pair, given):
            parts = states.elts if isinstance(states, ast.Tuple) and len(states.elts) == 2 else []
            if parts and _CELL.search(last_word(parts[0])) and _HIDDEN.search(last_word(parts[1])):
                yield Remark(node, f"{short(node)}: the first of the two states is the hidden one, and {text_of(parts[0])} stands there")
                break


def _recurrent(flow: Flow, call: ast.Call) -> str:
    return flow.program.called(flow.maker(call)).removeprefix("torch.nn.")


@RULES.add(
    "state-of-the-first-layer",
    "the layers above it get no gradient from this use, and what they compute is lost",
    "take the last layer's state: h[-1]",
)
def _first_layer(program: Program) -> Iterator[Remark]:
    """The state of the first layer of a recurrent network with several, taken for that of all."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        call, target = node.value, node.targets[0]
        if not isinstance(call, ast.Call) or _recurrent(flow, call) not in ("LSTM", "GRU", "RNN") or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            continue
        made = flow.maker(call)
        layers = flow.number(argument(made, "num_layers", 2)) if made is not None else None
        one_way = made is not None and argument(made, "bidirectional") is None
        state = target.elts[1].elts[0] if isinstance(target.elts[1], ast.Tuple) and target.elts[1].elts else target.elts[1]
        if layers is None or layers < 2 or not one_way or not isinstance(state, ast.Name):
            continue
        uses = [one for one in own_nodes(program.scope(node)) if is_read(one, state.id) and (given := flow.given(one)) is not None and given.node is node]
        taken = [program.parent.get(one) for one in uses]
        first = [one for one in taken if isinstance(one, ast.Subscript) and text_of(one.slice) == "0"]
        outputs = target.elts[0]
        unused = not isinstance(outputs, ast.Name) or not any(is_read(one, outputs.id) for one in own_nodes(program.scope(node)))
        if first and len(first) == len(taken) and unused:
            yield Remark(first[0], f"{text_of(first[0])} is the state of the first of {layers:g} layers of {short(made) if made is not None else ''}")
