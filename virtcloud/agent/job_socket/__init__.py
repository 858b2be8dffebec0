"""The agent's AF_UNIX API, through which a batch system on this host sends requests about the clusters of its jobs."""
