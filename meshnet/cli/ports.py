"""Whether a port can be had, and who holds it where the system tells."""

from __future__ import annotations

import errno
import socket

import psutil

from meshnet.domain.errors import StartError


def check_free(host: str, port: int, change: str) -> None:
    """Raises StartError naming address, holder and what to do (``change`` says where to choose another port)."""
    if port == 0:
        return
    try:
        _try_bind(host, port)
    except socket.gaierror:
        raise StartError(f"{host!r} is no address of this machine. {change}") from None
    except OverflowError:
        raise StartError(f"{port} is no port: 0 to 65535. {change}") from None
    except OSError as error:
        raise StartError(_why(host, port, error, change)) from None


def holder(port: int) -> str | None:
    """``python3 (pid 4711)`` that listens on the port; None when the system does not tell us."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            return _describe(connection.pid)
    return None


def _try_bind(host: str, port: int) -> None:
    family, kind, proto, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, proto) as probe:
        # As the daemons bind: connections in TIME_WAIT do not count, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _why(host: str, port: int, error: OSError, change: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            by = holder(port)
            return f"Port {port} on {host} is in use{f' by {by}' if by else ''}. Stop that program, or {change}"
        case errno.EACCES:
            return f"Port {port} needs more rights than you have (below 1024). {change.capitalize()}"
        case _:
            return f"Cannot listen on {host}:{port}: {error.strerror}. {change.capitalize()}"


def _describe(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        module = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == "-m"), "")
        return f"{process.name()}{f' -m {module}' if module else ''} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"
