"""``python -m tools.train_tiny_dsa``."""

from tools.train_tiny_dsa.command import main

main()
