"""Names by which a program picks parameters, and the names that its parameters have. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.objects.saved_parts import trained_and_not_saved
from probe.diagnose.code.finders.sequences.adapters import (
    adapters_frozen,
    merged_in_each_pass,
    merged_without_its_scale,
)
from probe.diagnose.code.finders.weights.frozen_layers import new_layer_frozen
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import module_classes
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    LONGEST_CONSTANT,
    compares,
    is_attribute,
    is_method,
    is_name,
    is_own,
    is_string,
    last_word,
    short,
)

RULES = Rules("loop")
_INNER = {
    "TransformerEncoderLayer": ("self_attn", "in_proj_weight", "in_proj_bias", "out_proj", "linear1", "linear2", "norm1", "norm2", "dropout"),
    "TransformerDecoderLayer": ("self_attn", "multihead_attn", "in_proj_weight", "in_proj_bias", "out_proj", "linear1", "linear2", "norm1", "norm2", "norm3"),
    "TransformerEncoder": ("layers", "norm"), "TransformerDecoder": ("layers", "norm"),
    "Transformer": ("encoder", "decoder", "layers", "self_attn", "multihead_attn", "in_proj_weight", "out_proj", "linear1", "linear2", "norm1", "norm2", "norm3", "norm"),
    "MultiheadAttention": ("in_proj_weight", "in_proj_bias", "out_proj", "q_proj_weight", "k_proj_weight", "v_proj_weight", "bias_k", "bias_v"),
    "LSTM": ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l", "_reverse"), "GRU": ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l", "_reverse"),
    "RNN": ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l", "_reverse"), "LSTMCell": ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), "GRUCell": ("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
}
"""What is in the names of parameters of torch's own modules beside `weight` and `bias`."""
_WALKS = ("named_parameters", "named_modules", "named_children")


@RULES.add("name-of-no-parameter", "what is picked by that name is nothing, or all parameters are left in the other group", "compare with the names that named_parameters() gives")
def _of_no_parameter(program: Program) -> Iterator[Remark]:
    """A text that is searched in the names of parameters, and that no parameter of the program can have in its name."""
    known = _known_names(program)
    if known is None:
        return
    flow = flow_of(program)
    remarked: set[str] = set()
    for node in program.everywhere(ast.Compare, ast.Call):
        searched = _searched(flow, node)
        if searched is None:
            continue
        texts, small = searched
        beside = [text for one in _alternatives(program, node) if one is not node and (found := _searched(flow, one)) is not None for text in found[0]]
        norms = [text for text in (*texts, *beside) if re.search("norm|ln|rms|gamma|scale", text, re.I) and not _unknown(text, known, small)]  # names of several models
        for text in texts:
            unknown = _unknown(text, known, small)
            if unknown and text not in remarked and ("norm" not in text.lower() or (_has_norms(program) and not norms)):
                remarked.add(text)
                part = unknown[0] if len(unknown[0]) <= LONGEST_CONSTANT else f"{unknown[0][: LONGEST_CONSTANT - 1]}…"
                yield Remark(node, f"{short(node)} looks for {part!r}, and no module or parameter of the program has that in its name")


def _searched(flow: Flow, node: ast.AST) -> tuple[list[str], bool] | None:
    """The texts that are searched in the name of a parameter, and whether the name is put in small letters first."""
    if isinstance(node, ast.Compare) and compares(node, ast.In, ast.NotIn):
        wanted, name = node.left, node.comparators[0]
    elif isinstance(node, ast.Call) and is_method(node, "startswith", "endswith") and len(node.args) == 1:
        wanted, name = node.args[0], node.func.value
    else:
        return None
    small = is_method(name, "lower", "casefold")
    if is_method(name, "lower", "casefold"):
        name = name.func.value
    return (list(_texts(flow, wanted)), small) if is_name(name) and _is_of_parameter(flow, name) else None


def _alternatives(program: Program, node: ast.AST) -> list[ast.expr]:
    """The conditions that one is an alternative of."""
    around = program.parent.get(node)
    return around.values if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.Or) else []


def _unknown(text: str, known: frozenset[str], small: bool) -> list[str]:
    """The parts of a text that no name has in it."""
    parts = [part for part in text.split(".") if part and not part.isdigit()]
    return [part for part in parts if not any(part in (one.lower() if small else one) for one in known)]


def _has_norms(program: Program) -> bool:
    """Whether the program has layers that normalize, by their names."""
    return any("Norm" in (last_word(call.func) or "") for call in program.calls())


def _is_of_parameter(flow: Flow, name: ast.Name) -> bool:
    """Whether a variable goes through the names that named_parameters() gives."""
    found = flow.bindings(name)
    around = list(flow.program.parents(name))
    for one in found:
        over = one.node.iter if isinstance(one.node, (ast.For, ast.comprehension)) else None
        inside = one.node in around or flow.program.parent.get(one.node) in around
        if inside and is_method(over, *_WALKS) and one.place == 0:
            return True
    return False


def _texts(flow: Flow, node: ast.expr) -> Iterator[str]:
    """The text that an expression is, or each text of the list that it goes through."""
    if is_string(node):
        yield node.value
    elif isinstance(node, (ast.Tuple, ast.List)):
        yield from (element.value for element in node.elts if is_string(element))
    elif is_name(node):
        for given in flow.passed(node):
            if is_string(given) or isinstance(given, (ast.Tuple, ast.List)):
                yield from _texts(flow, given)
        for one in flow.bindings(node):
            over = one.node.iter if isinstance(one.node, (ast.For, ast.comprehension)) else None
            listed = flow.value(over)
            if isinstance(listed, (ast.List, ast.Tuple, ast.Set)):
                yield from (element.value for element in listed.elts if is_string(element))


def _known_names(program: Program) -> frozenset[str] | None:
    """All that may stand in the name of a parameter; None where models come from elsewhere."""
    known = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "module", "_orig_mod"}
    if not any(True for _ in module_classes(program)):
        return None
    for name in {program.called(call) for call in program.calls()}:
        library, _, last = name.rpartition(".")
        if name.split(".")[0] in ("torchvision", "timm", "transformers", "peft", "torchaudio", "torch_geometric", "segmentation_models_pytorch"):
            return None
        if library == "torch.nn":
            known.update(_INNER.get(last, ()))
        elif library.startswith("torch.nn.utils") and ("norm" in last or "parametriz" in last):
            known.update(("parametrizations", "original", "weight_g", "weight_v", "weight_orig", "weight_u"))
    for of in module_classes(program):
        known.update(node.attr for node in ast.walk(of) if is_own(node) and isinstance(node.ctx, ast.Store))
        if any(last_word(getattr(node, "func", None)) in ("setattr", "from_pretrained") for node in ast.walk(of)):
            return None
    return _merged(known, program)


def _strings_in(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if is_string(one)}


def _merged(known: set[str], program: Program) -> frozenset[str]:
    """With the keys of dictionaries of modules, and texts that name layers."""
    for call in program.calls():
        if last_word(call.func) in ("ModuleDict", "ParameterDict", "OrderedDict", "register_parameter", "register_buffer", "add_module") or is_attribute(call.func, "update"):
            known |= _strings_in(call) | {one.arg for one in call.keywords if one.arg}
    return frozenset(known)


@RULES.add("shape-of-no-parameter", "a group of parameters is empty, and all of them have the settings of the other one", "ask for two axes: p.dim() >= 2 picks the matrices")
def _of_no_shape(program: Program) -> Iterator[Remark]:
    """Parameters are picked by more axes than any of the program has."""
    if _known_names(program) is None or any("Conv" in (word := last_word(call.func) or "") or word == "Bilinear" or (word == "Parameter" and any(isinstance(one, ast.Call) and len(one.args) > 2 for one in ast.walk(call) if one is not call)) for call in program.calls()):
        return
    for node in program.everywhere(ast.Compare):
        axes = node.left.func.value if is_method(node.left, "dim") else node.left.value if isinstance(node.left, ast.Attribute) and node.left.attr == "ndim" else None
        least = node.comparators[0]
        known = least.value if isinstance(least, ast.Constant) and len(node.ops) == 1 else None
        if axes is None or not isinstance(axes, ast.Name) or (isinstance(node.ops[0], ast.Gt), isinstance(node.ops[0], ast.GtE), known) not in ((True, False, 2), (False, True, 3)):
            continue
        over = [one.iter for around in program.parents(node) for one in ([around] if isinstance(around, (ast.For, ast.comprehension)) else getattr(around, "generators", [])) if axes.id in {each.id for each in ast.walk(one.target) if isinstance(each, ast.Name)}]
        found = [one for each in over for one in ast.walk(each)]
        names = {one.id for one in found if isinstance(one, ast.Name)}
        found += [one for each in program.everywhere(ast.Assign) if names & {last_word(target) for target in each.targets} for one in ast.walk(each.value)]
        if any(is_method(one, "named_parameters", "parameters") for one in found):
            yield Remark(node, f"{short(node)} holds for no parameter: each of the program's has one or two axes")
            return


RULES.add(
    "trained-and-not-saved",
    "what is loaded is not the model that was scored: it has the weights from before for all that was trained beside the adapter",
    "freeze all before the adapters are put in: model.requires_grad_(False); or save all that requires a gradient",
)(trained_and_not_saved)
RULES.add(
    "merged-without-its-scale",
    "the merged model is not the one that was trained: its adapter is as many times too weak or too strong",
    "multiply by the same number: weight += scale * (B @ A)",
)(merged_without_its_scale)
RULES.add(
    "new-layer-frozen",
    "what the rest has learned goes through a layer of random numbers, and only the adapters can make up for it",
    "let the new layers learn too: leave them out of what is frozen (PEFT: modules_to_save)",
)(new_layer_frozen)
RULES.add(
    "adapters-frozen",
    "the adapters keep their first values, which change nothing: only what is thawed afterwards is trained",
    "freeze the network first, and put the adapters into it then",
)(adapters_frozen)
RULES.add(
    "merged-in-each-pass",
    "the frozen weights move away from what they were, by all merges so far together: what is scored and trained is another network each time",
    "take the product out again (weight -= scale * (B @ A)), or merge a copy",
)(merged_in_each_pass)
