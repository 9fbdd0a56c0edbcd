"""The report: from stores, tables and results to figures and one HTML page; no Luigi and no configuration."""
