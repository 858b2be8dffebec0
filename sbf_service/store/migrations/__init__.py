"""The migrations of the database's tables. Each migration is one file in ``versions``."""
