"""Steps, oldest first by their ``down_revision``."""
