"""What people look at: curves, tables, the page of an audit, and the progress on the screen.

A run's metrics are a list of dicts (the lines of metrics.jsonl); rates and accuracies are fractions in [0, 1], and what
does not apply is None. Percent appears only in what is drawn or printed.
"""
