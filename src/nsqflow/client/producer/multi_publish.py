"""Publishing several messages at once: split by size, with the results as ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nsqflow.client.producer.accumulator import Accumulator
from nsqflow.client.producer.publish_batch import PublishBatch, PublishFuture, split_by_size
from nsqflow.errors import BadBodyError, BadMessageError, NsqError, PublishUncertain, Ranges
from nsqflow.protocol.publish import Bodies


class MultiPublish:
    """One ``publish_many``: ``make`` returns a batch of some of its bodies."""

    def __init__(
        self, accumulator: Accumulator, bodies: Bodies, make: Callable[[Bodies], PublishBatch]
    ) -> None:
        self._accumulator = accumulator
        self._bodies = bodies
        self._make = make

    async def run(self, max_body_size: int) -> None:
        """Publish in batches of up to ``max_body_size`` bytes; raise the worst of the errors."""
        bodies = self._bodies
        parts: list[range]
        errors: list[NsqError | None]
        if 4 + 4 * len(bodies) + bodies.total <= max_body_size:
            try:
                await self._start(bodies)
                return
            except NsqError as error:
                parts, errors = [range(len(bodies))], [error]
        else:
            parts = [part for part in split_by_size(bodies, max_body_size) if part]
            errors = await self._send(parts)
        if any(errors):
            await self._raise_worst(parts, errors)

    def _start(self, bodies: Bodies) -> PublishFuture:
        batch = self._make(bodies)
        self._accumulator.find_destination(batch)
        return self._accumulator.send_batch(batch)

    async def _send(self, parts: list[range]) -> list[NsqError | None]:
        """Publish each part in a command of its own; return the error of each."""
        futures: list[PublishFuture] = []
        try:
            for part in parts:
                some = Bodies(self._bodies[part.start : part.stop])
                futures.append(self._start(some))
            return [await _error_of(future) for future in futures]
        finally:
            for future in futures:
                _cancel(future)

    async def _raise_worst(self, parts: list[range], errors: list[NsqError | None]) -> None:
        """Raise the worst of ``errors``, with the ranges of all results."""
        results: dict[int, NsqError | None] = {}
        for part, error in zip(parts, errors, strict=True):
            results |= dict.fromkeys(part, error)
            if isinstance(error, BadMessageError | BadBodyError) and len(part) > 1:
                # Nothing of it was stored: send each alone, so that only the bad one fails.
                again = await self._send([range(i, i + 1) for i in part])
                results |= dict(zip(part, again, strict=True))
        failed = [error for error in results.values() if error is not None]
        if failed:
            worst = next((e for e in failed if isinstance(e, PublishUncertain)), failed[0])
            worst.ranges = _ranges(results)
            worst.add_note(f"publish_many: {worst.ranges}")
            raise worst


async def _error_of(future: PublishFuture) -> NsqError | None:
    try:
        await future
    except NsqError as error:
        return error
    return None


def _cancel(future: PublishFuture) -> None:
    """Cancel a message that was not sent; mark the exception of another as retrieved."""
    if not future.cancel() and not future.cancelled():
        future.exception()


def _ranges(results: Mapping[int, NsqError | None]) -> Ranges:
    by_result: dict[str, list[range]] = {"accepted": [], "refused": [], "uncertain": []}
    for index in sorted(results):
        error = results[index]
        uncertain = isinstance(error, PublishUncertain)
        ranges = by_result["accepted" if error is None else "uncertain" if uncertain else "refused"]
        if ranges and ranges[-1].stop == index:
            ranges[-1] = range(ranges[-1].start, index + 1)
        else:
            ranges.append(range(index, index + 1))
    return Ranges(*(tuple(ranges) for ranges in by_result.values()))
