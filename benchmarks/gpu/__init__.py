"""What a machine with a GPU measures and proves, part by part, each within its budget (`make gpu`)."""
