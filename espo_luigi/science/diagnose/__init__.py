"""Properties of a climate, measures of improvement, health checks, and summaries for the report.

Imports the shared modules of `science`, extraction and regridding. Gives maps, tables and flags.
"""
