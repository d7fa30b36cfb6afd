"""Data sets of image files: lists of them, decoders, and the source that feeds a run."""
