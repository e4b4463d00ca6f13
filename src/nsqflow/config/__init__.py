"""Options of all parts of the package: kinds of values, declarations, TLS and AUTH, reference."""
