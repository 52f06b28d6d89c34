"""Programs that run inside an image; they import nothing of the farm."""
