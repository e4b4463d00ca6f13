"""nsqd over TCP and HTTP: its clients and their commands."""
