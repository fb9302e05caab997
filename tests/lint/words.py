"""Words of the field: what the glossary calls otherwise stands in no header, source, page or message.

A name is taken apart (`cut_dim`, `CutEmbedding`), so this holds for identifiers too. What these words mean elsewhere, and no other
word says, is in EXCEPTIONS, which has at most 20 entries."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cpp", ".py", ".pyi", ".md"}
PLACES = ["include", "src", "python", "docs", "examples", "README.md", "CONTRIBUTING.md", "HACKING.md", "CHANGELOG.md"]

INSTEAD = {
    "term": "partial value",
    "whole": "full tensor, or integer for numbers",
    "cut": "shard, sharded; split, for what is no layout",
    "uncut": "not sharded",
    "lie": "is laid out as, is stored, is",
}
FORMS = {"terms": "term", "cuts": "cut", "cutting": "cut", "wholes": "whole", "lies": "lie", "lying": "lie"}

# A text of the line in which the word means something else.
EXCEPTIONS = [
    "in terms of",
    '"meets", "cuts"',  # a verb of the Llama example's text
]
LIMIT = 20
RENAMED = "### Renamed"  # a section of the changelog


def words_of(line):
    """The words of a line in small letters, names taken apart."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", line)]


def wrong_words(line):
    for exception in EXCEPTIONS:
        line = line.replace(exception, "")
    found = {FORMS.get(word, word) for word in words_of(line)}
    return sorted(found & INSTEAD.keys())


def files():
    for place in PLACES:
        path = ROOT / place
        yield from [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)


def lines_of(file):
    """Numbered lines, without those under RENAMED, which has the old names: up to the next heading."""
    renamed = False
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if line.startswith("#"):
            renamed = file.name == "CHANGELOG.md" and line == RENAMED
        if not renamed:
            yield number, line


def main():
    wrong = []
    for file in files():
        for number, line in lines_of(file):
            for word in wrong_words(line):
                wrong.append(f"{file.relative_to(ROOT)}:{number}: {word}: {INSTEAD[word]}: {line.strip()[:100]}")
    if len(EXCEPTIONS) > LIMIT:
        wrong.append(f"{len(EXCEPTIONS)} exceptions, more than {LIMIT}")
    print("\n".join([*wrong, f"{len(wrong)} words that the glossary calls otherwise; {len(EXCEPTIONS)} exceptions"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
