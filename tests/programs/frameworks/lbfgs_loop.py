"""The loop of pytorch/examples' time_sequence_prediction: LBFGS on the whole data, with a closure."""

from __future__ import annotations

from typing import Any

import torch
from account import Account, options
from torch import nn


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(1, 8)
        self.linear = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = cell = torch.zeros(len(inputs), 8)
        outputs = []
        for value in inputs.split(1, dim=1):
            hidden, cell = self.lstm(value, (hidden, cell))
            outputs.append(self.linear(hidden))
        return torch.cat(outputs, dim=1)


def main() -> None:
    arguments = options(__doc__).parse_args()
    account = Account(arguments)
    start = torch.arange(0, 8).unsqueeze(1)
    data = torch.sin((torch.arange(0, 9) + start) / 2)
    inputs, target = data[:, :-1], data[:, 1:]
    seq, criterion = Sequence(), nn.MSELoss()
    optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.05, max_iter=3)
    if arguments.resume:
        import probe

        account.most -= probe.load_checkpoint(arguments.resume, seq=seq, optimizer=optimizer).step or 0

    def closure() -> Any:
        optimizer.zero_grad()
        out = seq(inputs)
        loss = criterion(out, target)
        loss.backward()
        return loss

    while account.steps < account.most:
        loss = optimizer.step(closure)
        account.loss(loss.detach())
        account.samples += len(inputs)
        account.step()
    account.finish(seq)


if __name__ == "__main__":
    main()
