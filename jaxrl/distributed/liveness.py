"""Detect the end of a joined process: end the others with one line, too.

Each process keeps a connection to the first one. The operating system closes it when a process
dies; a machine that fails sends nothing more. JAX alone waits longer, and ends the process with a
stack trace of C++.
"""

from __future__ import annotations

import atexit
import hmac
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

LOST_STATUS = 75
"""The exit status of a process that lost another one; cluster/slurm.sh has this number too."""
PING_SECONDS, SILENCE_SECONDS = 3.0, 20.0
"""Time between two messages, and the silence after which a process is taken for dead."""
NOTICE_SECONDS = 3.0
"""So long after a process died, the others know it at the latest, unless its machine failed."""
CONSEQUENCE_SECONDS = 1.0
"""An error that came this long before the notice of another one's error is none of its
consequences."""
KEY = "jaxrl/liveness"
"""Name of the first process's port and secret in JAX's key-value store."""


class Liveness:
    """The connections between the first process and each of the others.

    Args:
      store: the key-value store that JAX's processes share (`DistributedRuntimeClient`).
      host: machine of the first process.

    Raises:
      ConnectionError: if the first process cannot be reached.
    """

    def __init__(self, store: Any, host: str, process_id: int):
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._process_id = process_id
        self._failed_at = math.inf
        self._has_failed = False
        if process_id == 0:
            self._listen(store)
        else:
            port, secret = store.blocking_key_value_get(KEY, 60_000).split()
            try:
                connection = socket.create_connection((host, int(port)), timeout=SILENCE_SECONDS)
                connection.sendall(f"{secret} {process_id}\n".encode())
            except OSError as error:
                raise ConnectionError(
                    f"process {process_id} cannot reach port {port} of {host} ({error}), on which "
                    "the first process notices the end of others; its system chose the port, so "
                    "let a firewall pass all ports between the machines of a run"
                ) from error
            self._watch(connection, read_lines(connection), 0)
        atexit.register(self.leave)

    def fail(self) -> None:
        """Tell the others, after some time, that an error ends this process; they end, too.

        The error may come of another one's end, a moment before its notice. So this process first
        has the time to get the notice, which ends it with one line. The first process, without
        which JAX aborts the others, goes last if all have failed.
        """
        if self._has_failed:
            return
        self._failed_at = time.monotonic()
        time.sleep(NOTICE_SECONDS + (self._process_id == 0))
        self._has_failed = True
        for connection in self._connections:
            send(connection, "failing")

    def leave(self) -> None:
        """Tell the others that this process ends, so that they do not take it for dead."""
        if self._has_failed:  # JAX would wait here for the others, which wait for this process
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        for connection in self._connections:
            send(connection, "bye")

    def _listen(self, store: Any) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        secret = secrets.token_hex(16)
        store.key_value_set(KEY, f"{server.getsockname()[1]} {secret}")

        def greet(connection: socket.socket) -> None:
            connection.settimeout(SILENCE_SECONDS)
            lines = read_lines(connection)
            words = next(lines, "").split()
            if len(words) == 2 and hmac.compare_digest(words[0].encode(), secret.encode()):
                self._watch(connection, lines, int(words[1]))
            else:
                connection.close()

        def accept() -> None:
            while True:  # each in a thread, since a stranger that says nothing holds it up
                connection, _ = server.accept()
                threading.Thread(target=greet, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _watch(self, connection: socket.socket, lines: Iterator[str], other: int) -> None:
        """Exchange messages with another process in threads of their own.

        Args:
          lines: those that arrive, some of which may have been read with the greeting.
        """
        connection.settimeout(SILENCE_SECONDS)
        with self._lock:
            self._connections.append(connection)

        def ping() -> None:
            while send(connection, "alive"):
                time.sleep(PING_SECONDS)

        def listen() -> None:
            end = "lost"
            for line in lines:
                word, _, number = line.partition(" ")
                if word == "bye":
                    return
                if word == "failing":
                    end = "failed"
                elif word in ("lost", "failed"):
                    self._give_up(word, number)
            if not self._has_failed:
                self._give_up(end, str(other))

        for function in (ping, listen):
            threading.Thread(target=function, daemon=True).start()

    def _give_up(self, end: str, other: str) -> None:
        """End this process, and tell the others why, unless its own error will.

        Args:
          end: of the other process: "lost" or "failed".
        """
        if end == "failed" and time.monotonic() - self._failed_at > CONSEQUENCE_SECONDS:
            return
        this = f"process {self._process_id}"
        if end == "failed":
            message = f"{this} ends because process {other} failed, whose output has the error"
        else:
            message = (
                f"{this} lost process {other}, which died or cannot be reached; start all "
                "processes again with --resume"
            )
        with self._lock:
            print(f"error: {message}", file=sys.stderr, flush=True)
            for connection in self._connections:
                send(connection, f"{end} {other}")
            os._exit(1 if end == "failed" else LOST_STATUS)


def send(connection: socket.socket, message: str) -> bool:
    """Send a line; return False if the connection is closed."""
    try:
        connection.sendall(f"{message}\n".encode())
    except OSError:
        return False
    return True


def read_lines(connection: socket.socket) -> Iterator[str]:
    """Yield the lines that arrive until the connection is closed or silent for too long."""
    text = b""
    while True:
        try:
            received = connection.recv(4096)
        except OSError:
            return
        if not received:
            return
        *lines, text = (text + received).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
