"""The paper's experiments: settings, published results, tables, and the queue that runs them."""
