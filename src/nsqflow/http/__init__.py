"""HTTP for both sides: asking the daemons' APIs, and serving them from the broker. Over h11."""
