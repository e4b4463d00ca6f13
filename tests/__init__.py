"""A package only so that tests can import tests.fixtures; the folders below need no such file."""
