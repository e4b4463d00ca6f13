"""A cluster of the redesigned NSQ: partitions, leaders, ordered consumption, tracing."""
