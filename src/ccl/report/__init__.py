"""Reports of runs: tables, figures and one self-contained page."""
