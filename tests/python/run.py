"""Runs all tests of this folder on the intarsia that `import intarsia` finds; pytest is not needed.

    run.py [NAME ...]      such as: run.py tensor world
"""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main(names):
    files = sorted(HERE.glob("test_*.py"))
    if names:
        files = [HERE / f"test_{name}.py" for name in names]
    failed = [file.name for file in files if subprocess.run([sys.executable, file], timeout=300).returncode]
    print(f"{len(files) - len(failed)} of {len(files)} files passed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
