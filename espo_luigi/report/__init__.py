"""The report: stores, tables and results become figures and an HTML page. Knows neither Luigi nor the configuration."""
