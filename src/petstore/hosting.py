"""Who runs the service: its own HTTP server, Granian or any ASGI server; and the console's. One worker or many, TLS."""

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

from petstore.errors import OperatorError, PetstoreError, to_install
from petstore.folder import Hold
from petstore.logs import configuration, logger
from petstore.service import Backends, Service, clock_of, rest_gate
from petstore.settings import Settings
from petstore.web import asgi
from petstore.web.http1 import HEAD_SECONDS, WRITE_SECONDS, Connection
from petstore.web.server import HttpServer
from petstore.workers import supervise

LAST_TURNS = 500


def serve(settings: Settings) -> None:
    """Run the service until it is told to stop. Raises OperatorError."""
    hold = Hold(settings.data)  # by the main process too: between two workers the folder is not free
    if settings.server == "granian":
        _serve_by_granian(settings)
    else:
        supervise(settings.workers, partial(_work, settings))
    hold.release()
    rest_gate(settings)


def _work(settings: Settings) -> None:
    """One worker process, from start to end."""
    import uvloop

    uvloop.run(_serve_http(settings))


async def _serve_http(settings: Settings) -> None:
    service = Service(settings, supervised=True)
    server = HttpServer(await service.start())
    service.every_second.append(server.tick)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = await loop.create_server(
        lambda: Connection(server),
        settings.host,
        settings.port,
        backlog=4096,
        reuse_port=True,  # the kernel spreads the connections over the workers
        ssl=(tls := tls_context(settings)),
        ssl_handshake_timeout=HEAD_SECONDS if tls else None,
        ssl_shutdown_timeout=WRITE_SECONDS if tls else None,
    )
    await stop.wait()
    for _ in range(LAST_TURNS):  # who is connected already would be reset; a turn of the loop accepts one
        await asyncio.sleep(0)
    listener.close()
    await server.drain()
    await service.stop()


def serve_console(settings: Settings, greet: Callable[[str], None]) -> None:
    """Run the console until it is told to stop; `greet` is given the address to sign in at.

    Raises OperatorError when the packages for it are missing.
    """
    try:
        import python_multipart  # noqa: F401  # Starlette wants it when the first form comes, which is too late
        import uvicorn

        from petstore.console.app import console
        from petstore.console.guard import Addresses
        from petstore.console.jobs import Jobs
        from petstore.console.sessions import Sessions
    except ImportError as error:
        raise OperatorError(f"the console needs the package {error.name}: {to_install('console')}") from None

    async def run() -> None:
        clock = clock_of(settings)
        addresses, sessions = Addresses(settings), Sessions(clock)
        async with Backends(settings) as backends:
            with Jobs() as jobs:
                app = console(backends.stores, backends.gate, clock, addresses, sessions, jobs)
                server = uvicorn.Server(uvicorn.Config(app, **_uvicorn_options(settings)))
                # Uvicorn's own handling of signals would end the process by the signal instead of with code 0.
                server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]  # see above
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
                greet(f"{addresses.origin}/sign-in?token={sessions.new_link_token()}")
                await server.serve()

    asyncio.run(run())


def _uvicorn_options(settings: Settings) -> dict[str, Any]:
    return {
        "host": settings.host,
        "port": settings.port,
        "http": "h11",  # it ends a head at 64 KiB; httptools takes all that anyone sends, before they are known
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_graceful_shutdown": 2,
    }


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Raises OperatorError when the certificate or its key cannot be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for option, file in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
        if not os.access(file, os.R_OK):
            raise OperatorError(f"{option} {file}: no such file, or no rights to read it")
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(
            f"--tls-cert {settings.tls_cert} and --tls-key {settings.tls_key}: not PEM, or not of one another ({error})"
        ) from error
    return context


def _serve_by_granian(settings: Settings) -> None:
    from granian.constants import HTTPModes, Interfaces, Loops
    from granian.http import HTTP1Settings
    from granian.server import Server

    # Called in each worker process: nothing is opened before the fork.
    load: Any = partial(RsgiService, settings)
    Server(
        "petstore",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.RSGI,
        workers=settings.workers,
        loop=Loops.uvloop,
        http=HTTPModes.auto,
        websockets=False,
        backlog=4096,
        backpressure=16_384,
        http1_settings=HTTP1Settings(header_read_timeout=8_000, max_buffer_size=128 * 1024),
        log_dictconfig=configuration(),
        log_level="warning",  # type: ignore[arg-type]  # an enumeration of strings
        ssl_cert=settings.tls_cert,
        ssl_key=settings.tls_key,
        respawn_failed_workers=True,
        respawn_interval=0.1,
        workers_kill_timeout=4,
    ).serve(target_loader=load, wrap_loader=False)


class RsgiService:
    """What Granian runs in a worker process."""

    def __init__(self, settings: Settings) -> None:
        self._service = Service(settings, supervised=True)

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        from petstore.web import rsgi

        self._respond = partial(rsgi.respond, loop.run_until_complete(self._service.start()))

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self._service.stop())

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        await self._respond(scope, proto)


class AsgiService:
    """The same service for any ASGI server that speaks the lifespan protocol."""

    def __init__(self, settings: Settings) -> None:
        self._service = Service(settings, supervised=False)  # whoever started the server may go: a shell, say

    async def __call__(self, scope: MutableMapping[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # a refusal: there is nothing of the kind here
        elif scope["type"] == "http":
            await asgi.respond(self._service.app, scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            try:
                await self._service.start()
            except Exception as error:  # a server that is not told takes it for an app without a lifespan, and serves
                if not isinstance(error, PetstoreError):
                    logger.exception("worker failed")
                await send({"type": "lifespan.startup.failed", "message": f"petstore: {error}"})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._service.stop()
            await send({"type": "lifespan.shutdown.complete"})
