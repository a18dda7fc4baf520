"""The sockets that workers listen on. The main process opens or inherits them, and keeps them for future workers."""

import errno
import os
import socket

from petstore.errors import OperatorError

BACKLOG = 4096
KERNEL_BUFFER = 128 * 1024  # bytes in each direction; the kernel's default limits are between 4 and 6 MiB
FIRST_ACTIVATED = 3  # the first file descriptor that systemd passes

Sockets = list[socket.socket]
Address = tuple[str, int | None]  # (host, port), or ("unix:" + path, None) for a Unix socket


def check_port(host: str, port: int) -> None:
    """Raises OperatorError if the port is in use.

    Without this check, SO_REUSEPORT would let a second service start on the same port and receive half of the
    connections.
    """
    if not _activated():
        for each in _bound(host, port, shared=False):
            each.close()


def worker_sockets(host: str, port: int, count: int) -> list[Sockets]:
    """Returns a group of sockets for each of `count` workers or, with socket activation, one group for all workers.

    Raises OperatorError if a socket cannot be opened or used.
    """
    if activated_addresses():
        return [[inherited(fd) for fd in _activated()]]
    return open_sockets(host, port, count)


def open_sockets(host: str, port: int, count: int) -> list[Sockets]:
    """Binds a socket to every address of `host` for each of `count` workers. Raises OperatorError on failure.

    A worker listens on its sockets when it is ready. Each worker has its own sockets, so that the kernel distributes
    connections evenly. The main process keeps all sockets open. If a worker dies, its successor inherits the sockets
    and accepts the connections that are waiting.
    """
    return [_bound(host, port, shared=True) for _ in range(count)]


def _bound(host: str, port: int, *, shared: bool) -> Sockets:
    """Binds a socket to every address of `host`. If `shared`, sets SO_REUSEPORT. Raises OperatorError on failure."""
    made: Sockets = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            made.append(socket.socket(family, socket.SOCK_STREAM))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
            if family == socket.AF_INET6:  # IPv4 has its own socket
                made[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made[-1].bind(address)
            _prepare(made[-1])
        return made
    except (socket.gaierror, UnicodeError):
        raise OperatorError(f"--host {host}: no such address") from None
    except OSError as error:
        for each in made:
            each.close()
        if error.errno == errno.EADDRINUSE:
            raise OperatorError(
                f"port {port} on {host} is in use; stop the program that uses it, or choose another --port"
            ) from None
        raise OperatorError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None


def activated_addresses() -> list[Address]:
    """Returns the addresses of the sockets that systemd opened for this process, or [] without socket activation.

    Raises OperatorError if a socket cannot be used.
    """
    return [_address_of(fd) for fd in _activated()]


def _activated() -> range:
    """Returns the file descriptors of the sockets that systemd opened.

    Raises OperatorError if LISTEN_FDS is not a valid number.
    """
    ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    given = os.environ.get("LISTEN_FDS", "0") if ours else "0"
    if not (given.isascii() and given.isdigit() and len(given) < 5):
        raise OperatorError(f"LISTEN_FDS={given}: must be the number of sockets that systemd passes")
    return range(FIRST_ACTIVATED, FIRST_ACTIVATED + int(given))


def _address_of(fd: int) -> Address:
    """Returns the address that a socket listens on. Raises OperatorError if it is not a listening socket."""
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OperatorError(f"LISTEN_FDS: descriptor {fd} is not a listening socket")
            name = found.getsockname()
    except OSError as error:
        raise OperatorError(f"LISTEN_FDS: descriptor {fd} is not a socket: {error.strerror}") from None
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else (f"unix:{os.fsdecode(name)}", None)


def inherited(fd: int) -> socket.socket:
    """Returns the socket with this file descriptor, which another process has passed to this one."""
    os.set_inheritable(fd, False)
    found = socket.socket(fileno=fd)
    _prepare(found)
    return found


def _prepare(listening: socket.socket) -> None:
    """Sets options on a listening socket. Accepted connections inherit its buffer sizes."""
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
