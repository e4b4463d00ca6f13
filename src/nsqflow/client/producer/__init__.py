"""The producer: batching, routing, connections."""
