"""Forecasts a series: LSTM on windows, Huber loss, weight averaging at the end with its own rate."""

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, length=36, ahead=6):
        self.series, self.length, self.ahead = series, length, ahead

    def __len__(self):
        return len(self.series) - self.length - self.ahead + 1

    def __getitem__(self, index):
        middle = index + self.length
        return self.series[index:middle, None], self.series[middle : middle + self.ahead]


class Forecaster(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.rnn = nn.LSTM(1, width, batch_first=True)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 6)

    def forward(self, x):
        return self.head(self.norm(self.rnn(x)[0][:, -1]))


args = options(__doc__)
progress = Progress(args)
total = args.steps or 9000
time = torch.arange(9000).float()
series = (time / 12).sin() + 0.5 * (time / 60).sin() + 0.3 * (time / 7).cos() + 0.1 * torch.randn(9000)
train = DataLoader(Windows(series[:8000]), batch_size=64, shuffle=True, drop_last=True)
validation = DataLoader(Windows(series[8000:]), batch_size=128)
model = Forecaster()
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
swa = SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)


@torch.no_grad()
def evaluate(network):
    network.eval()
    losses = [F.huber_loss(network(x), y).item() for x, y in validation]
    network.train()
    return sum(losses) / len(losses)


while progress.steps < total:
    averaging = progress.steps > 0.6 * total
    for x, y in train:
        loss = F.huber_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not averaging:
            scheduler.step()
        progress.step(loss.item())
    if averaging:
        averaged.update_parameters(model)
        swa.step()
    print(f"validation {evaluate(model):.4f}", flush=True)
update_bn(train, averaged)
print(f"averaged {evaluate(averaged):.4f}", flush=True)
