"""Sections of luigi.cfg and cluster profiles, read into the values that the engines take.

It imports `jobs` only. Tasks, engines and commands ask it; all its errors name the section, the file and the key.
"""
