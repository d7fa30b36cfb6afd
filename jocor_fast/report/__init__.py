"""What people look at: curves, tables, and the progress on the screen.

A run's metrics are a list of dicts (the lines of metrics.jsonl); rates and accuracies are fractions in [0, 1], percent
where they are shown.
"""
