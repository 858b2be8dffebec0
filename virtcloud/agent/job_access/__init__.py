"""Access of a job's script to the guests of the job's cluster: files, environment variables and a relay."""
