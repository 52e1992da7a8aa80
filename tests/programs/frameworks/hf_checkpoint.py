"""A checkpoint of probe's as transformers.Trainer reads one: a folder to resume from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
from transformers.trainer_callback import TrainerState


def as_trainers(path: str, trainer: Any) -> str:
    """The folder, made beside the file. `trainer` is built as in the interrupted run."""
    content = torch.load(path, weights_only=True)
    folder = Path(f"{path}-for-trainer")
    trainer.model.load_state_dict(content["model"])
    trainer.save_model(str(folder))
    torch.save(content["optimizer"], folder / "optimizer.pt")
    torch.save(content["lr_scheduler"], folder / "scheduler.pt")
    rng = content["probe"]["rng"]
    drawn = rng["numpy"]["state"]
    numpys = ("MT19937", numpy.array(drawn["key"], numpy.uint32), drawn["pos"], 0, 0.0)
    data = content["probe"]["data"]
    # Before the first batch of an epoch the Trainer restores the states first and then makes the loader's
    # iterator, which draws from them.
    states = rng["torch"] if data is None or data["batches"] else data["torch_state"]
    torch.save({"python": rng["python"], "numpy": numpys, "cpu": states}, folder / "rng_state.pth")
    args = trainer.args
    state = TrainerState(
        global_step=content["step"], train_batch_size=args.train_batch_size,
        logging_steps=args.logging_steps, eval_steps=args.eval_steps, save_steps=args.save_steps,
    )
    state.save_to_json(str(folder / "trainer_state.json"))
    return str(folder)
