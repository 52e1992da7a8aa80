"""Utilization, memory, power, clocks and errors of the GPUs that a process uses, from NVML.

Called by the server, never in the job: NVML is the driver's library, and a call may take milliseconds.
Without `nvidia-ml-py` or a driver there are no rows. Values that a device does not report are NULL. Tested
against a stand-in with the same functions, not yet on real devices. Any thread of the server, one at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base import clock

RETRY_S = 300.0
"""Between two attempts to load NVML."""
REASONS = {
    0x2: "applications clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "temperature (software)", 0x40: "temperature (hardware)", 0x80: "power brake",
    0x100: "display clocks",
}
"""Why clocks are reduced, by NVML's bit (nvml.h, nvmlClocksEventReason*); 0x1 is an idle device."""


class Devices:
    """NVML, loaded on first use."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._next_s = 0.0
        self._lock = threading.Lock()

    def rows(self, pid: int, number: Callable[[], int | None]) -> list[dict[str, Any]]:
        """Rows of process.gpu for the devices of a process: those on which NVML lists its pid, else the
        device with that number, because in a container NVML reports the host's pids."""
        with self._lock:
            if not self._load():
                return []
            try:
                count = int(self._nvml.nvmlDeviceGetCount())
            except self._nvml.NVMLError:
                return []
            found = ((place, self._call("nvmlDeviceGetHandleByIndex", place)) for place in range(count))
            handles = {place: handle for place, handle in found if handle is not None}
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

    def _call(self, name: str, *arguments: Any) -> Any:
        """The result of one function; None where the device, the driver or the library does not support
        it."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None

    def _pids(self, handle: Any) -> set[int]:
        found = self._call("nvmlDeviceGetComputeRunningProcesses", handle) or []
        return {int(one.pid) for one in found}

    def _row(self, place: int, handle: Any) -> dict[str, Any]:
        call, nvml = self._call, self._nvml
        name = call("nvmlDeviceGetName", handle)
        used = call("nvmlDeviceGetUtilizationRates", handle)
        memory = call("nvmlDeviceGetMemoryInfo", handle)
        power = call("nvmlDeviceGetPowerUsage", handle)
        errors = call(
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
            "temperature_c": call(
                "nvmlDeviceGetTemperature", handle, getattr(nvml, "NVML_TEMPERATURE_GPU", 0)
            ),
            "sm_clock_mhz": call("nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
            "throttled": self._throttled(handle),
            "ecc_errors": errors,
        }

    def _throttled(self, handle: Any) -> str | None:
        bits = self._call("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        found = [text for bit, text in REASONS.items() if bits and bits & bit]
        return ", ".join(found) or None
