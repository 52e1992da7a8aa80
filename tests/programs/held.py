"""Training that is held, stopped or sent signals: says on stdout how it ends, and ends as it was asked to.

With --forever it trains until a line comes on stdin. `finally` and an exit handler print; SIGTERM has a
handler of the user's own with --handler; --thread trains on a thread that is not the main one; --own-steps
says by `probe.step()` where a step ends.
"""

from __future__ import annotations

import atexit
import select
import signal
import sys
import threading
import time
from types import FrameType

import torch
from torch import nn
from torch.utils.data import DataLoader

import probe
from ledger import Ledger, options


class Asked(Exception):
    """What the user's handler of SIGTERM raises."""


def leave(_number: int, _frame: FrameType | None) -> None:
    """The user's own handler."""
    raise Asked


def say(word: str) -> None:
    """A line for the test."""
    print(word, flush=True)


def train(ledger: Ledger, rest_s: float, own_steps: bool) -> None:
    """Steps, all of them or until a line comes on stdin."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader([torch.full((4,), float(number)).sin() for number in range(40)], batch_size=2)
    try:
        while True:
            for batch in loader:
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                ledger.loss(loss)
                optimizer.step()
                if own_steps:
                    probe.step()
                ledger.step()
                time.sleep(rest_s)
                if not ledger.running or select.select([sys.stdin], [], [], 0.0)[0]:
                    ledger.finish(model)
                    return
    except KeyboardInterrupt:
        say("CAUGHT KeyboardInterrupt")
        ledger.finish(model)
        raise
    except Asked:
        say("CAUGHT Asked")
        ledger.finish(model)
    except SystemExit as error:
        say(f"CAUGHT SystemExit {error.code}")
        ledger.finish(model)
        raise
    finally:
        say("FINALLY")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--handler", action="store_true")
    parser.add_argument("--thread", action="store_true")
    parser.add_argument("--own-steps", action="store_true")
    parser.add_argument("--rest-s", type=float, default=0.01)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    atexit.register(say, "ATEXIT")
    if arguments.handler:
        signal.signal(signal.SIGTERM, leave)
    if arguments.thread:
        given = (ledger, arguments.rest_s, arguments.own_steps)
        thread = threading.Thread(target=train, args=given, name="trainer")
        thread.start()
        thread.join()
        say("JOINED")
        sys.stdin.readline()
    else:
        train(ledger, arguments.rest_s, arguments.own_steps)


if __name__ == "__main__":
    main()
