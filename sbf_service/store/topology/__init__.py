"""The topology: its documents, and the effects of its changes."""
