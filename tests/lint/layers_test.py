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
    "src/tensor/core/h.cpp": '#include "tensor/dispatch/execute.h"\n',
    "src/tensor/attic/i.cpp": "\n",
    "src/plan/j.cpp": "\n" * 501,
    "src/plan/k.h": "class Long {\n" + "\n" * 300 + "};\n",
}
BAD_TOGETHER = {
    "torch in a room without it": {"src/checkpoint/plan/a.cpp": "#include <ATen/ATen.h>\n"},
    "a cycle in one step": {"src/plan/a.h": '#include "plan/b.h"\n', "src/plan/b.cpp": '#include "plan/a.h"\n'},
    "a cycle in two": {
        "src/plan/a.h": '#include "plan/b.h"\n',
        "src/plan/b.h": '#include "plan/c.h"\n',
        "src/plan/c.cpp": '#include "plan/a.h"\n',
    },
    "too many files": {f"src/plan/a{i}.cpp": "\n" for i in range(26)},
    "a private header of torch": {"src/world/guard/a.cpp": "#include <c10/core/TensorImpl.h>\n"},
    "one in another place": {
        "src/world/guard/a.cpp": "#include <c10/core/TensorImpl.h>\n",
        "docs/torch_versions.md": "| `c10/core/TensorImpl.h` | `src/tensor` | why |\n",
    },
    "one that nothing needs": {
        "src/world/guard/a.cpp": "\n",
        "docs/torch_versions.md": "| `c10/core/TensorImpl.h` | `src/tensor` | why |\n",
    },
    "a long class with members outside": {
        "src/plan/a.h": "class Long {\n" + "\n" * 150 + "};\n",
        "src/plan/a.cpp": "void Long::run() {\n" + "\n" * 150 + "}\n",
    },
}
GOOD = {
    "docs/torch_versions.md": "| `ATen/core/ivalue.hpp` | `src/checkpoint` `src/tensor/dispatch/d.h` | why |\n",
    "src/layout/a.cpp": '#include "base/text.h"\n#include "intarsia/mesh.h"\n',
    "src/world/session/b.cpp": '#include <ATen/ATen.h>\n#include "layout/chunk.h"\nstd::unordered_map<int, int> m;\n',
    "src/checkpoint/state/c.cpp": '#include "tensor/core/spec.h"\n#include <ATen/core/ivalue.hpp>\n',
    "src/tensor/dispatch/d.h": '#include "tensor/core/spec.h"\n#include <ATen/core/ivalue.hpp>\nclass Short {\n' + "\n" * 290 + "};\n",
    "src/tensor/dispatch/d.cpp": '#include "tensor/dispatch/d.h"\n',
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
for name, files in BAD_TOGETHER.items():
    assert result(files) == 1, f"{name} was accepted"
assert result(GOOD) == 0
print(f"{len(BAD) + len(BAD_TOGETHER)} bad files refused, {len(GOOD)} good ones accepted")
