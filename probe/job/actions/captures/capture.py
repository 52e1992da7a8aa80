"""Capture: inputs, outputs and gradients of one module, for some steps.

Uses torch's global forward hooks, filtered by identity, registered and removed at boundaries only; nothing is
put on the module itself. Values are copied to the host at once; the gradient of an output is read on the
graph node that made the output, and returned unchanged. The request's thread writes the file. HOT PATH
for the captured steps: every call of that module. Standard library only; torch inside functions.
"""

from __future__ import annotations

import difflib
import sys
import weakref
from pathlib import Path
from typing import Any

from probe.base.errors import ActionFailed, ActionRefused, BadRequest, NotUndoable
from probe.job.actions.action import Action, Site, whole_number
from probe.job.actions.captures.artifact import Artifact
from probe.job.actions.captures.profile import usual_step_s, waiting_s
from probe.job.actions.saving.plain_data import memory_available_bytes
from probe.job.actions.saving.verified_file import size_text

MOST_STEPS = 20
MOST_BYTES = 1 << 30
MOST_RATIO = 0.2
"""Fraction of the available memory; the smaller of the two limits applies."""
MOST_CALLS = 10_000
DEEPEST = 6
"""Levels of nested containers."""
VERSION = 1
_ATOMS = (type(None), bool, int, float, complex, str)
_LONGEST_TEXT = 200


class Capture(Action):
    """Keep the tensors of the module at path `module` for the next `steps` steps, in the file `path`."""

    name = "capture"
    takes = ("module", "steps", "path", "overwrite")
    writes = "path"

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._wanted = whole_number(arguments, "steps", 1, least=1, most=MOST_STEPS)
        if site.compiles:
            raise ActionRefused(
                "the job compiles its model (torch.compile): hooks would not see the module, or would "
                "change the graph",
                hint="Run it without torch.compile to capture tensors.",
            )
        self._path, module = _named(arguments.get("module"), site)
        self._module = weakref.ref(module)
        self.waits_s = waiting_s(self._wanted, usual_step_s(site))
        self._artifact = Artifact(arguments)
        available = memory_available_bytes()
        self._most_bytes = MOST_BYTES if available is None else min(MOST_BYTES, int(MOST_RATIO * available))
        self._artifact.check_room(1 << 20)
        self._handles: list[Any] = []
        self._steps: list[dict[str, Any]] = []
        self._open: list[tuple[Any, dict[str, Any]]] = []
        self._bytes = 0
        self._full = False
        self._calls = 0
        self._unkept: dict[str, int] = {}

    # At a boundary ----------------------------------------------------------

    def begin(self) -> None:
        """Register the hooks."""
        module: Any = sys.modules["torch.nn.modules.module"]
        guard = self.site.guard
        self._handles = [
            module.register_module_forward_pre_hook(guard("capture", self._before_call)),
            module.register_module_forward_hook(guard("capture", self._after_call), with_kwargs=True),
        ]
        self.standing = True
        self._begin_step()

    def at_boundary(self) -> None:
        """A step has ended."""
        step = self.site.recorder.counted_step
        if step is not None and step == self._steps[-1]["step"]:
            return
        if len(self._steps) >= self._wanted or self._full:
            self._end()
        else:
            self._begin_step()

    def _begin_step(self) -> None:
        self._open.clear()
        self._steps.append(
            {"step": self.site.recorder.counted_step, "calls": [], "parameters": {}, "parameter_grads": {}}
        )

    def _end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._open.clear()
        self.standing = self.undoable = False
        self.finished.set()

    # Within a step ----------------------------------------------------------

    def _before_call(self, module: Any, args: Any) -> None:
        if module is not self._module() or self._foreign():
            return
        if self._full or self._calls >= MOST_CALLS:
            self._full = True
            return
        self._calls += 1
        recorder = self.site.recorder
        call = {
            "micro_step": recorder.micro_step, "recompute": recorder.phase == "backward",
            "inputs": self._kept(args), "kwargs": {}, "outputs": None, "output_grads": [],
        }
        self._steps[-1]["calls"].append(call)
        self._open.append((module, call))

    def _after_call(self, module: Any, _args: Any, named: Any, output: Any) -> None:
        if not self._open or module is not self._module() or self._foreign():
            return
        _, call = self._open.pop()
        if named:
            call["kwargs"] = self._kept(named)
        call["outputs"] = self._kept(output)
        for tensor in _tensors(output):
            self._watch_gradient(tensor, call["output_grads"])

    def _foreign(self) -> bool:
        """Whether this is neither the training thread nor one that runs its backward."""
        recorder = self.site.recorder
        return recorder.elsewhere() and recorder.phase != "backward"

    def _watch_gradient(self, tensor: Any, gradients: list[Any]) -> None:
        """Hook the graph node, not the tensor: modifying the tensor in place changes its node."""
        place = len(gradients)
        gradients.append(None)
        node, number = tensor.grad_fn, tensor.output_nr
        if node is None:
            return

        def arrived(grads: Any) -> None:
            if self.standing and grads[number] is not None:
                gradients[place] = self._kept(grads[number])

        node.register_prehook(self.site.guard("capture", arrived))

    def before_step(self, optimizer: Any) -> None:
        """Parameters as this step used them, and their gradients as the optimizer is about to use them."""
        module = self._module()
        if module is None or self._full:
            return
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        record = self._steps[-1]
        for name, parameter in module.named_parameters():
            if id(parameter) in own:
                record["parameters"][name] = self._kept(parameter)
                record["parameter_grads"][name] = self._kept(parameter.grad)

    # Copies -----------------------------------------------------------------

    def _kept(self, value: Any, depth: int = DEEPEST) -> Any:
        """A value as plain data: tensors copied to the host, other objects as text."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if issubclass(kind, sys.modules["torch"].Tensor):
            return self._copy(value)
        if depth and issubclass(kind, dict):
            return {str(key): self._kept(item, depth - 1) for key, item in dict.items(value)}
        if depth and issubclass(kind, (list, tuple)):
            base = list if issubclass(kind, list) else tuple
            return base(self._kept(item, depth - 1) for item in base.__iter__(value))
        if depth and hasattr(kind, "__dataclass_fields__") and kind.__dictoffset__:
            return {name: self._kept(item, depth - 1) for name, item in vars(value).items()}
        return self._described(kind)

    def _copy(self, tensor: Any) -> Any:
        torch: Any = sys.modules["torch"]
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not plain or tensor.is_meta or tensor.is_quantized:
            return self._described(type(tensor))
        size_bytes = tensor.numel() * tensor.element_size()
        if self._bytes + size_bytes > self._most_bytes:
            self._full = True
            return None
        self._bytes += size_bytes
        return tensor.detach().to("cpu", copy=True)

    def _described(self, kind: type) -> str:
        self._unkept[kind.__qualname__] = self._unkept.get(kind.__qualname__, 0) + 1
        return f"<{kind.__qualname__}>"[:_LONGEST_TEXT]

    # The request's thread ---------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Write the file and describe its content."""
        if not self.finished.is_set():
            raise ActionFailed(
                f"{self._wanted} steps did not end within {self.waits_s:.0f} s; no file is written",
                hint="`probe PID diagnose` says what the training is doing.",
            )
        steps, self._steps = self._steps, []
        if not self._calls:
            numbers = _numbers(steps)
            raise ActionFailed(
                f"{self._path} was not called in {numbers}; no file was written",
                hint="python.torch_trace lists the modules that are called.",
            )
        size_bytes = self._write(steps)
        calls = "1 call" if self._calls == 1 else f"{self._calls} calls"
        return {
            "what": f"captured {self._path} in {_numbers(steps)}, {calls}, into {self._artifact}",
            "notes": self._notes(steps), "path": str(self._artifact.path), "bytes": size_bytes,
            "module": self._path, "steps": len(steps), "calls": self._calls, "tensor_bytes": self._bytes,
        }

    def _write(self, steps: list[dict[str, Any]]) -> int:
        torch: Any = sys.modules["torch"]
        self._artifact.check_room(self._bytes + (1 << 20))
        module = self._module()
        content = {
            "probe_capture": VERSION, "module": self._path,
            "class": type(module).__qualname__ if module is not None else None, "steps": steps,
        }

        def write(path: Path) -> None:
            torch.save(content, str(path))

        return self._artifact.fill(write)

    def _notes(self, steps: list[dict[str, Any]]) -> list[str]:
        calls = [call for step in steps for call in step["calls"]]
        notes = []
        if self._full:
            limit = f"{size_text(self._most_bytes)} or {MOST_CALLS} calls"
            notes.append(f"it stopped at its limit, {limit}: the last step is incomplete")
        elif len(steps) < self._wanted:
            notes.append(f"{len(steps)} of {self._wanted} steps: it was undone")
        recomputed = sum(call["recompute"] for call in calls)
        if recomputed:
            notes.append(f"{recomputed} calls are recomputations in backward (activation checkpointing)")
        if not any(grad is not None for call in calls for grad in call["output_grads"]):
            notes.append("no gradient reached its outputs")
        if not any(step["parameters"] for step in steps):
            notes.append("no optimizer stepped its parameters")
        if self._unkept:
            kinds = ", ".join(f"{count} of {name}" for name, count in sorted(self._unkept.items()))
            notes.append(f"kept by name only: {kinds}")
        return notes

    # Ends -------------------------------------------------------------------

    def undo(self) -> str:
        """End it at once; the steps captured so far are still written."""
        if not self.standing:
            raise NotUndoable("the capture has ended; its file stays")
        self._end()
        return f"the capture ended after {len(self._steps)} of {self._wanted} steps"

    def cancel(self) -> None:
        """End it. torch copies its tables of module hooks before it iterates, so any thread may remove
        hooks."""
        if self.standing:
            self._end()
        self._steps = []


def _named(path: object, site: Site) -> tuple[str, Any]:
    """The module at that path; an error lists similar ones."""
    if not isinstance(path, str) or not path:
        raise BadRequest(
            "`module` must be the path of a module, as in python.torch_trace", hint="Such as `blocks.0.mlp`."
        )
    module = site.module(path)
    if module is not None:
        return path, module
    known = site.module_paths()
    near = difflib.get_close_matches(path, known, n=4, cutoff=0.5)
    near += [one for one in known if one.endswith(f".{path}") and one not in near][:4]
    some = ", ".join(sorted(known)[:12]) or "none yet: no model was called so far"
    raise ActionRefused(
        f"there is no module {path!r}",
        hint=f"Modules like it: {', '.join(near)}." if near else f"There are {some}.",
    )


def _tensors(value: Any, depth: int = DEEPEST) -> list[Any]:
    """The tensors in an output, in order."""
    kind = type(value)
    if issubclass(kind, sys.modules["torch"].Tensor):
        return [value]
    items: Any = ()
    if issubclass(kind, dict):
        items = dict.values(value)
    elif issubclass(kind, list):
        items = list.__iter__(value)
    elif issubclass(kind, tuple):
        items = tuple.__iter__(value)
    elif hasattr(kind, "__dataclass_fields__") and kind.__dictoffset__:
        items = vars(value).values()
    return [one for item in items for one in _tensors(item, depth - 1)] if depth else []


def _numbers(steps: list[dict[str, Any]]) -> str:
    known = [step["step"] for step in steps if step["step"] is not None]
    if not known:
        return f"{len(steps)} steps"
    return f"step {known[0]}" if len(known) == 1 else f"steps {known[0]} to {known[-1]}"
