"""nsqd over TCP and HTTP: its clients, and what it does with their commands."""
