"""The lint of mirrored tests finds what is missing, empty, not built or excused without a reason."""

import pathlib
import sys
import tempfile
import unittest

import mirror


class Mirror(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.write("src/plan/search.cpp", "")
        self.write("tests/CMakeLists.txt", "  plan/search_test.cpp\n")
        self.write("HACKING.md", "")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def faults(self, *exceptions):
        return list(mirror.missing(self.root, set(exceptions)))

    def test_a_source_needs_a_test(self):
        self.assertEqual(self.faults(), ["src/plan/search.cpp has no tests/plan/search_test.cpp"])
        self.write("tests/plan/search_test.cpp", "TEST(Search, Finds) {}")
        self.assertEqual(self.faults(), [])

    def test_it_must_test_and_be_built(self):
        self.write("tests/plan/search_test.cpp", "int main() {}")
        self.assertIn("tests nothing", self.faults()[0])
        self.write("tests/plan/search_test.cpp", "TEST(Search, Finds) {}")
        self.write("tests/CMakeLists.txt", "")
        self.assertIn("not built", self.faults()[0])

    def test_rooms_are_mirrored(self):
        self.write("tests/plan/search_test.cpp", "TEST(Search, Finds) {}")
        self.write("src/tensor/move/route.cpp", "")
        self.write("tests/tensor/route_test.cpp", "TEST(Route, Leads) {}")
        self.assertEqual(self.faults(), ["src/tensor/move/route.cpp has no tests/tensor/move/route_test.cpp"])

    def test_exceptions_have_reasons(self):
        self.assertIn("HACKING.md does not say why", self.faults("src/plan/search.cpp")[0])
        self.write("HACKING.md", "`search.cpp`: run by every test of plans")
        self.assertEqual(self.faults("src/plan/search.cpp"), [])
        self.assertIn("not there", self.faults("src/plan/search.cpp", "src/plan/gone.cpp")[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
