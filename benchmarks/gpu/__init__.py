"""Prove and measure on a machine with a GPU, part by part, each within its budget (`make gpu`)."""
