"""Maintenance: migrations, backups, restores, retention, outages, the audit log and counts for metrics."""
