"""A whole run: the loop with its files, its checkpoints, and how it ends."""
