"""How files are written and what they are called."""
