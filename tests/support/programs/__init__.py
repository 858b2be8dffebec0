"""Programs that tests start: PostgreSQL, Open vSwitch, SBF, sshd, and small servers."""
