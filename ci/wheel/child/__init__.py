"""Scripts that run in a process of their own; nothing imports them."""
