"""Robust training with noisy labels by JoCoR."""
