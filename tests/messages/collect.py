"""Every error message that a user can meet, as it stands in the sources, in one file to be read from top to bottom.

    collect.py [--write] [ROOT]

Compares what it finds with messages.txt beside it, and with --write writes that. A line is a message: its kind, the function that
refuses, and the text, in which {...} is a value. Checks of each: it has the form `[function] text`, a value or a reason why
there is none (NO_VALUE), no word that only this library's authors use, and it does not end with a full stop. Prints what is wrong,
and counts as the last line.
"""

import ast
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve()
SOURCES = ("src", "include", "python/bindings")
CALL = re.compile(r"(?:\bfail<(\w+)>|\b(?:\w+(?:\.|->))*(refuse)|(?<!void )(?<!::)\b(?:guard_->)?(raise)|throw ((?:py::)?\w*(?:Error|_error))|\b(TORCH_(?:CHECK|WARN)\w*))\(")
LITERAL = re.compile(r"""(?<!\d)(?:R"\((?:.|\n)*?\)"|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)')""")
KINDS = {
    "ValueError": "value", "UnsupportedError": "unsupported", "WorldError": "world", "GuardError": "world", "refuse": "op", "raise": "world",
}  # fmt: skip
# Texts without a value, and why none could be named.
NO_VALUE = HERE.with_name("no_value.txt")


def arguments_at(text, start):
    """The arguments of the call whose opening parenthesis ends at `start`, split at commas outside of brackets and strings."""
    depth, begin, out, i = 0, start, [], start
    while i < len(text):
        c = text[i]
        literal = LITERAL.match(text, i)
        if literal:
            i = literal.end() - 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                out.append(text[begin:i])
                return [" ".join(a.split()) for a in out if a.strip()], i
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[begin:i])
            begin = i + 1
        i += 1
    return [], start


def strings_of(argument):
    """The text of a string literal, or of several that follow each other; None for another expression."""
    literals = re.findall(r'"((?:[^"\\]|\\.)*)"', argument)
    rest = re.sub(r'"((?:[^"\\]|\\.)*)"', "", argument).strip()
    return "".join(literals).replace('\\"', '"').replace("\\n", "\\n") if literals and not rest else None


def text_of(argument, constants):
    """An argument as it reads in a message."""
    literal = strings_of(argument)
    if literal is not None:
        return literal
    if re.fullmatch(r"'(.|\\.)'", argument):
        return argument[1:-1]
    if argument in constants:
        return constants[argument]
    call = re.fullmatch(r"(?:intarsia::)?concat\((.*)\)", argument, re.S)
    if call:
        return "".join(text_of(a, constants) for a in arguments_at(argument, argument.index("(") + 1)[0])
    parts = re.split(r" \+ (?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", argument)
    if len(parts) > 1 and any(strings_of(part) is not None for part in parts):
        return "".join(text_of(part, constants) for part in parts)
    choice = re.fullmatch(r'(.+?) \? (".*?"|[^?]+) : (".*")', argument)
    if choice and strings_of(choice[2]) is not None and strings_of(choice[3]) is not None:
        return "{" + strings_of(choice[2]) + "|" + strings_of(choice[3]) + "}"
    return "{" + argument + "}"


def constants_of(text):
    """The texts that have names in a file."""
    named = r"(?:string_view|char\* const|auto|char) (k\w+)(?:\[\])? =\s*((?:\"(?:[^\"\\]|\\.)*\"\s*)+);"
    return {name: strings_of(value) for name, value in re.findall(named, text)}


def of_cpp(text, headers=()):
    """`headers`: texts of those that it includes."""
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    text = re.sub(r"\s+// .*$", "", text, flags=re.M)
    constants = {}
    for part in (*headers, text):
        constants |= constants_of(part)
    for call in CALL.finditer(text):
        fail, refuse, raises, throws, check = call.groups()
        arguments, _ = arguments_at(text, call.end())
        if not arguments or any(a.startswith(("std::string_view ", "const std::string&", "const std::vector")) for a in arguments):
            continue  # a declaration
        if check and "CHECK" in check:
            arguments = arguments[1:]
        kind = KINDS.get(fail or refuse or raises or throws, "torch" if check else "value")
        if check and "WARN" in check:
            kind = "warning"
        if fail:
            where, rest = text_of(arguments[0], constants), arguments[1:]
            message = f"[{where}] " + "".join(text_of(a, constants) for a in rest)
        elif refuse:
            message = "; ".join(text_of(a, constants) for a in arguments)
            if not strings_of(arguments[0]) and not arguments[0].startswith(("concat(", "k")):
                continue  # of a function that makes the text
        else:
            message = "".join(text_of(a, constants) for a in arguments)
        if re.fullmatch(r"\{[\w.>\-()]*\}", message):
            continue  # handed on
        yield kind, message


def of_python(text):
    def words(node):
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(words(v) for v in node.values)
        if isinstance(node, ast.FormattedValue):
            return "{" + ast.unparse(node.value) + "}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return words(node.left) + words(node.right)
        return "{" + ast.unparse(node) + "}"

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name = ast.unparse(node.exc.func)
            yield {"NotImplementedError": "unsupported", "WorldError": "world"}.get(name, "value"), words(node.exc.args[0])


def collect(root):
    """{file: its messages}"""
    found = {}
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cpp", ".h"):
                text = path.read_text()
                included = [root / "src" / name for name in re.findall(r'^#include "(.+)"', text, re.M)]
                headers = [header.read_text() for header in included if header.exists()]
                found[path.relative_to(root)] = sorted(set(of_cpp(text, headers)))
    for path in sorted((root / "python/intarsia").rglob("*.py")):
        found[path.relative_to(root)] = sorted(set(of_python(path.read_text())))
    return {path: messages for path, messages in found.items() if messages}


def faults_of(kind, message, without_value):
    """What is wrong with a message."""
    if kind in ("value", "unsupported", "world") and not re.match(r"\[[^\]]+\] |\{", message) and "differs" not in message:
        yield "does not begin with the function, as [function]"
    # Frame::refuse names the op, its operands with their layouts, and the rank; torch's words are torch's.
    if "{" not in message and kind not in ("op", "torch") and message not in without_value:
        yield "names no value"
    if message.endswith(".") and kind != "torch":
        yield "ends with a full stop"
    if re.search(r"\b(internal error|invalid|illegal|bad|oops|please|should never)\b", message, re.I):
        yield "says that something is wrong, and not what"


def main(arguments):
    root = pathlib.Path(next((a for a in arguments if not a.startswith("-")), HERE.parents[2]))
    found = collect(root)
    text = "".join(f"== {path}\n" + "".join(f"{kind}: {m}\n" for kind, m in messages) + "\n" for path, messages in found.items())
    golden = HERE.with_name("messages.txt")
    if "--write" in arguments:
        golden.write_text(text)
    without_value = {line.partition(" # ")[0] for line in NO_VALUE.read_text().splitlines()}
    faults = [f"{path}: {m!r} {f}" for path, messages in found.items() for kind, m in messages for f in faults_of(kind, m, without_value)]
    every = {m for messages in found.values() for _, m in messages}
    faults += [f"{NO_VALUE.name}: {m!r} is no message any more" for m in sorted(without_value - every)]
    faults += ["messages.txt is of another state: read the messages that changed, and run collect.py --write"] if golden.read_text() != text else []
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{sum(map(len, found.values()))} messages in {len(found)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
