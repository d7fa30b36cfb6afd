"""What is read, and how: data sets in memory, and files of labels."""

from jocor_fast.data.catalogue import DATASETS, NPZ_PREFIX, default_root, find_dataset, load_dataset
from jocor_fast.data.classes import LabelError, class_numbers, label_values, number_classes
from jocor_fast.data.dataset import DataError, Dataset
from jocor_fast.data.labels import Labels, read_labels

__all__ = [
    "DATASETS",
    "NPZ_PREFIX",
    "DataError",
    "Dataset",
    "LabelError",
    "Labels",
    "class_numbers",
    "default_root",
    "find_dataset",
    "label_values",
    "load_dataset",
    "number_classes",
    "read_labels",
]
