"""What stands for SBF where a hook is tried."""
