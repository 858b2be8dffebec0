"""Users: tokens, sessions with the console, quotas, SSH keys and images."""
