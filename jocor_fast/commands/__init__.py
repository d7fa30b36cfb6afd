"""The commands of `jocor-fast`, a module each: what they take, what they do, what they print."""
