"""Training in an interpreter that refuses to import what the server and the command need.

`refused` are the names that somebody tried to import, `modules` all that is loaded at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

REFUSED = frozenset(
    {"fastapi", "starlette", "uvicorn", "h11", "pydantic", "duckdb", "httpx", "typer", "click", "rich"}
)


class Refusal:
    """A finder that finds none of these, and remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in REFUSED:
            self.asked.append(name)
            raise ModuleNotFoundError(f"{name} is refused")
        return None


refusal = Refusal()
sys.meta_path.insert(0, refusal)

import torch  # noqa: E402 - the agent starts here
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from ledger import Ledger, options  # noqa: E402


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        for batch in DataLoader(torch.ones(8, 4), batch_size=2):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            ledger.loss(loss)
            optimizer.step()
            ledger.step()
    print("ASK", flush=True)
    sys.stdin.readline()
    ledger.extra = {"refused": refusal.asked, "modules": sorted(sys.modules)}
    ledger.finish(model)


if __name__ == "__main__":
    main()
