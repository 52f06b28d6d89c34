"""The static rules, one file each."""
