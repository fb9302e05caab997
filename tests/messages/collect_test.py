"""The collector finds messages however they are written, and faults in them."""

import pathlib
import sys
import tempfile
import unittest

import collect


def messages(source):
    return list(collect.of_cpp(source))


class Collect(unittest.TestCase):
    def test_values_and_texts(self):
        found = messages('fail<ValueError>("Mesh", "axis \'", name, "\' has size ", f(a, b), "; use, for example, 1");')
        self.assertEqual(found, [("value", "[Mesh] axis '{name}' has size {f(a, b)}; use, for example, 1")])

    def test_constants_and_texts_in_several_lines(self):
        found = messages('constexpr std::string_view kWhere = "guard";\nfail<WorldError>(kWhere, "one "\n    "text");')
        self.assertEqual(found, [("world", "[guard] one text")])

    def test_choices_and_concat(self):
        found = messages('f.refuse(concat("no number is in [", low, ")"), "give more");\nfail<ValueError>(w, n == 1 ? "dim" : "dims");')
        self.assertEqual(found, [("op", "no number is in [{low}); give more"), ("value", "[{w}] {dim|dims}")])

    def test_strings_joined_by_plus(self):
        self.assertEqual(messages('throw ValueError("[Q] no " + name + "; give one");'), [("value", "[Q] no {name}; give one")])

    def test_quotes_and_separators_inside_of_strings(self):
        self.assertEqual(messages('fail<ValueError>("x", "say \\"a, b)\\" ", \'"\', v);'), [("value", '[x] say "a, b)" "{v}')])

    def test_what_is_no_message(self):
        self.assertEqual(messages("[[noreturn]] void refuse(std::string_view why) const;\n// fail<ValueError>(\"x\", \"y\")\n"), [])

    def test_python(self):
        found = list(collect.of_python('if x:\n    raise ValueError(f"[init] {mesh} holds " + "rank")\n'))
        self.assertEqual(found, [("value", "[init] {mesh} holds rank")])

    def test_faults(self):
        faults = lambda kind, text: list(collect.faults_of(kind, text, {"[x] listed"}))  # noqa: E731
        self.assertEqual(faults("value", "[x] a {b} c"), [])
        self.assertEqual(faults("value", "[x] listed"), [])
        self.assertEqual(faults("value", "[x] nothing"), ["names no value"])
        self.assertEqual(faults("value", "{a} has no function") + faults("op", "as ops have"), [])
        self.assertEqual(len(faults("world", "invalid argument.")), 4)

    def test_a_message_that_changed_is_a_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src").mkdir()
            (root / "src" / "a.cpp").write_text('fail<ValueError>("x", "new ", v);')
            self.assertEqual(collect.collect(root), {pathlib.Path("src/a.cpp"): [("value", "[x] new {v}")]})


if __name__ == "__main__":
    sys.exit(unittest.main())
