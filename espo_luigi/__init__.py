"""Bias-adjusted climate scenarios from raw simulations: the ESPO-G production line as Luigi tasks."""

