"""Clusters and their guests: creation, queries, views and state transitions."""
