"""Sections of luigi.cfg and cluster profiles, as the values that the engines take."""
