"""What happens to jobs that ask for a cluster: the same scenarios on a fake batch system and on a real OpenPBS."""
