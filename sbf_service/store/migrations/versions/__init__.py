"""One module for each migration. ``down_revision`` in a module is the number of the previous migration."""
