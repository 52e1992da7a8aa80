"""Ray Train with probe in each worker: `python train.py --workers 2`.

`runtime_env` sets PROBE=1 in the workers, and the job has the name of the Ray run: `probe gpt diagnose`,
`probe gpt ranks`, `probe gpt lr --scale 0.5` work on any host that has a worker. Ray replaces a worker that dies, up to
`max_failures` times; the replacements are the next attempt of the same run.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train(config: dict[str, Any]) -> None:
    """What each worker runs: a small regression on random data."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    inputs = torch.randn(1024, 8)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = prepare_data_loader(DataLoader(dataset, batch_size=16, shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(config["rest_s"])
    ray.train.report({"loss": float(loss.detach())})


def main() -> None:
    """Start the run and wait for its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rest-s", type=float, default=0.05, help="pause after each step, in seconds")
    parser.add_argument("--storage", help="folder or URL of the run's results")
    arguments = parser.parse_args()
    ray.init(runtime_env={"env_vars": {
        "PROBE": "1",
        # With workers on several hosts: "PROBE_LISTEN": "0.0.0.0:7130", PROBE_TOKEN_FILE, a certificate.
    }})
    trainer = TorchTrainer(
        train, train_loop_config={"epochs": arguments.epochs, "rest_s": arguments.rest_s},
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(
            name="gpt", storage_path=arguments.storage, failure_config=FailureConfig(max_failures=3),
        ),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
