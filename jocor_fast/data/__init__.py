"""What is read, and how: data sets in memory and in files, and files of labels."""

from jocor_fast.data.catalogue import (
    CSV_PREFIX,
    DATASETS,
    FOLDER_PREFIX,
    NPZ_PREFIX,
    default_root,
    find_dataset,
    has_a_place,
    holds_files,
    load_dataset,
)
from jocor_fast.data.classes import class_numbers, label_values, number_classes
from jocor_fast.data.clothing1m import NAME as CLOTHING1M
from jocor_fast.data.dataset import DataError, Dataset
from jocor_fast.data.image_set import ImageDataset
from jocor_fast.data.labels import read_labels
from jocor_fast.data.loaders import LOADERS, choose_loader
from jocor_fast.data.preprocessing import NORMALISATIONS

__all__ = [
    "CLOTHING1M",
    "CSV_PREFIX",
    "DATASETS",
    "FOLDER_PREFIX",
    "LOADERS",
    "NORMALISATIONS",
    "NPZ_PREFIX",
    "DataError",
    "Dataset",
    "ImageDataset",
    "choose_loader",
    "class_numbers",
    "default_root",
    "find_dataset",
    "has_a_place",
    "holds_files",
    "label_values",
    "load_dataset",
    "number_classes",
    "read_labels",
]
