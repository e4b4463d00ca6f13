"""The client: meaning becomes your coroutine."""
