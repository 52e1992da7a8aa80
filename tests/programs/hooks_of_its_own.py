"""Training with hooks of the user's own on every optimizer and every module; `calls` counts them.

With --deferred the agent starts as it does in a child of multiprocessing: when there is an optimizer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--deferred", action="store_true")
    arguments = parser.parse_args()
    if arguments.deferred:
        from probe.job.agent import lifecycle

        lifecycle.start_from_environment(deferred=True)
    calls = {"before step": 0, "after step": 0, "before forward": 0, "after forward": 0}

    def count(name: str) -> Any:
        def hook(*_arguments: Any) -> None:
            calls[name] += 1

        return hook

    register_optimizer_step_pre_hook(count("before step"))
    register_optimizer_step_post_hook(count("after step"))
    register_module_forward_pre_hook(count("before forward"))
    register_module_forward_hook(count("after forward"))
    ledger = Ledger(arguments)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger.train(model, optimizer)
    ledger.extra = {"calls": calls}
    ledger.finish(model)


if __name__ == "__main__":
    main()
