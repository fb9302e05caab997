"""The lint of words finds them in prose, names and messages, and leaves others alone."""

import pathlib
import sys
import tempfile
import unittest

import words


class Words(unittest.TestCase):
    def test_prose(self):
        self.assertEqual(words.wrong_words("/// Terms of a sum leave it, cut along dim 0."), ["cut", "term"])
        self.assertEqual(words.wrong_words("How a tensor lies over a mesh, as a whole."), ["lie", "whole"])

    def test_names(self):
        self.assertEqual(words.wrong_words("class CutEmbedding { int cut_dim; bool kWhole; Tensors terms_; };"), ["cut", "term", "whole"])

    def test_other_words_stay(self):
        self.assertEqual(words.wrong_words("determine execute families SIGTERM cutlass believe wholesale"), [])
        self.assertEqual(words.wrong_words("an op in terms of other ops"), [])

    def test_old_names_under_renamed(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "CHANGELOG.md"
            file.write_text("cut\n### Renamed\n| `cuts` |\n\n## [0.1.0]\nwhole\n")
            self.assertEqual([number for number, line in words.lines_of(file) if words.wrong_words(line)], [1, 6])

    def test_few_exceptions(self):
        self.assertLessEqual(len(words.EXCEPTIONS), words.LIMIT)


if __name__ == "__main__":
    sys.exit(unittest.main())
