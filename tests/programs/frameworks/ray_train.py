"""Ray Train: `TorchTrainer` starts two workers as actors, whose loop is an ordinary DDP one, on gloo.

A worker's output goes to Ray, so the driver speaks for them: what they say lies in files of `--out`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from account import options

SAMPLES, BATCH, WORKERS = 64, 4, 2
POLL_S = 0.02


def wait_for(*paths: Path) -> None:
    """Until all of these are there."""
    while not all(path.exists() for path in paths):
        time.sleep(POLL_S)


def write(path: Path, text: str = "") -> None:
    """Whole, or not at all."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text)
    unfinished.rename(path)


def train(config: dict[str, Any]) -> None:
    """What each worker runs."""
    import ray.train
    import torch
    from ray.train.torch import prepare_data_loader, prepare_model
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    folder = Path(config["folder"])
    rank = os.environ["RANK"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 8)
    dataset = TensorDataset(x, (x.sum(1) > 0).long())
    train_dataloader = prepare_data_loader(DataLoader(dataset, batch_size=BATCH))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model = prepare_model(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4000)
    losses: list[str] = []
    rates: list[float] = []
    while len(losses) < config["steps"]:
        for inputs, targets in train_dataloader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(float(loss.detach()).hex())
            rates.append(optimizer.param_groups[0]["lr"])
            if len(losses) == 3:
                write(folder / f"ready-{rank}")
            if config["rest_s"] and not (folder / "go-on").exists():
                time.sleep(config["rest_s"])
            if len(losses) >= config["steps"]:
                break
    write(folder / f"result-{rank}", json.dumps({
        "losses": losses, "rates": rates, "samples": len(losses) * BATCH,
        "modules": sorted({name for name, _ in net.named_modules()}), "roots": [type(net).__name__],
    }))
    if config["hold"]:
        wait_for(folder / "leave")
    ray.train.report({"loss": float(loss.detach())})


def speak(folder: Path, *, hold: bool, steps: int) -> None:
    """READY, the result, and what stdin says to the workers."""
    ranks = range(WORKERS)
    wait_for(*(folder / f"ready-{rank}" for rank in ranks))
    print("READY", flush=True)
    if hold:
        threading.Thread(target=listen, args=(folder,), daemon=True).start()
    wait_for(*(folder / f"result-{rank}" for rank in ranks))
    found = [json.loads((folder / f"result-{rank}").read_text()) for rank in ranks]
    of_ranks = [one["losses"] for one in found]
    print("RESULT " + json.dumps({**found[0], "steps": steps, "losses_of_ranks": of_ranks}), flush=True)


def listen(folder: Path) -> None:
    """The first line lets the workers go on without rests, the second lets them leave."""
    for name in ("go-on", "leave"):
        sys.stdin.readline()
        write(folder / name)


def main() -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    arguments = options(__doc__).parse_args()
    folder = Path(arguments.out or tempfile.mkdtemp(prefix="ray-"))
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    config = {
        "folder": str(folder), "steps": arguments.steps, "hold": arguments.hold,
        "rest_s": float(os.environ.get("REST_S", "0")),
    }
    speaker = threading.Thread(target=speak, args=(folder,), kwargs={
        "hold": arguments.hold, "steps": arguments.steps}, daemon=True)
    speaker.start()
    trainer = TorchTrainer(
        train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="tiny_ray", storage_path=str(folder / "storage")),
    )
    trainer.fit()
    speaker.join()
    ray.shutdown()


if __name__ == "__main__":
    main()
