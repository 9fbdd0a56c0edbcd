"""How a run stands, for people: as a table in a terminal or as lines of text."""
