"""Devices: utilization, memory, power, clocks and errors of the GPUs that a process uses, from NVML.

Asked by the server, never in the job: NVML is the driver's own library and a call may take milliseconds. Used
where `nvidia-ml-py` is installed and a driver answers; else there are no rows. What a device does not tell is
NULL. Unrun on real devices so far; tested against a stand-in with the same functions. Any thread of the
server, one at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base import clock

RETRY_S = 300.0
"""Between two attempts to load NVML where it was not there."""
REASONS = {
    0x2: "applications clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "temperature (software)", 0x40: "temperature (hardware)", 0x80: "power brake",
    0x100: "display clocks",
}
"""Why clocks are held down, by NVML's bit (nvml.h, nvmlClocksEventReason*); 0x1 is an idle device."""


class Devices:
    """NVML, loaded when first asked."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._next_s = 0.0
        self._lock = threading.Lock()

    def rows(self, pid: int, number: Callable[[], int | None]) -> list[dict[str, Any]]:
        """Rows of process.gpu for the devices of a process: those that NVML lists it on, else the one of
        that number. In a container NVML knows other pids than we do."""
        with self._lock:
            if not self._load():
                return []
            try:
                count = int(self._nvml.nvmlDeviceGetCount())
            except self._nvml.NVMLError:
                return []
            handles = {place: handle for place in range(count) if (handle := self._handle(place)) is not None}
            used = [place for place, handle in handles.items() if pid in self._pids(handle)]
            if not used and handles:
                place = number()
                used = [place] if place in handles and place is not None else []
            return [self._row(place, handles[place]) for place in used]

    def _load(self) -> bool:
        if self._nvml is None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + RETRY_S
            try:
                import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
            except ImportError:
                return False
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:
                return False
            self._nvml = pynvml
        return self._nvml is not None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What one function answers; None where the device, the driver or the library does not have it."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None

    def _handle(self, place: int) -> Any:
        return self._ask("nvmlDeviceGetHandleByIndex", place)

    def _pids(self, handle: Any) -> set[int]:
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        return {int(one.pid) for one in found}

    def _row(self, place: int, handle: Any) -> dict[str, Any]:
        ask, nvml = self._ask, self._nvml
        name = ask("nvmlDeviceGetName", handle)
        used = ask("nvmlDeviceGetUtilizationRates", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        power = ask("nvmlDeviceGetPowerUsage", handle)
        errors = ask(
            "nvmlDeviceGetTotalEccErrors", handle, getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),
            getattr(nvml, "NVML_VOLATILE_ECC", 0),
        )
        return {
            "t_ns": clock.wall_ns(), "device": place,
            "name": name.decode() if isinstance(name, bytes) else name,
            "utilization_ratio": None if used is None else used.gpu / 100,
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "power_w": None if power is None else power / 1000,
            "temperature_c": ask(
                "nvmlDeviceGetTemperature", handle, getattr(nvml, "NVML_TEMPERATURE_GPU", 0)
            ),
            "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
            "throttled": self._throttled(handle),
            "ecc_errors": errors,
        }

    def _throttled(self, handle: Any) -> str | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        found = [text for bit, text in REASONS.items() if bits and bits & bit]
        return ", ".join(found) or None
