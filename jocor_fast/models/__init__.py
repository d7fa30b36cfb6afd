"""The networks by name, and the weights that they start from."""
