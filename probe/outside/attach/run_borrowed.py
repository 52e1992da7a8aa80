"""The child process that runs pyinjector (borrowed.py); started by its path, with a plan in JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from probe.outside.attach.borrowed import borrow
    from probe.outside.attach.parked import Parked

    plan = json.loads(sys.argv[1])
    done = borrow(plan["pid"], [Parked(*found) for found in plan["parked"]], plan["library"])
    sys.stdout.write("probe: " + json.dumps(done._asdict()) + "\n")
