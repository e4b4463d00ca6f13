"""A client that sends random and invalid data, in a process of its own.

    python -m tests.faults.broker.fuzzer SEED NSQD HTTP COUNT

It makes COUNT connections, and then prints how often it sent what, as a line of JSON.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import struct
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

MAGIC = b"  V2"
PATIENCE = 0.1  # seconds to wait for a response
THREADS = 8
SNAPPY = b"\xff\x06\0\0sNaPpY"


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def identify(**values: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps({"feature_negotiation": True} | values).encode())


VALID = [
    identify(),
    identify(snappy=True),
    identify(deflate=True, deflate_level=3),
    identify(tls_v1=True),
    identify(heartbeat_interval=1000, msg_timeout=1000, sample_rate=50),
    b"SUB fuzz ch#ephemeral\n",
    b"RDY 10\n",
    b"PUB fuzz\n" + sized(b"a message"),
    b"MPUB fuzz\n" + sized(struct.pack(">i", 2) + sized(b"one") + sized(b"two")),
    b"DPUB fuzz 10\n" + sized(b"later"),
    b"FIN 0123456789abcdef\n",
    b"REQ 0123456789abcdef 100\n",
    b"TOUCH 0123456789abcdef\n",
    b"NOP\n",
    b"CLS\n",
    b"AUTH\n" + sized(b"secret"),
]

HTTP = [
    b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0\r\n\r\n",
    b"POST /mpub?topic=fuzz&binary=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n\xff\0\0\0",
    b"GET /stats?format=json HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PUT /config/log_level HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nnope",
    b"POST /topic/create?topic=%00%ff HTTP/1.1\r\nHost: a\r\n\r\n",
]
BOMB = zlib.compress(bytes(50_000_000), 9, -15)


class Fuzzer:
    """Generates invalid data, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def noise(self) -> bytes:
        """Return random bytes."""
        return self._random.randbytes(self._random.choice([1, 4, 50, 5_000, 100_000]))

    def noise_after_magic(self) -> bytes:
        """Return random bytes after a valid magic."""
        return MAGIC + self.noise()

    def mutated(self) -> bytes:
        """Return commands with random changes, or in the wrong order."""
        data = bytearray(b"".join(self._random.choices(VALID, k=self._random.randint(1, 6))))
        for _ in range(self._random.randint(0, 4)):
            self._mutate(data)
        return MAGIC + bytes(data)

    def sizes(self) -> bytes:
        """Return a body with a wrong or forbidden size."""
        size = self._random.choice([-1, -(2**31), 0, 2**31 - 1, 1024 * 1024 + 1, 10, 3])
        line = self._random.choice([b"PUB fuzz\n", b"MPUB fuzz\n", b"IDENTIFY\n", b"DPUB fuzz 1\n"])
        return MAGIC + line + struct.pack(">i", size) + b"four" * self._random.randint(0, 100)

    def counts(self) -> bytes:
        """Return an MPUB with a wrong count or size."""
        count, size = (self._random.choice([-1, 0, 2**31 - 1, 3, 1_000_000]) for _ in range(2))
        return MAGIC + b"MPUB fuzz\n" + sized(struct.pack(">ii", count, size) + b"x" * 100)

    def names(self) -> bytes:
        """Return a command with an invalid name."""
        name = self._random.choice([b"", b"a" * 65, b"\xff\0", b"a b", b"#ephemeral", b"a" * 9_000])
        command = self._random.choice([b"SUB %b ch\n", b"SUB fuzz %b\n", b"PUB %b\n\0\0\0\1x"])
        return MAGIC + command % name

    def documents(self) -> bytes:
        """Return an invalid IDENTIFY."""
        bodies = [
            *(b"", b"{", b"[]", b"null", b"\xff", b"[" * 50_000, b'{"client_id": 7}'),
            *(b'{"heartbeat_interval": 1e999}', b'{"sample_rate": -1}', b'{"msg_timeout": 9e30}'),
            b'{"msg_timeout": %b}' % (b"9" * 5_000),
        ]
        return MAGIC + b"IDENTIFY\n" + sized(self._random.choice(bodies))

    def compressed(self) -> bytes:
        """Return invalid or huge data after snappy or deflate was negotiated."""
        method = self._random.choice(["snappy", "deflate"])
        bodies = {
            "snappy": [self.noise(), SNAPPY + self.noise(), SNAPPY + b"\0\xff\xff\xff" + b"x" * 99],
            "deflate": [self.noise(), BOMB],
        }
        return MAGIC + identify(**{method: True}) + self._random.choice(bodies[method])

    def web(self) -> bytes:
        """Return an HTTP request with random changes, or noise."""
        if self._random.random() < 0.2:
            return self.noise()
        data = bytearray(self._random.choice(HTTP))
        for _ in range(self._random.randint(0, 4)):
            self._mutate(data)
        return bytes(data)

    def _mutate(self, data: bytearray) -> None:
        at = self._random.randrange(len(data) + 1)
        match self._random.randrange(4):
            case 0:
                data[at : at + 1] = self._random.randbytes(1)
            case 1:
                del data[at : at + self._random.randint(1, 20)]
            case 2:
                data[at:at] = self._random.randbytes(self._random.randint(1, 20))
            case _:
                data[at:at] = data[: self._random.randint(0, 50)]


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def send(where: tuple[str, int], data: bytes, reset: bool) -> None:
    """Send data, read responses for a moment, and close or reset the connection."""
    with closing(socket.create_connection(where)) as connection, suppress(OSError):
        connection.settimeout(PATIENCE)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(data)
        if not reset:
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def break_handshake(where: tuple[str, int], data: bytes) -> None:
    """Negotiate TLS and send garbage, or leave during the handshake."""
    with closing(socket.create_connection(where)) as connection, suppress(OSError, ssl.SSLError):
        connection.settimeout(PATIENCE)
        connection.sendall(MAGIC + identify(tls_v1=True))
        connection.recv(65536)
        connection.sendall(b"\x16\x03\x01\x02\0" + data if len(data) % 2 else data)
        connection.recv(65536)


def send_slowly(where: tuple[str, int], data: bytes, over: threading.Event) -> None:
    """Send data a byte at a time."""
    with closing(socket.create_connection(where)) as connection, suppress(OSError):
        for at in range(len(data)):
            if over.wait(0.05):
                return
            connection.sendall(data[at : at + 1])


def run(seed: int, nsqd: tuple[str, int], http: tuple[str, int], count: int) -> Counter[str]:
    """Make ``count`` connections; return how often what was sent."""
    chance, fuzzer = random.Random(seed), Fuzzer(seed)
    kinds: list[Callable[[], bytes]] = [
        *(fuzzer.noise, fuzzer.noise_after_magic, fuzzer.mutated, fuzzer.mutated, fuzzer.sizes),
        *(fuzzer.counts, fuzzer.names, fuzzer.documents, fuzzer.compressed, fuzzer.web),
    ]
    sent: Counter[str] = Counter()
    for _ in range(count):
        kind = chance.choice(kinds)
        send(http if kind == fuzzer.web else nsqd, kind(), reset=chance.random() < 0.3)
        sent[kind.__name__] += 1
        if chance.random() < 0.05:
            break_handshake(nsqd, fuzzer.noise())
            sent["tls"] += 1
    return sent


def main(seed: int, nsqd: tuple[str, int], http: tuple[str, int], count: int) -> None:
    over = threading.Event()
    with ThreadPoolExecutor(40 + THREADS) as pool:
        for where, data in ((http, HTTP[1]), (nsqd, MAGIC + VALID[7])):
            for _ in range(20):
                pool.submit(send_slowly, where, data, over)
        share = count // THREADS
        runs = [pool.submit(run, seed + n, nsqd, http, share) for n in range(THREADS)]
        try:
            sent = sum((each.result() for each in runs), Counter[str]())
        finally:
            over.set()
    print(json.dumps(sent))


if __name__ == "__main__":
    main(int(sys.argv[1]), address(sys.argv[2]), address(sys.argv[3]), int(sys.argv[4]))
