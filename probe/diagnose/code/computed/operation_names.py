"""Names of operations: one for each, however a library calls it. Pure; standard library only."""

from __future__ import annotations

PREFIXES = (
    "torch.nn.functional.", "torch.nn.init.", "torch.linalg.", "torch.special.", "torch.Tensor.", "torch.fft.", "torch.", "numpy.linalg.",
    "numpy.random.", "numpy.", "math.", "random.", "operator.", "builtins.", "copy.",
)
"""Of these libraries an operation keeps only its last word."""
OTHER_NAMES = {
    "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "square": "square", "absolute": "abs", "amax": "max", "amin": "min",
    "concatenate": "cat", "concat": "cat", "truediv": "div", "floordiv": "floordiv", "negative": "neg", "power": "pow", "mm": "matmul", "bmm": "matmul",
    "fmax": "maximum", "fmin": "minimum", "clip": "clamp", "less": "lt", "greater": "gt", "greater_equal": "ge", "less_equal": "le", "equal": "eq",
    "not_equal": "ne", "transpose": "transpose", "swapaxes": "transpose", "nanmean": "mean", "nansum": "sum", "nanstd": "std", "fabs": "abs",
    "arccos": "acos", "take_along_dim": "gather", "take_along_axis": "gather", "logical_not": "invert", "dot": "matmul", "sigmoid_": "sigmoid",
    "exponential_": "exponential", "expand_dims": "unsqueeze", "vstack": "cat", "hstack": "cat", "mse": "mse_loss",
}
NAMED = {"axis": "dim", "axes": "dim", "keepdims": "keepdim", "dims": "dim", "ddof": "correction"}
"""Names of arguments, by what others call them."""
LAYERS = {
    "Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu",
    "LeakyReLU": "leaky_relu", "ELU": "elu", "Softplus": "softplus", "Dropout": "dropout", "Flatten": "flatten", "Identity": "identity",
    "MSELoss": "mse_loss", "L1Loss": "l1_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss", "BCELoss": "binary_cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "KLDivLoss": "kl_div",
    "CTCLoss": "ctc_loss", "GaussianNLLLoss": "gaussian_nll_loss", "PoissonNLLLoss": "poisson_nll_loss", "CosineSimilarity": "cosine_similarity",
    "CosineEmbeddingLoss": "cosine_embedding_loss", "TripletMarginLoss": "triplet_margin_loss", "MarginRankingLoss": "margin_ranking_loss",
    "BCEWithLogits": "binary_cross_entropy_with_logits", "HingeEmbeddingLoss": "hinge_embedding_loss", "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss", "Hardtanh": "hardtanh", "Softsign": "softsign", "Mish": "mish", "PixelShuffle": "pixel_shuffle",
}
"""Classes of torch.nn whose objects are operations, given what they were made with by name."""
OF_A_TYPE = {
    "torch.Tensor": "FloatTensor", "torch.FloatTensor": "FloatTensor", "torch.DoubleTensor": "FloatTensor", "torch.LongTensor": "LongTensor",
    "torch.IntTensor": "LongTensor",
}
"""Classes of tensors that take a list or an array of numbers, by the operation that this is."""
IN_PLACE = frozenset({
    "add_", "sub_", "mul_", "div_", "clamp_", "masked_fill_", "copy_", "zero_", "fill_", "relu_", "neg_", "exp_", "lerp_", "sqrt_", "pow_",
    "index_add_", "scatter_", "scatter_add_", "index_fill_", "addcmul_", "addcdiv_", "clip_", "unsqueeze_", "squeeze_", "sigmoid_", "tanh_",
    "abs_", "log_", "bernoulli_", "uniform_", "normal_", "round_", "floor_", "remainder_", "transpose_", "t_", "masked_scatter_", "index_copy_",
})
"""Methods of a tensor that change it."""
SAME_OBJECT = frozenset({
    "to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16", "requires_grad_", "apply", "share_memory", "compile", "type",
})
"""Methods of a module that give the module itself."""


def operation(dotted: str, listed: bool = False) -> str:
    """The one name of what a library calls by a dotted name; the dotted name of all other things. `listed`: whether it is given
    one list or array."""
    if listed and dotted in OF_A_TYPE:
        return OF_A_TYPE[dotted]
    for prefix in PREFIXES:
        if dotted.startswith(prefix):
            rest = dotted[len(prefix):]
            return method(rest) if "." not in rest and not rest[:1].isupper() else dotted
    return dotted


def method(name: str) -> str:
    """The one name of a method."""
    plain = name[:-1] if name in IN_PLACE else name
    return OTHER_NAMES.get(plain, plain)
