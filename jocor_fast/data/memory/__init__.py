"""Data sets that fit in memory: digits, MNIST's and CIFAR's files, .npz archives."""
