"""Job 9: a model under torch.compile, in each of its forms.

`compiled_frames`, `unique_graphs` and `graph_breaks` are dynamo's own counters: a probe
that makes the model compile again shows as higher numbers.
"""

from __future__ import annotations

import torch
import torch._dynamo.utils
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


class Network(nn.Module):
    """A stack of layers with a residual, so that there are modules below the compiled one."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--backend", choices=("eager", "aot_eager", "inductor"), default="aot_eager")
    parser.add_argument(
        "--form", choices=("wrapped", "in-place", "function", "optimizer", "step"), default="wrapped",
        help="torch.compile(model), model.compile(), a compiled function that calls the model, a"
        " compiled optimizer.step, or one compiled function for the whole step",
    )
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    network = Network()
    model = network
    if arguments.form == "wrapped":
        model = torch.compile(network, backend=arguments.backend)
    elif arguments.form == "in-place":
        network.compile(backend=arguments.backend)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(model(x), y)

    loss_function = loss_of
    if arguments.form == "function":
        loss_function = torch.compile(loss_of, backend=arguments.backend)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    inputs = torch.randn(32, 8)
    targets = inputs.prod(dim=1, keepdim=True)
    update = optimizer.step
    if arguments.form == "optimizer":
        update = torch.compile(optimizer.step, backend=arguments.backend)

    def whole_step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_function(inputs, targets)
        loss.backward()
        update()
        return loss.detach()

    if arguments.form == "step":
        whole_step = torch.compile(whole_step, backend=arguments.backend)
    while ledger.running:
        ledger.loss(whole_step())
        ledger.step()
    counters = torch._dynamo.utils.counters
    ledger.extra = {
        "compiled_frames": counters["frames"]["ok"],
        "unique_graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
    }
    ledger.finish(network)


if __name__ == "__main__":
    main()
