"""The layer check finds what it is there for: one bad file of each kind."""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import layers  # noqa: E402

BAD = {
    "src/layout/a.cpp": '#include "world/wire.h"\n',
    "src/layout/b.cpp": "#include <ATen/ATen.h>\n",
    "src/layout/c.cpp": "std::unordered_map<int, int> m;\n",
    "src/base/d.cpp": '#include "intarsia/mesh.h"\n',
    "src/base/e.cpp": '// see /home' '/someone/notes\n',
    "include/intarsia/mesh.h": '#include "base/text.h"\n',
    "src/nowhere/f.cpp": "\n",
    "src/checkpoint/g.cpp": '#include "elastic/heal.h"\n',
}
GOOD = {
    "src/layout/a.cpp": '#include "base/text.h"\n#include "intarsia/mesh.h"\n',
    "src/world/b.cpp": '#include <ATen/ATen.h>\n#include "layout/chunk.h"\nstd::unordered_map<int, int> m;\n',
    "src/checkpoint/c.cpp": '#include "tensor/spec.h"\n',
}


def result(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return layers.main(pathlib.Path(root))


for name, text in BAD.items():
    assert result({name: text}) == 1, f"{name} was accepted"
assert result(GOOD) == 0
print(f"{len(BAD)} bad files refused, {len(GOOD)} good ones accepted")
