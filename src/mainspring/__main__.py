"""`python -m mainspring` is the `mainspring` command."""

from mainspring.cli import main

main()
