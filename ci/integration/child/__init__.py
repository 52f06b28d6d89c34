"""Programs that run in environments of their own, which hold nothing of the farm; nothing imports them."""
