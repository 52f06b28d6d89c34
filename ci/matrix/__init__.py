"""The build matrix: ``matrix.toml`` → checked file → accepted and rejected cells."""
