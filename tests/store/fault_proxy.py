"""A proxy before an object store that does something to one request: the n-th, or all from the n-th on."""

import contextlib
import os
import signal
import socket
import struct
import threading
import time

KINDS = ("reset before", "reset after", "503", "409", "500", "slow", "truncated", "garbage")


class FaultProxy:
    """`fail(kind, at)`, then requests are counted from 0 on; `always`: also all after it. `kill(process, at, after)`: the process
    ends with SIGKILL before, or after, the store has seen the request."""

    def __init__(self, endpoint):
        host, port = endpoint.removeprefix("http://").split(":")
        self._store = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self.fail(None, 0)
        threading.Thread(target=self._serve, daemon=True).start()

    def fail(self, kind, at, always=False):
        with self._lock:
            self.requests, self._kind, self._at, self._always, self._process = [], kind, at, always, None

    def kill(self, at, after):
        """Call before the process starts, and set `process` then."""
        self.fail("kill after" if after else "kill before", at)

    def watch(self, process):
        self._process = process

    def _serve(self):
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection):
        with connection, contextlib.suppress(OSError):
            head, body = _request(connection)
            if not head:
                return
            with self._lock:
                number = len(self.requests)
                self.requests.append(head.split(b"\r\n")[0].decode())
                hit = self._kind is not None and (number == self._at or (self._always and number > self._at))
                kind = self._kind if hit else None
            if kind == "kill before":
                self._end_process()
                return
            if kind == "reset before":
                return _reset(connection)
            if kind in ("503", "409", "500"):
                code = {"503": "SlowDown", "409": "OperationAborted", "500": "InternalError"}[kind]
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
                connection.sendall(b"HTTP/1.1 %s No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (kind.encode(), len(text)) + text)
                return
            answer = self._asked(head, body)
            if kind == "kill after":
                self._end_process()
            elif kind == "reset after":
                _reset(connection)
            elif kind == "garbage":
                connection.sendall(b"\x00\xffnot HTTP at all\r\n\r\n")
            elif kind == "slow":
                time.sleep(2.5)
                connection.sendall(answer)
            elif kind == "truncated":
                connection.sendall(answer[: max(1, len(answer) - max(1, len(answer) // 3))])
            else:
                connection.sendall(answer)

    def _end_process(self):
        deadline = time.monotonic() + 5
        while self._process is None and time.monotonic() < deadline:
            time.sleep(0.001)
        os.kill(self._process.pid, signal.SIGKILL)

    def _asked(self, head, body):
        with socket.create_connection(self._store, timeout=60) as store:
            store.sendall(head[:-2] + b"Connection: close\r\n\r\n" + body)
            parts = []
            while part := store.recv(1 << 20):
                parts.append(part)
        return b"".join(parts)


def _request(connection):
    """The head with its empty line, and the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return b"", b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    parts, left = [body], length - len(body)
    while left > 0:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            return b"", b""
        parts.append(part)
        left -= len(part)
    return head + b"\r\n\r\n", b"".join(parts)


def _reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
