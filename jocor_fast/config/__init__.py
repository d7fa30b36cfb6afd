"""From options to what a run trains on: their declarations, values, presets, and the runs that are read back."""
