"""Compares docs/generated/ops.md with what the table of rules says.

    ops_page.py PATH_OF_INTARSIA [--update]

Exits with 1 where they differ; --update writes the page. Missing rows come from docs/generated/missing_rules.json,
which `intarsia ops check all --update-missing docs/generated/missing_rules.json` writes.
"""

import difflib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "generated" / "ops.md"
MISSING = ROOT / "docs" / "generated" / "missing_rules.json"


def main(program, update=False):
    command = [program, "ops", "--markdown", "--missing", MISSING]
    wanted = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    if update:
        PAGE.write_text(wanted)
        return 0
    page = PAGE.read_text()
    if page == wanted:
        return 0
    print(*difflib.unified_diff(page.splitlines(), wanted.splitlines(), "the page", "the table", lineterm=""), sep="\n")
    print(f"{PAGE} is not what the table says; run python tests/tools/ops_page.py {program} --update")
    return 1


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--update"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:] == ["--update"]))
