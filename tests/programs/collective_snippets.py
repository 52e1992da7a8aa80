"""Rank RANK of a gloo job of WORLD_SIZE that runs snippets of its own between two steps, as probe does.

Each is run on all ranks at the same boundary, in the group that `boundary.own_group` makes; RESULT has
what came of each, and the numbers of collectives that the job's own groups counted before and after.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from probe.job.introspection.snippet_names import Scope
from probe.job.snippets.evaluation import Evaluation, parse

SNIPPETS: dict[str, str] = {
    "alike": (
        "t = torch.full((3,), float(dist.get_rank() + 1)); dist.all_reduce(t)\n"
        "found = [None] * dist.get_world_size(); dist.all_gather_object(found, {'rank': dist.get_rank()})\n"
        "a = torch.arange(4.0) + 10 * dist.get_rank(); b = torch.empty(4); dist.all_to_all_single(b, a)\n"
        "dist.broadcast(a, 1); dist.barrier()\n"
        "parts = [torch.empty(1) for _ in found] if dist.get_rank() == 0 else None\n"
        "dist.gather(t[:1], parts, dst=0)\n"
        "f'{t.tolist()} {found} {b.tolist()} {a.tolist()} {parts}'"
    ),
    "sizes": "t = torch.ones(3 + 100_000 * dist.get_rank()); dist.all_reduce(t)",
    "types": "dist.all_reduce(torch.ones(4, dtype=(torch.float32, torch.int64)[dist.get_rank()]))",
    "operations": "t = torch.ones(2); dist.all_reduce(t) if dist.get_rank() else dist.broadcast(t, 0)",
    "roots": "dist.broadcast(torch.ones(2), dist.get_rank())",
    "exchange": (
        "r = dist.get_rank(); dist.all_to_all_single(torch.empty(4), torch.ones(4), [1 + r, 3 - r], [2, 2])"
    ),
    "one raises": "1 / dist.get_rank(); dist.all_reduce(torch.ones(2))",
    "the other raises": "1 / (1 - dist.get_rank()); dist.all_reduce(torch.ones(2))",
    "half way": (
        "dist.all_reduce(torch.ones(2)); 1 / (1 - dist.get_rank()); dist.all_reduce(torch.ones(2))"
    ),
    "one catches": (
        "try:\n    dist.all_reduce(torch.ones(2 + dist.get_rank()))\nexcept Exception:\n    pass\n"
        "dist.all_reduce(torch.ones(2))"
    ),
    "one is late": (
        "import time\nend = time.monotonic() + 60\n"
        "while dist.get_rank() and time.monotonic() < end: pass\ndist.all_reduce(torch.ones(2))"
    ),
    "left open": "work = dist.all_reduce(torch.ones(1000), async_op=True)",
    "a group of the job's": "dist.all_reduce(torch.ones(1), group=evens)",
    "the default group by name": "t = torch.ones(1); dist.all_reduce(t, group=dist.group.WORLD); t.item()",
    "a new group": "dist.new_group([0, 1])",
    "one to another": "dist.send(torch.ones(1), 1 - dist.get_rank())",
    "functional": (
        "import torch.distributed._functional_collectives as f\nf.all_reduce(torch.ones(1), 'sum', [0, 1])"
    ),
    "alike again": "t = torch.ones(1); dist.all_reduce(t); t.item()",
}


def run(name: str, code: str, names: dict[str, Any]) -> dict[str, Any]:
    """What a snippet of that name comes to on this rank."""
    timeout_s = 2.0 if name == "one is late" else 30.0
    evaluation = Evaluation(
        code, parse(code), lambda: Scope(None, dict), 1 << 16, timeout_s, collectives=False,
        together=name.replace(" ", "-"),
    )
    evaluation.names = names
    evaluation.run_at_boundary()
    cut = evaluation.cut_short
    return {
        "value": evaluation.value, "error": evaluation.error, "kept": evaluation.kept,
        "cut": None if cut is None else f"{type(cut).__name__}: {cut}",
    }


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    group: Any = dist.group.WORLD
    evens = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1))
    numbers = (group._get_sequence_number_for_group(), evens._get_sequence_number_for_group())
    descriptors = len(os.listdir("/proc/self/fd"))
    found: dict[str, Any] = {}
    for name, code in SNIPPETS.items():
        found[name] = run(name, code, {"torch": torch, "dist": dist, "evens": evens})
    total = torch.ones(1)
    dist.all_reduce(total)
    after = (group._get_sequence_number_for_group() - 1, evens._get_sequence_number_for_group())
    from torch.distributed import distributed_c10d

    found["job"] = {
        "total": total.item(), "before": numbers, "after": after,
        "groups": len(distributed_c10d._world.pg_map), "count": distributed_c10d._world.group_count,
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": [descriptors, len(os.listdir("/proc/self/fd"))],
    }
    print("RESULT " + json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
