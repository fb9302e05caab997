"""Packages that people install beside Intarsia leave their torch alone: what pip would install with them, at their current versions.

    other_packages_test.py
"""

import json
import subprocess
import sys

PACKAGES = ("transformers", "accelerate")


def main():
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    kept = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
    versions = {}
    for package in PACKAGES:
        report = json.loads(subprocess.run([*command, package], check=True, capture_output=True, text=True, timeout=300).stdout)
        versions |= {each["metadata"]["name"]: each["metadata"]["version"] for each in report["install"]}
    wanted = [f"{name}=={version}" for name, version in versions.items()]
    report = json.loads(subprocess.run([*kept, *wanted], check=True, capture_output=True, text=True, timeout=300).stdout)
    pulled = {each["metadata"]["name"]: each["metadata"]["version"] for each in report["install"]}
    assert set(versions) == set(PACKAGES), versions
    assert "torch" not in pulled, f"{wanted} pull torch {pulled['torch']}"
    print(f"{', '.join(wanted)} keep the torch that is installed")


if __name__ == "__main__":
    main()
