"""Run all benchmarks, or those named: ``python benchmarks [NAME ...] [--quick] [--json]``."""

import argparse
import importlib
import sys
from pathlib import Path

import harness

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def main(argv: list[str] | None = None) -> int:
    """Run each benchmark's own main; return the first exit status that is not 0."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; all when none is given")
    names, flags = parser.parse_known_args(argv)
    unknown = sorted(set(names.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    harness.use_one_thread()
    status = 0
    for name in names.names or NAMES:
        status = importlib.import_module(f"bench_{name}").main(flags) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
