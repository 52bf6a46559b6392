"""`python -m ccl` is `ccl`."""

from ccl.cli import main

main()
