"""The operations of the HTTP API, one module per resource; each has a ``router``."""
