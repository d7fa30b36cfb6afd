"""The training loop: settings, steps, epochs, evaluation, and several processes."""
