"""What kind of thing a call of a library gives, by the name of what is called. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """What an expression gives: `family` is one of `FAMILIES`, `name` the dotted name of the class or
    function that made it (`torch.optim.adam.Adam` is written as it is imported: `torch.optim.Adam`)."""

    family: str
    name: str


FAMILIES: dict[str, str] = {
    "module": "an nn.Module", "loss": "a loss module of torch.nn", "optimizer": "an optimizer of torch.optim",
    "scheduler": "a learning rate scheduler", "loader": "a DataLoader", "sampler": "a sampler of a loader",
    "dataset": "a dataset", "tensor": "a tensor", "array": "a numpy array", "frame": "a pandas frame",
    "scaler": "a gradient scaler", "distribution": "a distribution of torch.distributions",
    "number": "a Python number", "string": "a str", "function": "a function or class of the program",
    "tuple": "a tuple, list or dict",
}
"""The families of kinds, with what they mean."""
_PREFIXES: tuple[tuple[str, str], ...] = (
    ("torch.optim.lr_scheduler.", "scheduler"), ("torch.optim.swa_utils.AveragedModel", "module"),
    ("torch.optim.swa_utils.SWALR", "scheduler"), ("torch.optim.", "optimizer"),
    ("torch.utils.data.distributed.", "sampler"), ("torch.distributions.", "distribution"),
    ("torch.nn.parallel.", "module"), ("torch.nn.functional.", "tensor"), ("torch.nn.init.", "tensor"),
    ("torch.nn.utils.", "tensor"),
)
_NOT_TENSORS = frozenset({
    "device", "load", "save", "no_grad", "enable_grad", "inference_mode", "autocast", "manual_seed",
    "Generator",
    "set_default_dtype", "set_num_threads", "get_num_threads", "compile", "Size", "is_tensor", "typename",
    "set_grad_enabled", "get_rng_state", "set_rng_state", "finfo", "iinfo", "numel", "allclose", "equal",
})


def made_by(name: str) -> Kind | None:
    """What calling an imported name gives."""
    last = name.rpartition(".")[2]
    capital = last[:1].isupper()
    for prefix, family in _PREFIXES:
        if name.startswith(prefix):
            return Kind(family, name) if capital != (family == "tensor") else None
    if name.startswith("torch.utils.data.") and capital:
        family = "loader" if last == "DataLoader" else "sampler" if last.endswith("Sampler") else "dataset"
        return Kind(family, name)
    if name.startswith("torch.nn.") and capital:
        if last == "Parameter":
            return Kind("tensor", name)
        return Kind("loss" if last.endswith("Loss") else "module", name)
    if last == "GradScaler":
        return Kind("scaler", name)
    if name.startswith("torch.") and name.count(".") == 1 and not capital and last not in _NOT_TENSORS:
        return Kind("tensor", name)
    if name.startswith("torch.special."):
        return Kind("tensor", name)
    if name.startswith("numpy.") and not capital and not name.startswith("numpy.random.seed"):
        return Kind("array", name)
    if name.startswith("pandas.") and last in ("DataFrame", "read_csv", "read_parquet", "concat", "merge"):
        return Kind("frame", name)
    return None
