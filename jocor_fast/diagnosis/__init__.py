"""What the labels are like: which are wrong, how many, and a page to look at them."""
