"""Listening sockets: the main process opens them, or inherits them, and keeps them for all workers to come."""

import errno
import os
import socket

from petstore.errors import OperatorError

BACKLOG = 4096
KERNEL_BUFFER = 128 * 1024  # bytes that the kernel holds in each direction; by itself it takes 4 to 6 MiB
FIRST_ACTIVATED = 3  # the first descriptor that systemd passes

Sockets = list[socket.socket]
Address = tuple[str, int | None]  # a host and a port, or a name that begins with `unix:`


def check_port(host: str, port: int) -> None:
    """Raises OperatorError when the port is in use.

    Listening itself would not tell: with SO_REUSEPORT a second service could start and take half of the connections.
    """
    if not _activated():
        for each in _listening(host, port, shared=False):
            each.close()


def worker_sockets(host: str, port: int, count: int) -> list[Sockets]:
    """The sockets of each of `count` workers, or those of systemd, which serve all alike. Raises OperatorError."""
    if activated_addresses():
        return [[inherited(fd) for fd in _activated()]]
    return open_sockets(host, port, count)


def open_sockets(host: str, port: int, count: int) -> list[Sockets]:
    """For each of `count` workers a socket on every address of `host`. Raises OperatorError.

    Each worker has a socket of its own, so that the kernel spreads connections evenly. The main process keeps all of
    them: connections that wait at the socket of a worker that died are taken by the next one.
    """
    return [_listening(host, port, shared=True) for _ in range(count)]


def _listening(host: str, port: int, *, shared: bool) -> Sockets:
    """A socket on every address of `host`; `shared`: other sockets may listen there too. Raises OperatorError."""
    made: Sockets = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            made.append(socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared))
            _prepare(made[-1])
        return made
    except (socket.gaierror, UnicodeError):
        raise OperatorError(f"--host {host}: no such address") from None
    except OSError as error:
        for each in made:
            each.close()
        if error.errno == errno.EADDRINUSE:
            raise OperatorError(
                f"port {port} on {host} is in use; stop what runs there or choose another --port"
            ) from None
        raise OperatorError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None


def activated_addresses() -> list[Address]:
    """The addresses of the sockets that systemd has opened for this process; empty without socket activation.

    Raises OperatorError when one of the sockets cannot be served.
    """
    return [_address_of(fd) for fd in _activated()]


def _activated() -> range:
    """The descriptors of these sockets. Raises OperatorError."""
    ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    given = os.environ.get("LISTEN_FDS", "0") if ours else "0"
    if not (given.isascii() and given.isdigit() and len(given) < 5):
        raise OperatorError(f"LISTEN_FDS={given}: must be the number of sockets that systemd passes")
    return range(FIRST_ACTIVATED, FIRST_ACTIVATED + int(given))


def _address_of(fd: int) -> Address:
    """Raises OperatorError."""
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OperatorError(f"LISTEN_FDS: descriptor {fd} is a socket that does not listen")
            name = found.getsockname()
    except OSError as error:
        raise OperatorError(f"LISTEN_FDS: descriptor {fd} is not a socket: {error.strerror}") from None
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else (f"unix:{os.fsdecode(name)}", None)


def inherited(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    found = socket.socket(fileno=fd)
    _prepare(found)
    return found


def _prepare(listening: socket.socket) -> None:
    """Accepted connections inherit the buffers."""
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
