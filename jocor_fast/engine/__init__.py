"""The training run: settings, step, epoch loop, evaluation, checkpoints and files."""
