"""Starts and stops all parts of the server, in one event loop.

Runs on the main thread of the server's process, which holds the lock already (`probe.server.__main__`). May
import fastapi and uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import uvicorn
from uvicorn.server import ServerState

from probe import __version__
from probe.base import clock
from probe.base.errors import ProbeError, SettingInvalid
from probe.base.settings import BY_NAME, Settings
from probe.base.wire import LARGEST_HEAD_BYTES, listen_unix
from probe.diagnose.recipes.library import installed
from probe.recording import checked, places
from probe.recording.process import own_pid
from probe.server.alerts.recipe_monitor import Monitor
from probe.server.http import app as application
from probe.server.http import auth
from probe.server.http.browsers import SocketGate
from probe.server.http.limits import App, BodyLimit, LimitedProtocol
from probe.server.recordings.archiver import Archiver
from probe.server.recordings.registry import Recorded, Registry
from probe.server.recordings.sealer import Sealer
from probe.server.runtime import supervision
from probe.server.runtime.supervision import FAILURES
from probe.server.runtime.tokens import load_tokens
from probe.server.service import Service
from probe.server.sql.pool import Pool
from probe.server.watch.exit_watch import ExitWatch
from probe.server.watch.stall_watch import Watch

_log = logging.getLogger("probe.server")
_ROUND_S = 5.0
_CLOSE_S = 2.0
_BACKLOG = 256


class Server:
    """One server."""

    def __init__(self, directory: Path, settings: Settings, is_ours: Callable[[], bool]) -> None:
        """`is_ours` says whether this server still holds the lock of `directory`."""
        self.directory = directory
        self.settings = settings
        self._is_ours = is_ours
        self.successor: dict[str, str] = {}
        """Environment variables of the server that replaces this one, because a job needs a TCP listener."""
        self._refused: set[str] = set()
        self._stopping = asyncio.Event()
        self._servers: list[asyncio.AbstractServer] = []
        self._states: list[ServerState] = []

    async def run(self) -> None:
        """Serve until a signal, or until the server has not been needed for a while."""
        if self.settings.listen:
            auth.check_listen(self.settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        registry = Registry(self.directory)
        registry.stall_thresholds = lambda: installed(self.settings.recipes).stall_thresholds
        exits = ExitWatch(registry)
        sealer = Sealer(registry, self.settings, is_ours=self._is_ours, record_end=exits.record_end)
        archiver = Archiver(registry, sealer, self.settings)
        watch = Watch(registry)
        pool = Pool(self._roots(), self.settings.query_memory_bytes)
        service = Service(registry, sealer, watch, pool, self.settings)
        monitor = Monitor(service)
        asgi = BodyLimit(application.build(service, monitor), service.touch)
        try:
            service.tcp_port = await self._listen(asgi)
            exits.start()
            for part in (sealer, watch, service.facts, archiver):
                part.thread.start()
            monitor.start()
            pool.warm()
            await self._stay(service, monitor, archiver)
        finally:
            await self._close(sealer, pool, service, monitor)
            for part in (archiver, watch):
                part.thread.stop(_CLOSE_S)
            service.facts.thread.stop(_CLOSE_S)
            exits.stop(_CLOSE_S)

    def _roots(self) -> list[Path]:
        """Folders that query workers read: they must exist before the first worker starts."""
        roots = [places.make_private(places.recordings(self.directory))]
        with contextlib.suppress(ProbeError):
            roots.append(places.make_private(Path(self.settings.rings_directory) / f"probe-{os.getuid()}"))
        return roots

    async def _listen(self, asgi: App) -> int | None:
        """Listen; returns the TCP port, if there is one."""
        url = await self._listen_tcp(asgi) if self.settings.listen else None
        path = places.server_socket(self.directory)
        listener = socket.socket(fileno=listen_unix(path, _BACKLOG).detach())
        await self._serve(SocketGate(asgi), listener, None)
        facts = {"pid": own_pid(), "version": __version__, "started_ns": clock.wall_ns(), "url": url}
        places.write_whole(self.directory / "server.json", checked.sealed("server.json", facts))
        _log.info("version %s serves %s", __version__, self.directory)
        return int(url.rpartition(":")[2]) if url else None

    async def _listen_tcp(self, asgi: App) -> str | None:
        """The URL for `server.json`, and so for the agents; None if TCP is off."""
        host, port = auth.listen_address(self.settings)
        tokens = load_tokens(self.settings, self.directory)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            # The unix socket must work even if the port is taken.
            _log.error("TCP is off: cannot listen on %s: %s", self.settings.listen, error)
            return None
        port = int(listener.getsockname()[1])
        await self._serve(auth.TcpGate(asgi, tokens, host, port), listener, _tls(self.settings))
        _log.info("listens on %s:%d%s", host, port, " with TLS" if self.settings.tls_certificate else "")
        scheme = "https" if self.settings.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _serve(self, asgi: App, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            asgi, http=LimitedProtocol, ws="none", lifespan="off", log_config=None, access_log=False,
            h11_max_incomplete_event_size=LARGEST_HEAD_BYTES, timeout_keep_alive=5,
            server_header=False, date_header=False, proxy_headers=False,
        )
        config.load()
        state = ServerState()
        self._states.append(state)

        def protocol() -> asyncio.Protocol:
            return LimitedProtocol(config=config, server_state=state, app_state={})

        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_server(
                protocol, sock=listener, ssl=tls, ssl_handshake_timeout=5 if tls else None, backlog=_BACKLOG
            )
        )

    async def _stay(self, service: Service, monitor: Monitor, archiver: Archiver) -> None:
        last_live = time.monotonic()
        round_s = min(_ROUND_S, self.settings.server_linger_s / 4)
        while not self._stopping.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), round_s)
            if not self._is_ours():
                return  # the sealer has logged why
            service.pool.end_idle()
            living = await self._living(service)
            self.successor = {} if self.settings.listen else self._listen_wishes(living or ())
            if self.successor:
                return
            if living is None or living or monitor.busy or archiver.waiting:
                last_live = time.monotonic()
            needed = max(last_live, service.last_request)
            if time.monotonic() - needed > self.settings.server_linger_s:
                _log.info("not needed for %g s", self.settings.server_linger_s)
                return

    async def _living(self, service: Service) -> list[Recorded] | None:
        """The processes that are being recorded; None when that is unknown."""
        try:
            return await service.call(service.registry.live)
        except FAILURES as error:
            supervision.note("the server's own round", error)
            return None

    def _listen_wishes(self, living: Iterable[Recorded]) -> dict[str, str]:
        """The TCP settings of the first living job that has a PROBE_LISTEN with which a server can start;
        empty if there is none."""
        for texts in (one.meta.settings for one in living):
            address = texts.get("listen", "")
            if not address or address in self._refused:
                continue
            asked = {BY_NAME[name].env: texts.get(name, "") for name in auth.TCP_SETTINGS}
            try:
                settings = Settings({**self.settings.environ, **asked})
                auth.check_listen(settings)
                load_tokens(settings, self.directory)
                _tls(settings)
            except ProbeError as error:
                self._refused.add(address)
                _log.error("TCP stays off, though a job asks for %s: %s", address, error.message)
            else:
                _log.info("restarting to listen on %s, as a job requests", address)
                return asked
        return {}

    async def _close(self, sealer: Sealer, pool: Pool, service: Service, monitor: Monitor) -> None:
        """End in order: no new connections, finish answers, end workers and threads."""
        if self._is_ours():  # else it may be another server's socket
            with contextlib.suppress(OSError):
                places.server_socket(self.directory).unlink()
        for server in self._servers:
            server.close()
        for state in self._states:
            for connection in list(state.connections):
                connection.shutdown()
        tasks = [task for state in self._states for task in state.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        await monitor.stop()
        await pool.close()
        await service.peers.links.close()
        sealer.thread.stop(_CLOSE_S)
        service.close()
        _log.info("ended")


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingInvalid(f"the TLS certificate or key cannot be used: {error}") from None
    return context
