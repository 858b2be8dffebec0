"""The lab with a real OpenPBS that tests run in."""

HOSTS = ("brno-h1", "praha-h1", "plzen-h1")
TIMING = {"connect_timeout": 2, "read_timeout": 4, "retry_first": 0.2, "retry_most": 1, "drain_deadline": 20}
SETTINGS = {"server": {"retry_after": 3, "breaker": 2, "setup": 30}, "mom": {"patience": 25}}
RECONCILIATION = {"interval": 1, "grace": 4, "grace_empty": 8}
"""Short, so that a test of a fault takes seconds."""
