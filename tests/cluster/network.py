"""Several hosts made of network namespaces on one machine: each with an address, a host name, a PROBE_DIR.

A bridge joins them; `cut` takes a host's link down there: what it sends, and what is sent to it,
is lost without a word. Needs root and `ip netns`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import PATIENCE_S, ROOT, SERVER, Job, Place, run_probe
from probe.base import wire
from probe.recording import places
from ranks import free_port
from server.beside import until

PORT = 7130
MOST_HOSTS = 10
NAMES = Path("/etc/netns")
"""`ip netns exec` shows a namespace the files that lie here for it in the place of those of /etc."""
STOP, CONTINUE, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL


def why_not() -> str:
    """Why there can be no such hosts here; empty when there can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "`ip` (iproute2) or `unshare` is not installed"
    name = f"probe-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        _ip("netns", "del", name)
    return "" if made.returncode == 0 else f"`ip netns add` is refused here: {made.stderr.strip()}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE_S)


class Host:
    """One host: `name`, `address`, and a place with its own server, which the job's agents start."""

    def __init__(self, mark: str, number: int, net: str, shared: dict[str, str]) -> None:
        self.name = f"node{number}"
        self.address = f"{net}.{number}"
        self.namespace = f"probe-{mark}-{number}"
        self.link = f"pb{mark}{number}"
        self.bridge = ""
        self.place = Place()
        self.shared = {
            "PROBE_LISTEN": f"{self.address}:{PORT}", "PROBE_INSECURE_NO_TLS": "1",
            "GLOO_SOCKET_IFNAME": "eth0", **SERVER, **shared,
        }
        self.jobs: list[Job] = []
        self.launchers: list[subprocess.Popen[bytes]] = []

    def join(self, bridge: str) -> None:
        """Make the namespace and plug it in; names of hosts are found in a file of its own."""
        self.bridge = bridge
        net = self.address.rpartition(".")[0]
        (NAMES / self.namespace).mkdir(parents=True)
        known = "".join(f"{net}.{number} node{number}\n" for number in range(1, MOST_HOSTS))
        (NAMES / self.namespace / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("link", "set", self.link, "master", bridge, "up")
        for words in (("addr", "add", f"{self.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up"),
                      ("link", "set", "lo", "up")):
            _ip("-n", self.namespace, *words)

    @property
    def inside(self) -> list[str]:
        """What a command is put behind to run on this host."""
        script = f"hostname {self.name} && exec \"$@\""
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", script, "sh"]

    def start_rank(self, program: str, *options: str, **environ: str) -> Job:
        """One rank of a job on this host."""
        environment = self.place.watched(**self.shared, **environ)
        job = Job(program, *options, environ=environment, folder=self.place.directory, before=self.inside)
        self.jobs.append(job)
        return job

    def torchrun(self, *words: str, **environ: str) -> subprocess.Popen[bytes]:
        """`torchrun` on this host, in a session of its own; ended with the host."""
        environment = self.place.watched(**self.shared, OMP_NUM_THREADS="1", **environ)
        with open(self.place.directory / "torchrun.log", "ab") as log:
            started = subprocess.Popen(
                [*self.inside, sys.executable, "-m", "torch.distributed.run", *words], env=environment,
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )
        self.launchers.append(started)
        return started

    def probe(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command `probe`, which asks this host's server over its unix socket: in this process."""
        return run_probe(self.place, *words, server=False, **self.shared)

    def probe_inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same on this host, from where it reaches the others."""
        environment = self.place.environ(**self.shared)
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
        return subprocess.run(
            [*self.inside, sys.executable, "-m", "probe_cli", *words], env=environment, capture_output=True,
            text=True, timeout=PATIENCE_S, check=False,
        )

    def call(self, method: str, target: str, body: object = None) -> Any:
        """One request to this host's server, over its unix socket."""
        path = places.server_socket(self.place.directory)
        until(path.exists, f"a server on {self.name}")
        return wire.call(path, method, target, body, timeout_s=PATIENCE_S)

    def query(self, endpoint: str, sql: str, **more: object) -> dict[str, Any]:
        """Answer of `POST /v1/query`."""
        found: dict[str, Any] = self.call("POST", "/v1/query", {"endpoint": endpoint, "sql": sql, **more})
        return found

    def asked(self) -> bool:
        """Whether another host's server is connected to this one's now."""
        listed = subprocess.run(
            [*self.inside, "cat", "/proc/net/tcp"], capture_output=True, text=True, check=True,
            timeout=PATIENCE_S,
        )
        ours, established = f":{PORT:04X}", "01"
        return any(line.split()[1].endswith(ours) and line.split()[3] == established
                   for line in listed.stdout.splitlines()[1:])

    def cut(self) -> None:
        """Take the link down."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """And up again."""
        _ip("link", "set", self.link, "up")

    def die(self) -> None:
        """End everything that runs on it, at once, and what it had in memory: the power failed."""
        while found := self.place.processes():  # workers of a launcher or a server have sessions of their own
            for line in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), KILL)
        for path in self.place.rings.iterdir():
            shutil.rmtree(path)

    def close(self) -> None:
        """End everything of it."""
        for job in self.jobs:
            job.kill()
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait(PATIENCE_S)
            if launcher.stdin is not None:
                launcher.stdin.close()
        for line in self.place.processes():  # the workers of a launcher have sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        self.place.remove()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.namespace)
        shutil.rmtree(NAMES / self.namespace, ignore_errors=True)


@contextlib.contextmanager
def hosts(count: int, **environ: str) -> Iterator[list[Host]]:
    """So many hosts that reach each other and share a token."""
    mark = uuid.uuid4().hex[:5]
    bridge, net = f"pb{mark}", f"10.77.{secrets.randbelow(254)}"
    with contextlib.ExitStack() as stack:
        place = Place()
        stack.callback(place.remove)
        token = place.directory / "shared-token"
        token.touch(0o600)
        token.write_text(secrets.token_urlsafe(32))
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("link", "set", bridge, "up")
        found: list[Host] = []
        for number in range(1, count + 1):
            host = Host(mark, number, net, {"PROBE_TOKEN_FILE": str(token), **environ})
            stack.callback(host.close)
            host.join(bridge)
            found.append(host)
        yield found


def address_of_this_machine(hosts: list[Host]) -> str:
    """An address at which these hosts reach what runs beside them, such as an object store."""
    address = f"{hosts[0].address.rpartition('.')[0]}.{MOST_HOSTS}"
    _ip("addr", "add", f"{address}/24", "dev", hosts[0].bridge)
    return address


def start_job(
    hosts: list[Host], per_host: int, program: str, *options: str, run_id: str = "", **environ: str
) -> tuple[str, list[Job]]:
    """All ranks of a job, `per_host` on each host, as torchrun would start them: (name, ranks in order)."""
    name = f"{program}-{uuid.uuid4().hex[:6]}"
    port = free_port()
    jobs: list[Job] = []
    for group, host in enumerate(hosts):
        for local in range(per_host):
            rank = group * per_host + local
            told = {
                "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(len(hosts) * per_host),
                "LOCAL_WORLD_SIZE": str(per_host), "GROUP_RANK": str(group), "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": run_id or uuid.UUID(int=port).hex,
                "TORCHELASTIC_RESTART_COUNT": "0", "OMP_NUM_THREADS": "1", "PROBE_NAME": name, **environ,
            }
            jobs.append(host.start_rank(program, *options, **told))
    for job in jobs:
        job.wait_for("READY")
    return name, jobs


def threads(job: Job) -> set[str]:
    """Names of the threads of a rank, as the interpreter shows them to the kernel (cut to 15 characters)."""
    return {path.read_text().strip() for path in Path(f"/proc/{job.pid}/task").glob("*/comm")}


def folder_of(host: Host) -> Path:
    """Where this host keeps recordings."""
    return places.recordings(host.place.directory)
