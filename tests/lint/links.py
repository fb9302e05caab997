"""Every link between the documents leads somewhere: to a file that is there, and to a heading of that page."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")])


def without_code(text):
    return re.sub(r"^```.*?^```$|(`+)[^\n]*?\1", "", text, flags=re.M | re.S)


def anchors(page):
    """Headings as GitHub names them: small letters, no punctuation, blanks as dashes."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield target, "no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield target, "no such heading"


def main():
    wrong = [f"{page.relative_to(ROOT)}: {target}: {why}" for page in PAGES for target, why in wrong_links(page)]
    print("\n".join(wrong + [f"{len(PAGES)} pages, {len(wrong)} links that lead nowhere"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
