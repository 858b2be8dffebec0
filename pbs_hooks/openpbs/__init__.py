"""OpenPBS: the hooks, what installs them, and what says how they are."""
