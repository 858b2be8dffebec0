"""Access of a job's script to the guests of its cluster: files, environment and a relay."""
