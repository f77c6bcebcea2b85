"""Write dashboards/ from the catalogue and the alert settings, or check with --check that it is up to date."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hisparse.dashboards import dashboard_json, rules_yaml
from hisparse.dashboards.alerts import RUNBOOK

FOLDER = Path(__file__).resolve().parent.parent / "dashboards"


def generated(runbook: str) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {"hisparse.json": dashboard_json(), "alerts.yml": rules_yaml(runbook=runbook)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files; return 1 when one is not what would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    parser.add_argument("--runbook", default=RUNBOOK, help="address of the runbook, for runbook_url")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    parsed = parser.parse_args(arguments)
    files = generated(parsed.runbook)
    if parsed.check:
        old = [name for name, text in files.items() if not _is_written(parsed.folder / name, text)]
        for name in old:
            print(f"{parsed.folder / name} is out of date: run python tools/generate_dashboards.py")
        return int(bool(old))
    parsed.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (parsed.folder / name).write_text(text, encoding="utf-8")
        print(f"wrote {parsed.folder / name}")
    return 0


def _is_written(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
