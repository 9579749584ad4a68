"""Scripts behind docs/measuring.md: each answers one question about layerbench's numbers. See README.md."""
