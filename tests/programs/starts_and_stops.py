"""Training that starts and stops probe itself: in turns, from another thread, or from many at once.

`left` says what each kind of stopping left behind, `alive` what there was of probe's own objects after the
first rounds and after the last. Without --probe the same training without any of it.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import probe
from ledger import Ledger, options
from traces import functions, replaced, traces


class Training:
    """A model with everything the instruments look at: a loader, a scaler, an optimizer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.loader = DataLoader([torch.full((8,), float(number)).sin() for number in range(6)], batch_size=2)

    def epoch(self) -> None:
        """Three steps."""
        for batch in self.loader:
            self.ledger.fetched("loader")
            self.optimizer.zero_grad()
            loss = self.model(batch).square().mean()
            self.scaler.scale(loss).backward()
            self.ledger.loss(loss)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.ledger.step()


def in_turns(training: Training, rounds: int, warm: int, watched: bool) -> list[dict[str, int]]:
    """start, train, stop, again and again; what there is of ours after the first rounds and at the end."""
    counts = []
    for number in range(rounds):
        if watched:
            probe.start()
        training.epoch()
        if watched:
            probe.stop()
        training.epoch()
        if number in (warm, rounds - 1):
            counts.append(ours())
    return counts


def ours() -> dict[str, int]:
    """Objects and functions of probe that are alive, by name, and its memory maps."""
    gc.collect()
    folder = str(Path(probe.__file__).parent)
    found: dict[str, int] = {}
    for one in gc.get_objects():
        name = ""
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(folder):
            name = one.__code__.co_name
        elif str(type(one).__module__).startswith("probe."):
            name = type(one).__qualname__
        if name:
            found[name] = found.get(name, 0) + 1
    return {**found, "maps": Path("/proc/self/maps").read_text().count(".ring")}


def by_a_thread(training: Training, rounds: int, watched: bool) -> None:
    """Another thread starts and stops it at any moment of a step."""
    over = threading.Event()

    def restless() -> None:
        while watched and not over.is_set():
            probe.start()
            over.wait(0.002)
            probe.stop()

    thread = threading.Thread(target=restless)
    thread.start()
    for _ in range(rounds * 4):
        training.epoch()
    over.set()
    thread.join()


def at_once(training: Training, callers: int, watched: bool) -> list[int]:
    """Many threads start it at the same moment; how many agents there are then."""
    barrier = threading.Barrier(callers)
    agents = []

    def one() -> None:
        barrier.wait()
        probe.start()
        agents.append(sum(thread.name == "probe-agent" for thread in threading.enumerate()))

    if watched:
        threads = [threading.Thread(target=one) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        probe.start()
    training.epoch()
    probe.stop()
    return agents


def settled(before: dict[str, Any]) -> dict[str, Any]:
    """What is left, once threads that have ended are gone for the kernel too."""
    for _ in range(1000):
        now = traces()
        if now["tasks"] == before["tasks"]:
            break
        threading.Event().wait(0.01)
    return now


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--warm", type=int, default=10, help="the round that the last is compared with")
    parser.add_argument("--callers", type=int, default=20)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    training = Training(ledger)
    training.epoch()
    before, own = traces(), functions()
    left: dict[str, Any] = {}

    def note(name: str) -> None:
        gc.collect()
        now = settled(before)
        left[name] = [replaced(own), {key: value for key, value in now.items() if value != before[key]}]

    alive = in_turns(training, arguments.rounds, arguments.warm, arguments.probe)
    note("in turns")
    by_a_thread(training, arguments.rounds, arguments.probe)
    note("by a thread")
    agents = at_once(training, arguments.callers, arguments.probe)
    note("at once")
    ledger.extra = {"left": left, "alive": alive, "agents": agents}
    ledger.finish(training.model)


if __name__ == "__main__":
    main()
