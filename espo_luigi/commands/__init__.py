"""The `espo` command, and what only its commands do. Nothing imports this folder."""
