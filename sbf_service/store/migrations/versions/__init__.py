"""One module for each migration. ``down_revision`` of a module is the migration before it."""
