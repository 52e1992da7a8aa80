"""Checkpoint of all ranks: one folder with a part of each rank, which appears when all parts are complete.

Each rank copies its state at the same boundary, and writes it while the training continues: its own states,
its shards (`shards`), and of replicated tensors only those that differ from rank 0's. `gathering` combines
the parts. `begin` runs on the training thread, `finish` on the request's. Standard library only.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from probe.base.errors import ActionRefused, BadRequest, ProbeError
from probe.base.isolation import capture, describe
from probe.base.rank_sets import as_text
from probe.checkpoint.all_ranks import SAME, is_shard
from probe.checkpoint.loading import names_in
from probe.job.actions.action import Site, enumerated, only
from probe.job.actions.saving import shards, snapshot, verified_file
from probe.job.actions.saving.gathering import WAIT_S, Gathering, described
from probe.job.actions.saving.plain_data import leaves
from probe.job.actions.saving.save import MOST_LISTED, Save

_REPLICAS = 0.5
"""If at least this share of the parameters is the same on two ranks, the ranks are replicas, and the other
parameters have drifted apart."""
_KEPT = ("rank", "step", "drifted", "nonfinite")
"""Fields of each rank's record that the manifest keeps."""


class SaveOfAll:
    """This rank's side of a checkpoint of all ranks."""

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        if "folder" in arguments:
            raise ActionRefused(
                "periodic checkpoints are made by one rank only",
                hint="Name the rank: `probe JOB/0 checkpoint DIR --every N`.",
            )
        only(arguments, "path", "overwrite", "name")
        if arguments.get("overwrite"):
            raise BadRequest(
                "`overwrite` is for a single file: in a folder every checkpoint of all ranks has its own name"
            )
        if site.world_size is None:
            raise ActionRefused("the number of ranks of the job is unknown")
        folder = verified_file.place_of(arguments["path"], "folder")
        name = site.together_name or arguments.get("name")
        if not isinstance(name, str) or not name.replace("-", "").isalnum():
            raise BadRequest("a checkpoint of all ranks needs `name`, the same on all ranks")
        self._gathering = Gathering(folder, name, site.rank, site.world_size)
        self._part = _Part(site, self._gathering)

    def begin(self) -> None:
        """Copy this rank's state, at the same boundary on all ranks."""
        _, error = capture(self._part.begin)
        if error is not None:
            self._gathering.fail(_words(error))
            raise error

    def finish(self) -> dict[str, Any]:
        """Write this rank's part, wait for the others', and answer. Raises a `ProbeError` that names the rank
        without a part if there is no new checkpoint."""
        answer, error = capture(self._finish)
        if error is not None:
            self._gathering.fail(_words(error))
            raise error
        found: dict[str, Any] = answer
        return found

    def _finish(self) -> dict[str, Any]:
        part = self._part
        answer = part.finish()
        self._gathering.tell(part.record(answer))
        path, manifest = self._gathering.conclude(time.monotonic() + WAIT_S, self._manifest)
        size = sum(file["bytes"] for file in manifest["files"])
        step = manifest["step"]
        at = "the job" if step is None else f"step {step}"
        return {
            **answer,
            "what": f"{at} of all {manifest['world_size']} ranks is saved in {path} "
            f"({verified_file.size_text(size)}, verified)",
            "notes": [*answer["notes"], *manifest["notes"]],
            "path": str(path), "bytes": size, "part": part.path.name, "part_bytes": answer["bytes"],
            "sharded": manifest["sharded"], "world_size": manifest["world_size"],
        }

    def _manifest(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """The manifest of all parts."""
        pieces = [piece for record in records for piece in record["pieces"]]
        files = [file for record in records for file in record["files"]]
        sharded = any(record["sharded"] for record in records)
        if sharded:
            shards.write_metadata(self._gathering.making, pieces, records[0]["paths"])
            files.append(described(self._gathering.making / shards.METADATA))
        nonfinite = [record["rank"] for record in records if record["nonfinite"]]
        notes = _about(records)
        if nonfinite:
            notes.append(
                f"parameters are NaN or infinite on rank {as_text(nonfinite)}: `latest` still names the "
                "checkpoint before"
            )
        first = records[0]
        return {
            "step": first["step"], "epoch": first["epoch"], "torch": first["torch"], "job": first["job"],
            "sharded": sharded, "newest": not nonfinite, "notes": notes,
            "own_parameters": any(record["own_parameters"] for record in records), "files": files,
            "ranks": [{name: record[name] for name in _KEPT} for record in records],
        }

    def give_up(self) -> None:
        """Drop this rank's part: the request was cancelled, or probe leaves the process."""
        self._part.give_up()
        if self._part.began:
            self._gathering.fail("probe left the process, or the process ended")
        else:
            self._gathering.leave()


class _Part(Save):
    """One rank's part, in the form of a checkpoint of one rank."""

    def __init__(self, site: Site, gathering: Gathering) -> None:
        super().__init__(site, gathering.part)
        self._gathering = gathering
        gathering.stop = self._given_up
        self._shards = shards.Shards(site.rank)
        self._extra: dict[str, Any] = {}
        self._paths: dict[str, list[Any]] = {}
        self._pieces: list[dict[str, Any]] = []
        self._more: dict[str, Any] | None = None
        self._drifted: list[str] = []
        self._own_parameters = False
        self.began = False

    def _snapshot(self) -> snapshot.Snapshot:
        self.began = True
        return snapshot.take(self._site, self._shards)

    def _before_writing(self, taken: snapshot.Snapshot) -> None:
        if self._shards.local and self._site.rank == 0:
            self._extra, self._paths = shards.flattened(_for_torch(taken))
        if taken.on_host:
            self._compare(taken)
        else:  # on the training thread, which must not wait
            self._own_parameters = self._site.rank != 0
        _, error = capture(self._write_shards)
        if error is not None:
            raise verified_file.failure(self._gathering.folder, "writing the shards", error)

    def _write_shards(self) -> None:
        self._pieces, self._more = self._shards.write(self._gathering.making, self._extra, self._given_up)
        self._extra = {}
        self._shards.local = {}

    def _compare(self, taken: snapshot.Snapshot) -> None:
        """Leave out the tensors that rank 0 writes."""
        names = names_in(taken.content)
        own = leaves({name: taken.content[name] for name in names})
        if self._site.rank == 0:
            if self._gathering.world_size > 1:
                self._gathering.tell_leaves(own)
            return
        first = self._gathering.leaves_of_first(time.monotonic() + WAIT_S)
        same = {path for path, value in own.items() if first.get(path) == value}
        parameters = [
            path for name, keys in taken.parameters.items() for path in (f"{name}.{key}" for key in keys)
            if path in own
        ]
        alike = [path for path in parameters if path in same]
        comparable = [path for path in parameters if path not in same and path in first]
        drifted = [path for path in comparable if first[path][0] == own[path][0]]
        if parameters and len(alike) >= _REPLICAS * len(parameters):
            self._drifted = drifted
        self._own_parameters = len(alike) < len(parameters)
        for name in names:
            taken.content[name] = _without(taken.content[name], name, same)

    def record(self, answer: dict[str, Any]) -> dict[str, Any]:
        """What the other ranks need to know about this part."""
        files = [{"name": self.path.name, "bytes": answer["bytes"], "sha256": answer["sha256"]}]
        return {
            "step": answer["step"], "epoch": answer["epoch"],
            "torch": str(sys.modules["torch"].__version__), "job": self._site.settings.name,
            "files": files + ([] if self._more is None else [self._more]), "pieces": self._pieces,
            "paths": self._paths, "sharded": bool(self._shards.keys), "drifted": self._drifted,
            "nonfinite": answer["nonfinite"], "own_parameters": self._own_parameters,
        }


def _for_torch(taken: snapshot.Snapshot) -> dict[str, Any]:
    """Models and optimizers in the form of torch.distributed.checkpoint."""
    found: dict[str, Any] = {}
    for name, kind in taken.kinds.items():
        if kind == "module":
            found[name] = dict(taken.content[name])
        elif kind == "optimizer":
            found[name] = shards.optimizer_by_names(taken.content[name], taken.numbered.get(name, {}))
    return found


def _without(value: Any, path: str, same: set[str]) -> Any:
    """Plain data with a placeholder for each tensor whose path is among these."""
    import torch

    if isinstance(value, torch.Tensor):
        return SAME if path in same else value
    if isinstance(value, dict):
        kept: Any = type(value)()
        for key, item in value.items():
            kept[key] = _without(item, f"{path}.{key}", same)
        if hasattr(value, "_metadata"):
            kept._metadata = value._metadata
        return kept
    if type(value) in (list, tuple) and not is_shard(value):
        return type(value)(_without(item, f"{path}[{number}]", same) for number, item in enumerate(value))
    return value


def _about(records: list[dict[str, Any]]) -> list[str]:
    """Notes about the parts: replicas that differ, ranks at different steps."""
    notes = []
    steps = {record["step"] for record in records}
    if len(steps) > 1:
        notes.append(
            f"the ranks have different steps: {sorted(steps, key=str)}; the folder has rank 0's"
        )
    for record in records:
        if record["drifted"]:
            notes.append(
                f"rank {record['rank']} has other values than rank 0 in {enumerated(record['drifted'], 3)}, "
                "while other parameters are the same: the replicas have drifted apart. Each rank's own "
                "values are saved"
            )
    return notes[:MOST_LISTED]


def _words(error: BaseException) -> str:
    return error.message if isinstance(error, ProbeError) else describe(error)
