"""Connections to nsqd, asyncio and blocking, with a common handshake that does no I/O."""
