"""What a received message costs: this decoder beside those of pynsq and ansq.

Each gets the same bytes, frames with bodies of 200 bytes in reads of 64 KiB, and makes of
them what its consumer gets to see. The peers are spared their I/O: pynsq's frames are cut
out of the read by plain slices where it would ask Tornado's stream for them twice a frame.
Ours goes through the whole ``ClientSession``. "columns" are what the Spark reader takes: ids,
attempts and timestamps, and where each body lies in the bytes received; the peers copy each
body into an object of its own, as do our messages, and our columns in the second row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from ansq.tcp.protocol import Reader
from nsq import protocol as pynsq

from benchmarks.rounds import MIN_SECONDS, ROUNDS, Contender, Goal, run
from nsqflow.protocol import (
    ClientSession,
    FrameType,
    Message,
    MessageBatch,
    Sub,
    encode_frame,
    encode_messages,
)

BODY_SIZE = 200
COUNT = 28_000  # some 100 reads
READ_SIZE = 64 * 1024

SIZE = Struct(">l")


def make_reads() -> list[bytes]:
    stream = encode_messages(
        Message(1_700_000_000_000_000_000 + i, 1, b"%016x" % i, i.to_bytes(4, "big") * 50)
        for i in range(COUNT)
    )
    return [stream[i : i + READ_SIZE] for i in range(0, len(stream), READ_SIZE)]


def subscribed_session() -> ClientSession:
    session = ClientSession()
    session.receive_data(encode_frame(FrameType.RESPONSE, b"OK"))
    session.events()
    session.send(Sub("topic", "channel"))
    session.receive_data(encode_frame(FrameType.RESPONSE, b"OK"))
    session.events()
    return session


def nsqflow_session(reads: list[bytes], decode_batch: Callable[[MessageBatch], int]) -> Contender:
    session = subscribed_session()

    def decode() -> int:
        count = 0
        for data in reads:
            session.receive_data(data)
            while events := session.events():
                for event in events:
                    if isinstance(event, MessageBatch):
                        count += decode_batch(event)
        return count

    return decode


def located_columns(batch: MessageBatch) -> int:
    """All columns; of the bodies where they lie, which is what Arrow needs."""
    columns = batch.columns()
    return len(columns.body_starts())


def copied_columns(batch: MessageBatch) -> int:
    """All columns, and the bodies as objects."""
    return len(batch.columns().bodies())


def message_objects(batch: MessageBatch) -> int:
    return len(batch.messages())


def pynsq_messages(reads: list[bytes]) -> Contender:
    def decode() -> int:
        count = 0
        rest = b""
        for data in reads:
            data = rest + data
            pos, messages = 0, []
            while pos + 4 <= len(data):
                (size,) = SIZE.unpack(data[pos : pos + 4])
                if pos + 4 + size > len(data):
                    break
                kind, frame = pynsq.unpack_response(data[pos + 4 : pos + 4 + size])
                if kind == pynsq.FRAME_TYPE_MESSAGE:
                    messages.append(pynsq.decode_message(frame))
                pos += 4 + size
            rest = data[pos:]
            count += len(messages)
        return count

    return decode


def ansq_messages(reads: list[bytes]) -> Contender:
    def decode() -> int:
        reader = Reader()
        count = 0
        for data in reads:
            reader.feed(data)
            messages = []
            while (message := reader.get()) is not None:
                messages.append(message)
            count += len(messages)
        return count

    return decode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=MIN_SECONDS, help="of each run")
    args = parser.parse_args()
    reads = make_reads()
    contenders = {
        "nsqflow, columns": nsqflow_session(reads, located_columns),
        "nsqflow, columns and bodies": nsqflow_session(reads, copied_columns),
        "nsqflow, messages": nsqflow_session(reads, message_objects),
        "pynsq": pynsq_messages(reads),
        "ansq": ansq_messages(reads),
    }
    for name, contender in contenders.items():
        assert contender() == COUNT, f"{name} did not decode all messages"
    peers = ("pynsq", "ansq")
    goals = [Goal("nsqflow, columns", peers, 4), Goal("nsqflow, messages", peers, 2)]
    return run(
        f"decoding messages of {BODY_SIZE} bytes",
        contenders,
        goals,
        json_file=args.json,
        rounds=args.rounds,
        seconds=args.seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
