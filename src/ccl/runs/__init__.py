"""One run: from settings to a finished run folder, however often it is interrupted. And grids of runs."""
