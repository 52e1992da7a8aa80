"""Says READY without torch, waits for a line on stdin, imports torch, and says which threads there are then.

`--forks`: a forked child imports torch first, and says the same of itself.
"""

from __future__ import annotations

import json
import os
import sys


def threads() -> list[str]:
    import threading

    return sorted(thread.name for thread in threading.enumerate())


def in_a_child() -> list[str]:
    read, write = os.pipe()
    if os.fork() == 0:
        import torch

        assert torch.__version__
        os.write(write, json.dumps(threads()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found: list[str] = json.loads(pipe.read())
    os.wait()
    return found


def main() -> None:
    print("READY", flush=True)
    sys.stdin.readline()
    child = in_a_child() if "--forks" in sys.argv else []
    import torch

    assert torch.__version__
    finders = [type(finder).__name__ for finder in sys.meta_path if not isinstance(finder, type)]
    print("RESULT", json.dumps({"threads": threads(), "child": child, "finders": finders}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
