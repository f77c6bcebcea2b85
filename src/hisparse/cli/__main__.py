"""``python -m hisparse.cli``."""

from hisparse.cli.app import main

main()
