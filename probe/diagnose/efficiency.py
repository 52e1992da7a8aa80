"""Model FLOPs utilization (MFU): the training's arithmetic as a share of a device's peak rate.

    mfu = 6 · N · tokens / (seconds · peak)

N counts the parameters used, including frozen ones; 6 = 2 for the forward and 4 for the backward of each
parameter and token (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", 2.1; PaLM, appendix B).
The estimate ignores attention over long sequences, recomputation, and that frozen parameters need no
gradient; every answer says that it is estimated from the parameter count. Pure; standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

FLOPS_PER_PARAMETER_AND_TOKEN = 6.0
SOURCE = "estimated from the parameter count: 6 · parameters · tokens / (time · peak)"


class Peak(NamedTuple):
    """Dense peak rates of one device in TFLOP/s, from the vendor's data sheet (without sparsity). `half`:
    bfloat16 and float16 on tensor cores; `tf32`: float32 matrix products that may use tensor cores; `single`:
    float32 without tensor cores. None: not specified."""

    half: float | None
    tf32: float | None
    single: float | None


PEAKS: tuple[tuple[str, Peak], ...] = (
    ("B200", Peak(2250.0, 1100.0, 75.0)),  # NVIDIA DGX B200 data sheet, an eighth
    ("H200", Peak(989.4, 494.7, 67.0)),  # NVIDIA H200 data sheet, SXM
    ("H100 PCIe", Peak(756.0, 378.0, 51.0)),  # NVIDIA H100 data sheet, PCIe
    ("H100 NVL", Peak(835.0, 417.5, 60.0)),  # NVIDIA H100 data sheet, NVL
    ("GH200", Peak(989.4, 494.7, 67.0)),  # NVIDIA GH200 data sheet
    ("H100", Peak(989.4, 494.7, 67.0)),  # NVIDIA H100 data sheet, SXM
    ("H800", Peak(989.4, 494.7, 67.0)),  # as H100: only its links are slower
    ("A100", Peak(312.0, 156.0, 19.5)),  # NVIDIA A100 data sheet
    ("A800", Peak(312.0, 156.0, 19.5)),  # as A100: only its links are slower
    ("L40S", Peak(362.0, 183.0, 91.6)),  # NVIDIA L40S data sheet
    ("L4", Peak(121.0, 60.0, 30.3)),  # NVIDIA L4 data sheet
    ("A10G", Peak(70.0, 35.0, 31.5)),  # AWS G5 instances; NVIDIA has no sheet of it
    ("A10", Peak(125.0, 62.5, 31.2)),  # NVIDIA A10 data sheet
    ("A30", Peak(165.0, 82.0, 10.3)),  # NVIDIA A30 data sheet
    ("V100", Peak(125.0, None, 15.7)),  # NVIDIA V100 data sheet, SXM2; float16 only
    ("T4", Peak(65.0, None, 8.1)),  # NVIDIA T4 data sheet; float16 only
)
"""Peaks by a part of the device's name; the first match counts."""
_NO_BFLOAT16 = frozenset({"V100", "T4"})


def peak_tflops(device: str | None, dtype: str | None, precision: str | None = None) -> float | None:
    """Peak rate of a device for a precision, in TFLOP/s; None if unknown.

    `precision`: torch's `get_float32_matmul_precision()`; `highest` keeps float32 off the tensor cores."""
    words = (device or "").replace("-", " ")
    found = next((entry for entry in PEAKS if _has(words, entry[0])), None)
    if found is None:
        return None
    name, peak = found
    if dtype == "float16" or (dtype == "bfloat16" and name not in _NO_BFLOAT16):
        return peak.half
    if dtype == "float32":
        return peak.tf32 if precision in ("high", "medium") else peak.single
    return None


def _has(words: str, name: str) -> bool:
    return f" {name} " in f" {words} "


def mfu(parameters: float | None, tokens_per_s: float | None, peak: float | None) -> float | None:
    """Model FLOPs utilization of one device as a ratio; None if an argument is unknown.

    `peak` in TFLOP/s, `tokens_per_s` of this device alone."""
    if not parameters or not tokens_per_s or not peak:
        return None
    return FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens_per_s / (peak * 1e12)
