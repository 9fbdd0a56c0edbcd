"""From daily scenarios to what people use: indicators, climatologies, warming levels, ensembles, regions."""
