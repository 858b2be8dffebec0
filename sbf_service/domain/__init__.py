"""The rules of the service. All modules are *pure*: they read no file, no clock and no database."""
