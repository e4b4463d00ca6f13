"""The spool: what was read from NSQ and not yet committed by Spark."""
