"""What is read, and how: data sets in memory and in files, and files of labels."""
