"""The traffic of clusters on this host."""
