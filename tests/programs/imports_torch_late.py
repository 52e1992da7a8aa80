"""Says READY without torch, waits for a line on stdin, imports torch, and says which threads there are then.

A forked child imports torch first, and says the same of itself: the one of the folder that is the argument.
The line `stand-in` has the process import that one, too.
"""

from __future__ import annotations

import json
import os
import sys


def threads() -> list[str]:
    import threading

    return sorted(thread.name for thread in threading.enumerate())


def in_a_child(folder: str) -> list[str]:
    read, write = os.pipe()
    if os.fork() == 0:
        sys.path.insert(0, folder)
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
    folder = sys.argv[1]
    told = sys.stdin.readline()
    child = in_a_child(folder)
    if told == "stand-in\n":
        sys.path.insert(0, folder)
    import torch

    assert torch.__version__
    finders = [type(finder).__name__ for finder in sys.meta_path if not isinstance(finder, type)]
    print("RESULT", json.dumps({"threads": threads(), "child": child, "finders": finders}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
