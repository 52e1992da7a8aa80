"""Training in a process that treats its descriptors, children and limits as it likes, by a seed.

`--treatments` names what is done, one after the other, between the steps and in the middle of them; `random`
stands for one that the seed chooses. All of it is done alike with probe and without: what the files in
`--folder` hold, the results and the output must be the same. `noted` in the result is what went wrong for the
program itself: a write that failed, a descriptor that somebody else closed.

With PROBE=1 in its environment it also stops and starts probe where the treatment says so; with --plant it
then also does what must never be done: it keeps the number of a file, and writes there at its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from ledger import Ledger, options

SOME = 24
"""Files opened at once: as many as a job with shards has."""


class Scene:
    """What the treatments work on: a folder, randomness, files that are being written."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.noted: list[str] = []
        self.quiet = threading.Lock()
        """Held where descriptors are closed in bulk: a thread that has a file open would lose it."""
        self._files: dict[int, str] = {}
        self._count = 0
        self.at_end: list[Callable[[], object]] = []
        self.held: list[int] = []
        """Descriptors that are open for their number's sake."""
        self.pairs: list[tuple[socket.socket, socket.socket]] = []

    def open_files(self, count: int = SOME) -> None:
        """New files, with something in each, which stay open."""
        for _ in range(count):
            self._count += 1
            name = f"shard-{self._count}"
            number = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            self._files[number] = name
            os.write(number, f"begin {name}\n".encode())

    def write_on(self) -> None:
        """A line more in each open file."""
        for number, name in self._files.items():
            try:
                os.write(number, f"more of {name}\n".encode())
            except OSError as error:
                self.noted.append(f"{name} on {number}: {error}")

    def close_files(self) -> None:
        """Close what is open, each of them once."""
        for number, name in self._files.items():
            try:
                os.close(number)
            except OSError as error:
                self.noted.append(f"closing {name} on {number}: {error}")
        self._files.clear()

    def close_range(self, first: int, last: int) -> None:
        """`os.closerange`, as who daemonises does."""
        with self.quiet:
            os.closerange(first, last)
        self._files = {number: name for number, name in self._files.items() if not first <= number < last}
        self._are_others(range(first, last))

    def _are_others(self, numbers: range) -> None:
        self.held = [number for number in self.held if number not in numbers]
        for one in (one for pair in self.pairs for one in pair):
            if one.fileno() in numbers:
                one.detach()

    def lay_over(self, numbers: range) -> None:
        """Put one of the files over these numbers too, and write through each of them."""
        self.open_files(1)
        number, name = list(self._files.items())[-1]
        with self.quiet:
            for other in numbers:
                if other not in self._files:
                    os.dup2(number, other)
        self._are_others(numbers)
        for other in numbers:
            if other not in self._files:
                os.write(other, f"{other} of {name}\n".encode())
                self._files[other] = name


def closes_low(scene: Scene) -> None:
    scene.close_range(3, 256)
    scene.open_files()


def closes_all(scene: Scene) -> None:
    scene.close_range(3, 65536)
    scene.open_files()


def closes_all_and_fills(scene: Scene) -> None:
    """Every number up to the high ones is a file of the job's afterwards."""
    scene.close_range(3, 65536)
    scene.open_files(1)
    scene.lay_over(range(500, 540))


def lays_over(scene: Scene) -> None:
    first = scene.dice.choice([3, 10, 200, 505, 510])
    scene.lay_over(range(first, first + 20))


def closes_twice(scene: Scene) -> None:
    with scene.quiet:
        number = os.open(scene.folder / "twice", os.O_WRONLY | os.O_CREAT, 0o644)
        os.close(number)
        with contextlib.suppress(OSError):
            os.close(number)
    scene.open_files(3)


def uses_all_up(scene: Scene) -> None:
    """No descriptor is left for some steps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    with contextlib.suppress(OSError):
        while True:
            scene.held.append(os.open("/dev/null", os.O_RDONLY))

    def release() -> None:
        for number in scene.held:
            os.close(number)
        scene.held.clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    scene.at_end.append(release)


def lowers_limits(scene: Scene) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def inherits(scene: Scene) -> None:
    """A child that gets every descriptor which is not marked to be closed."""
    scene.open_files(2)
    count = [sys.executable, "-I", "-S", "-c", "import os; print(len(os.listdir('/proc/self/fd')))"]
    done = subprocess.run(count, close_fds=False, capture_output=True, text=True, check=False)
    scene.noted.append(f"a child has {done.stdout.strip()} descriptors, {done.returncode}")


def forks(scene: Scene) -> None:
    """A child that writes, and ends as a program does: with what runs at exit."""
    with scene.quiet:
        pid = os.fork()
    if pid == 0:
        scene.quiet = threading.Lock()
        scene.close_range(3, scene.dice.choice([64, 1024]))
        scene.open_files(3)
        scene.write_on()
        os._exit(7)
    scene.noted.append(f"a child ended with {os.waitpid(pid, 0)[1]}")
    scene._count += 3


def forks_twice(scene: Scene) -> None:
    """As daemons are made; the grandchild says when it has done its work."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os.setsid()
            os.closerange(3, write)
            (scene.folder / "daemon").write_text("from the grandchild\n")
            os.write(write, b"x")
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    os.read(read, 1)
    os.close(read)


def forks_in_a_thread(scene: Scene) -> None:
    thread = threading.Thread(target=forks, args=(scene,))
    thread.start()
    thread.join()


def forks_and_executes(scene: Scene) -> None:
    pid = os.fork()
    if pid == 0:
        os.closerange(3, 256)
        os.execv("/bin/sh", ["sh", "-c", f"echo from a shell > {scene.folder}/shell; exit 3"])
    scene.noted.append(f"a shell ended with {os.waitpid(pid, 0)[1]}")


def other_user(scene: Scene) -> None:
    """For good, where that is allowed."""
    if os.getuid() == 0:
        os.chmod(scene.folder, 0o777)
        os.setgid(65534)
        os.setuid(65534)


def other_root(scene: Scene) -> None:
    """The folder is all there is of the file system afterwards."""
    if os.getuid() == 0:
        scene.close_files()
        with scene.quiet:
            os.chroot(scene.folder)
            os.chdir("/")
            scene.folder = Path("/")


def other_folder(scene: Scene) -> None:
    gone = scene.folder / "gone"
    gone.mkdir(exist_ok=True)
    os.chdir(gone)
    gone.rmdir()


def other_umask(scene: Scene) -> None:
    os.umask(scene.dice.choice([0, 0o077, 0o777]))


def alarms(scene: Scene) -> None:
    """A signal each millisecond, with a handler that interrupts system calls."""
    seen = [0]

    def count(_number: int, _frame: object) -> None:
        seen[0] += 1

    signal.signal(signal.SIGALRM, count)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    def still() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        scene.noted.append(f"alarms came: {seen[0] > 0}")

    scene.at_end.append(still)


def default_signals(scene: Scene) -> None:
    """As tools do that want to end quietly in a pipe."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def blocks_signals(scene: Scene) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def restless_thread(scene: Scene) -> None:
    """A thread that opens, writes, reads back and closes files all the time."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            with scene.quiet:
                try:
                    number = os.open(scene.folder / "restless", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
                    os.write(number, b"restless" * 8)
                    found = os.pread(number, 100, 0)
                    os.close(number)
                except PermissionError:  # another user by now
                    return
                except OSError as error:
                    # Whether the last free number was this thread's when no other was left is chance.
                    if error.errno != errno.EMFILE:
                        scene.noted.append(f"restless: {error}")
                    return
            if found != b"restless" * 8:
                scene.noted.append(f"restless: {found!r}")

    thread = threading.Thread(target=work)
    thread.start()
    scene.at_end += [done.set, thread.join]


def sockets_of_its_own(scene: Scene) -> None:
    """A pair of sockets where descriptors of others have been: nothing may be said into it."""
    scene.close_range(3, 65536)
    scene.pairs = [socket.socketpair() for _ in range(8)]
    for offset, (here, _) in enumerate(scene.pairs):
        os.dup2(here.fileno(), 508 + offset)

    def listen() -> None:
        for here, there in scene.pairs:
            if there.fileno() >= 0:
                there.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    scene.noted.append(f"somebody said {there.recv(100)!r}")
            here.close()
            there.close()
        scene.pairs.clear()

    scene.at_end.append(listen)


def leaves_probe(scene: Scene) -> None:
    """Where it is there."""
    scene.open_files(4)
    if os.environ.get("PROBE") == "1":
        import probe

        probe.stop()
    scene.open_files(4)


def comes_back_to_probe(scene: Scene) -> None:
    if os.environ.get("PROBE") == "1":
        import probe

        probe.stop()
        probe.start()
    scene.open_files(4)


TREATMENTS: dict[str, Callable[[Scene], object]] = {
    one.__name__: one
    for one in (
        closes_low, closes_all, closes_all_and_fills, lays_over, closes_twice, uses_all_up, lowers_limits,
        inherits, forks, forks_twice, forks_in_a_thread, forks_and_executes, other_user, other_root,
        other_folder, other_umask, alarms, default_signals, blocks_signals, restless_thread,
        sockets_of_its_own, leaves_probe, comes_back_to_probe,
    )
}
ONLY_LAST = ("other_user", "other_root", "uses_all_up", "lowers_limits", "blocks_signals")
"""After these a program can do less: a seed puts them behind the others."""


def chosen(names: list[str], seed: str) -> list[str]:
    """The treatments, with those that the seed chooses."""
    dice = random.Random(f"{seed}/names")
    found = [dice.choice(list(TREATMENTS)) if name == "random" else name for name in names]
    return sorted(found, key=lambda name: name in ONLY_LAST) if "random" in names else found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--treatments", nargs="*", default=["random"])
    parser.add_argument("--seed", default="0")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--end", choices=["normal", "exception", "_exit", "exec", "abort"], default="normal")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    scene = Scene(arguments.folder, arguments.seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    names = chosen(arguments.treatments, arguments.seed)
    treated = list(names)
    if arguments.plant and os.environ.get("PROBE") == "1":
        kept = os.open("/dev/null", os.O_WRONLY)
        scene.at_end.append(lambda: os.write(kept, b"planted"))
    while ledger.running:
        treat = TREATMENTS[names.pop(0)] if names and ledger.steps % 4 == 3 else None
        amid = scene.dice.random() < 0.5
        if treat is not None and not amid:
            treat(scene)
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        if treat is not None and amid:
            treat(scene)
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        scene.write_on()
        time.sleep(arguments.step_s)
        ledger.step()
    for action in scene.at_end:
        action()
    if arguments.end != "abort":
        scene.close_files()
    ledger.extra = {"noted": scene.noted, "treated": treated}
    ledger.finish(model)
    if arguments.end == "exception":
        raise ValueError("the job's own")
    if arguments.end == "_exit":
        os._exit(5)
    if arguments.end == "exec":
        os.execv("/bin/sh", ["sh", "-c", "exit 6"])
    if arguments.end == "abort":
        # The stack goes to the crash file's number; one that a file was laid over is replaced in a second.
        time.sleep(2.5)
        ctypes.CDLL(None).abort()


if __name__ == "__main__":
    main()
