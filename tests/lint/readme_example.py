"""The example in the README is the file that is compiled."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
blocks = re.findall(r"^```cpp\n(.*?)^```$", (root / "README.md").read_text(), re.M | re.S)
example = (root / "examples/first/main.cpp").read_text()
assert example in blocks, "README.md does not quote examples/first/main.cpp word for word"
print(f"{len(blocks)} C++ blocks, of which one is examples/first/main.cpp")
