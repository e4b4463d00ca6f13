"""The asyncio client: producers and consumers."""
