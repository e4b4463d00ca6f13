"""HTTP over h11: a client for the daemons' APIs, and a server for those of the broker."""
