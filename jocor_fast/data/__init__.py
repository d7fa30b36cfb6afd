"""What is read: data sets in memory and of image files, torch Datasets, and files of labels."""
