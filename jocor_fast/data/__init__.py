"""What is read, and how: data sets in memory, and files of labels."""
