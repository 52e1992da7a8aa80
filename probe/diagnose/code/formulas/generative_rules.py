"""Formulas of generative models: penalties, divergences, noise, and the order of the steps. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import is_model
from probe.diagnose.code.finders.axes.counted_places import one_place_counted
from probe.diagnose.code.finders.followed.first_inputs import determinant_at_the_first_input
from probe.diagnose.code.finders.followed.places_of_steps import place_for_step
from probe.diagnose.code.finders.followed.predicted_noise import prediction_read_as_another
from probe.diagnose.code.finders.images.scores_of_noise import moved_towards_the_noise
from probe.diagnose.code.finders.images.steps_of_schedules import sampled_by_another_schedule
from probe.diagnose.code.finders.objectives.densities_and_guidance import (
    averaged_determinant,
    untrained_guidance,
)
from probe.diagnose.code.finders.objectives.log_determinants import (
    of_the_last_layer,
    of_the_wrong_sign,
    of_what_is_thrown_away,
    summed_over_the_batch,
)
from probe.diagnose.code.finders.sizes.grids import ends_not_reached, even_steps_on_an_uneven_grid
from probe.diagnose.code.finders.training.unread import noise_of_the_data
from probe.diagnose.code.flow import DEPTH, Flow, flow_of
from probe.diagnose.code.formulas.score_rules import is_deviation
from probe.diagnose.code.model.modules import commented
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import exponent_of, terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    iterated,
    last_word,
    names_of,
    names_set,
    number_in,
    operands,
    own,
    parameters,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss, loss_name

RULES = Rules("model")
_DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "MSELoss", "L1Loss", "SmoothL1Loss", "binary_cross_entropy", "BCELoss")
_LOGARITHM = re.compile(r"^log_?(var|std|sigma|variance)|_log_?(var|std|sigma)$", re.I)


@RULES.add(
    "penalty-of-each-pixel",
    "the gradient at each pixel is pulled to length 1, and not that of the sample: the penalty is far too strong",
    "flatten it first: grad.flatten(1).norm(2, dim=1)",
)
def _of_each_pixel(program: Program) -> Iterator[Remark]:
    """A gradient penalty of images whose norm is taken over axis 1, the channels."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "norm", "sum") or program.called(call) not in ("", "torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm", "torch.sum"):
            continue
        source = program.operand(call)
        free = int(program.called(call) != "")
        over = argument(call, "dim", free if call.func.attr == "sum" else free + 1)
        if flow.number(over) != 1 or source is None:
            continue
        if call.func.attr == "sum":
            square = flow.value(source)
            source = square.left if is_binary(square, ast.Pow) else square.func.value if is_method(square, "pow", "square") else None
        taken = _derivative(program, flow, source)
        inputs = argument(taken, "inputs", 1) if taken is not None else None
        if inputs is not None and any(_for_images(program, one) for one in flow.origins(inputs)):
            yield Remark(call, f"{short(call)} is taken over axis 1 of the gradient of images, which is the channels")


def _derivative(program: Program, flow: Flow, node: ast.AST | None) -> ast.Call | None:
    """The call of autograd.grad whose first result a value is."""
    if isinstance(node, ast.Name):
        given = flow.given(node)
        if given is None or given.value is None:
            return None
        if given.place == 0 and isinstance(given.value, ast.Call):
            return given.value if program.called(given.value) == "torch.autograd.grad" else None
        node = given.whole
    if isinstance(node, ast.Subscript) and number_in(node.slice) == 0:
        value = flow.value(node.value)
        return value if isinstance(value, ast.Call) and program.called(value) == "torch.autograd.grad" else None
    return _derivative(program, flow, node) if isinstance(node, ast.Name) else None


def _for_images(program: Program, node: ast.AST) -> bool:
    """Whether a call draws one number for each image: torch.rand(n, 1, 1, 1)."""
    if not isinstance(node, ast.Call) or program.called(node) not in ("torch.rand", "torch.empty"):
        return False
    sizes = node.args[0].elts if len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List)) else node.args
    return len(sizes) >= 4 and all(number_in(one) == 1 for one in sizes[1:])


@RULES.add(
    "mean-not-squared",
    "means below 0 are rewarded without end: the codes drift away, and the divergence is none",
    "square the mean: -0.5 * sum(1 + logvar - mu.pow(2) - logvar.exp())",
)
def _not_squared(program: Program) -> Iterator[Remark]:
    """The divergence of a normal distribution from the standard one, whose mean stands there as it is."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Add, ast.Sub) or is_binary(program.parent.get(node), ast.Add, ast.Sub):
            continue
        signed = list(terms(flow, node))
        exponents = {text_of(inner): sign for sign, one in signed if (inner := exponent_of(program, one)) is not None}
        plain = [(sign, one) for sign, one in signed if isinstance(one, (ast.Name, ast.Attribute)) and text_of(one) in exponents]
        ones = [sign for sign, one in signed if number_in(one) == 1]
        rest = [(sign, one) for sign, one in signed if isinstance(one, (ast.Name, ast.Attribute)) and text_of(one) not in exponents]
        if not (len(signed) == 4 and len(exponents) == len(plain) == len(ones) == len(rest) == 1):
            continue
        if plain[0][0] == ones[0] == -exponents[text_of(plain[0][1])] and rest[0][0] == -ones[0]:
            yield Remark(node, f"{short(node)} is the divergence from a standard normal distribution, and {text_of(rest[0][1])} is not squared in it")


@RULES.add(
    "one-noise-for-the-batch",
    "all samples of a batch are moved the same way, so the noise says nothing of a sample, and its mean does not come out",
    "draw it for each element: torch.randn_like(std)",
)
def _one_noise(program: Program) -> Iterator[Remark]:
    """A sample mean + deviation * noise whose noise has no axis for the batch."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for _, spread in operands(node) if is_binary(node, ast.Add) else ():
            for deviation, noise in operands(spread) if is_binary(spread, ast.Mult) else ():
                drawn = flow.value(noise)
                for _ in range(DEPTH):
                    if not (is_method(drawn, "to", "cuda", "item") and not program.called(drawn)):
                        break
                    drawn = flow.value(drawn.func.value)
                if program.called(drawn) == "torch.randn" and isinstance(drawn, ast.Call) and _is_one_row(drawn) and is_deviation(program, flow, deviation):
                    yield Remark(node, f"{short(node)} takes noise of {short(drawn)}, which has no axis for the samples")


def _is_one_row(drawn: ast.Call) -> bool:
    """Whether a call draws one number, or one for each feature."""
    one = drawn.args[0] if len(drawn.args) == 1 else None
    plain = isinstance(one, ast.Constant) or (isinstance(one, ast.Attribute) and is_name(one.value, "self"))
    return one is not None and plain and not says(one, "shape", "size")


@RULES.add(
    "steps-in-the-order-of-noising",
    "the noise is removed from the clean end: what is sampled stays noise",
    "count down: for t in reversed(range(T))",
)
def _order(program: Program) -> Iterator[Remark]:
    """A sampler of a diffusion model that starts from noise and counts its steps up."""
    if not any(is_method(one, "cumprod") for one in program.calls()):
        return
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        counted = iterated(loop)
        up = is_call(counted, "range") and isinstance(loop.target, ast.Name) and (
            len(counted.args) == 1 or (len(counted.args) == 2 and flow.number(counted.args[0]) in (0, 1))
        )
        if not up or not isinstance(loop.target, ast.Name):
            continue
        changed = {name for one in loop.body for name in names_set(one)}
        starts = [name for name in changed if _starts_as_noise(program, loop, name)]
        if len(starts) != 1 or not any(is_name(one, starts[0]) and isinstance(one.ctx, ast.Load) for one in ast.walk(loop)):
            continue
        step = loop.target.id
        turned = any(is_binary(one, ast.Sub) and step in names_of(one.right) and is_name(one.right, step) for one in ast.walk(loop))
        if not turned and _indexes_schedule(program, flow, loop, step):
            yield Remark(loop, f"{starts[0]} is noise before the loop, and {short(counted)} counts {step} up from the step with the least noise")


def _starts_as_noise(program: Program, loop: ast.For, name: str) -> bool:
    """Whether a variable is drawn at random before a loop, in its block, and changed in it by itself."""
    block = program.block(loop)
    before = block[: block.index(loop)] if loop in block else []
    drawn = [one for one in before if isinstance(one, ast.Assign) and is_name(one.targets[0], name)]
    found = drawn[-1].value if drawn else None
    while is_method(found, "to", "cuda") and not program.called(found):
        found = found.func.value
    if program.called(found) not in ("torch.randn", "torch.randn_like"):
        return False
    return any(isinstance(one, ast.Assign) and is_name(one.targets[0], name) for one in ast.walk(loop))


def _indexes_schedule(program: Program, flow: Flow, loop: ast.For, step: str) -> bool:
    """Whether a step is the index of the schedule's alphas or betas, in a loop or in a function that it calls."""
    if _reads_schedule(loop, _derived(loop, step)):
        return True
    for call in own(loop, ast.Call):
        function = program.local_function(call)
        if not isinstance(function, Function) or function.name == "forward":
            continue
        given = program.arguments(function, call)
        for one in parameters(function):
            if one.arg not in given or not names_of(given[one.arg]) & _derived(loop, step):
                continue
            turned = any(is_binary(part, ast.Sub) and is_name(part.right, one.arg) for part in ast.walk(function))
            if not turned and _reads_schedule(function, {one.arg}):
                return True
    return False


def _derived(loop: ast.For, step: str) -> set[str]:
    """A step, and the tensors that a loop fills with it."""
    found = {step}
    for one in ast.walk(loop):
        if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name) or step not in names_of(one.value):
            continue
        if any(is_method(part, "full", "tensor", "full_like", "ones") for part in ast.walk(one.value)):
            found.add(one.targets[0].id)
    return found


def _reads_schedule(scope: ast.AST, steps: set[str]) -> bool:
    return any(
        isinstance(one, ast.Subscript) and says(one.value, "beta", "alpha") and isinstance(one.slice, ast.Name) and one.slice.id in steps
        for one in ast.walk(scope)
    )


@RULES.add(
    "noise-never-given",
    "the network goes on with what has no noise in it: it is not trained for what was meant",
    "give the network the value with the noise",
)
def _never_given(program: Program) -> Iterator[Remark]:
    """A noised input, or a code that is drawn, that is computed for a loss and that nothing reads."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            target = node.targets[0]
            if len(node.targets) != 1 or not isinstance(target, ast.Name) or target.id.startswith("_") or not isinstance(node.value, (ast.BinOp, ast.Call)):
                continue
            if not _is_noised(program, flow, node.value) or any(is_name(one, target.id) and one is not target for one in ast.walk(scope)):
                continue
            later = [one for after in program.after(node) for one in ast.walk(after) if isinstance(one, ast.Call)]
            trained = any(is_loss(program, one) for one in later) and any(is_model(flow, one.func) for one in later)
            inside = isinstance(scope, Function) and scope.name == "forward" and any(is_own(one.func) for one in later)
            if (trained or inside) and not commented(program, scope, target.id):
                yield Remark(node, f"{short(node)} is read nowhere")


def _is_noised(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a sum of something and normal noise, here or in the function that computes it."""
    results = program.results(node)
    for whole in results or [flow.value(node)]:
        value = flow.value(whole)
        for _, noise in operands(value) if is_binary(value, ast.Add) else ():
            drawn = any(program.called(one) in ("torch.randn_like", "torch.randn") for one in flow.origins(noise))
            passed = any(program.called(one) in ("torch.randn_like", "torch.randn") for part in ast.walk(noise) if isinstance(part, ast.Name) for given in flow.passed(part) for one in flow.origins(given))
            if drawn or passed:
                return True
    return False


@RULES.add(
    "noise-in-the-target",
    "the network is asked for its own input, noise and all: it learns to copy",
    "compare its output with the clean input",
)
def _in_the_target(program: Program) -> Iterator[Remark]:
    """A network that gets a noised input, and whose output is compared with the same noised input."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) not in _DISTANCES or len(call.args) < 2:
            continue
        for output, target in (call.args[:2], call.args[1::-1]):
            made = flow.value(output)
            if not isinstance(made, ast.Call) or not is_model(flow, made.func) or len(made.args) != 1 or not isinstance(target, ast.Name):
                continue
            fed = made.args[0]
            given = flow.given(target)
            if isinstance(fed, ast.Name) and given is not None and flow.given(fed) is given and given.whole is not None and _is_noised(program, flow, given.whole) and not noise_of_the_data(program, call):
                yield Remark(call, f"{short(call)} compares the output with {target.id}, which has the noise of line {getattr(given.node, 'lineno', 0)} in it")
                break


@RULES.add(
    "logarithm-for-deviation",
    "the logarithm can be negative and is 0 for a variance of 1: the samples have another spread than the divergence says",
    "take the deviation: std = torch.exp(0.5 * logvar)",
)
def _logarithm(program: Program) -> Iterator[Remark]:
    """A sample mean + noise * deviation in which the logarithm of the variance stands for the deviation."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for _, spread in operands(node) if is_binary(node, ast.Add) else ():
            for deviation, noise in operands(spread) if is_binary(spread, ast.Mult) else ():
                drawn = program.called(flow.value(noise)) in ("torch.randn_like", "torch.randn")
                value = flow.value(deviation)
                of_layer = isinstance(value, ast.Call) and is_own(value.func) and program.local_function(value) is None
                plain = (isinstance(value, (ast.Name, ast.Attribute)) or of_layer) and not any(
                    is_method(one, "exp", "sqrt", "softplus") for given in flow.possible(deviation) for one in ast.walk(given)
                )
                if drawn and plain and _LOGARITHM.search(last_word(deviation)):
                    yield Remark(node, f"{short(node)} scales the noise by {text_of(deviation)} itself")


RULES.add(
    "determinant-averaged",
    "the likelihood is not that of the samples: how much they are stretched counts for one axis alone, and densities of different models cannot be compared",
    "sum the logarithms over the axes of a sample: log_scale.sum(dim=1)",
)(averaged_determinant)
RULES.add(
    "determinant-of-the-batch",
    "each sample is credited with how far the whole batch is stretched: the likelihood grows without bound with the batch, and is none",
    "sum over the axes of a sample alone: log_scale.sum(dim=1)",
)(summed_over_the_batch)
RULES.add(
    "determinant-of-the-last-layer",
    "all other layers stretch and shrink the samples for nothing: the likelihood is too high, and is none",
    "add them up: log_det = log_det + log_scale.sum(dim=1)",
)(of_the_last_layer)
RULES.add(
    "determinant-at-the-first-input",
    "what is added up says how each layer would stretch the first sample, and not what it was given: the likelihood is none",
    "ask each layer about its own input: log_det = log_det + layer.log_det(z); z = layer(z)",
)(determinant_at_the_first_input)
RULES.add(
    "determinant-of-what-is-thrown-away",
    "samples are never stretched, and the likelihood grows as if they were: the loss falls without bound, and nothing is learned of the data",
    "return what was multiplied: torch.cat([first, second * torch.exp(log_s) + shift], 1)",
)(of_what_is_thrown_away)
RULES.add(
    "place-for-step",
    "the network is told of another amount of noise than there is: it removes too little or too much of it",
    "give the network the step itself: model(x, steps[i])",
)(place_for_step)
RULES.add(
    "determinant-of-the-wrong-sign",
    "the loss falls without end as samples are squeezed to the middle of the base density: what is learned is no likelihood",
    "add the logarithm of what a sample is multiplied by on its way to the base density: log_prob(z) + log_scale.sum(dim=1)",
)(of_the_wrong_sign)
RULES.add(
    "guided-by-an-untrained-condition",
    "what stands for no condition has its first values, or was never seen: the guidance pushes samples away from noise",
    "drop the condition now and then in the training: torch.where(torch.rand(len(y)) < 0.1, null, y)",
)(untrained_guidance)


RULES.add(
    "sampled-by-another-schedule",
    "each step takes out another amount of noise than there is: samples stay noisy, or fade, however long the network is trained",
    "draw samples by the schedule of the training: one object, or one table, for both",
)(sampled_by_another_schedule)


RULES.add(
    "one-place-counted",
    "the likelihood is that of an image of one pixel: the layer gains or loses volume for almost nothing",
    "multiply it by height * width",
)(one_place_counted)
RULES.add(
    "moved-towards-the-noise",
    "samples go away from the data with each step: what is drawn is noise, and grows",
    "teach the score: target = -noise / sigma",
)(moved_towards_the_noise)
RULES.add(
    "even-steps-on-an-uneven-grid",
    "all steps together go past the data, or stop short of them, and each velocity is that of another time than the sample has reached",
    "go by the distance of the times: x = x + (times[i + 1] - times[i]) * model(x, times[i])",
)(even_steps_on_an_uneven_grid)
RULES.add(
    "end-never-reached",
    "samples are begun with another amount of noise than was meant, or keep some of it at the end",
    "raise both ends to one power, and undo it: (a ** (1 / rho) + t * (b ** (1 / rho) - a ** (1 / rho))) ** rho; high * (low / high) ** t",
)(ends_not_reached)
RULES.add(
    "prediction-read-as-another",
    "what is drawn is no sample, however well the network has learned: what it says is turned into something else at each step",
    "train and draw by one of them: compare with the noise, and take x0 = (x - sigma * noise) / alpha; or compare with alpha * noise - sigma * x0, and take x0 = alpha * x - sigma * v",
)(prediction_read_as_another)
