"""The consumer: connections, RDY, backoff, the message queue, handlers."""
