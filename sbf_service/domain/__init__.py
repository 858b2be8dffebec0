"""PURE. Who may do what: principals, the table of rights, what a token looks like, quotas."""
