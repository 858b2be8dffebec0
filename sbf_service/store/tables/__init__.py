"""The database tables."""
