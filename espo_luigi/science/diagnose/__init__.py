"""Properties of a climate, measures of improvement, health checks, and summaries for the report.

Imports only the shared modules of `science`. Gives maps, tables and flags.
"""
