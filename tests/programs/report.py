"""What many programs came to: counts, findings, refusals by message, coverage."""

import collections
import re

import rows

DTYPE = r"\b(?:f64|f32|f16|bf16|i64|i32|u8|bool|b1|c128|c64)"
TYPES = re.compile(DTYPE + r"\[[^\]]*\](?: ?P\([\w:]+\)@\w+)*(?: on \[[^\]]*\])?")


def normalized(text):
    """A message without what differs from call to call."""
    text = TYPES.sub("T", text.split("\n")[0])
    text = re.sub(r"\[\w+=[^\]]*\]", "[M]", text)
    text = re.sub(r"S?S\(\d+(?:,\d+)?\)|P\([\w:]+\)", "P", text)
    return re.sub(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", "N", text)[:200]


class Report:
    def __init__(self):
        self.counts = collections.Counter()
        self.rows = collections.Counter()
        self.refused, self.examples = collections.Counter(), {}
        self.findings = []

    def add(self, record):
        """What one program came to, as check.py's workers say it."""
        self.counts.update(programs=1, **{name: record[name] for name in ("lines", "stale", "undetermined")})
        self.counts[record["kind"]] += 1
        self.rows.update(record["rows"])
        for line, text, stale in record["refusals"]:
            self.counts["stale" if stale else "refused"] += 1
            if not stale:
                key = normalized(text)
                self.refused[key] += 1
                self.examples.setdefault(key, (record["seed"], line, text))
        if record["kind"] not in ("ok", "invalid"):
            self.findings.append(record)

    def holds(self):
        return not self.findings

    def coverage(self):
        """A line for each row of the op table: in how many programs it was called, and how it is done."""
        table = rows.table_rows()
        return [f"{self.rows[name]:7d} {how:9s} {name}" for name, how in table.items()]

    def never_called(self):
        return [name for name in rows.table_rows() if not self.rows[name]]

    def refusals(self):
        """The messages of refused lines, the most frequent first, each with an example."""
        lines = []
        for key, count in self.refused.most_common():
            seed, line, text = self.examples[key]
            lines.append(f"{count} x {key}\n      seed {seed}: {line}\n      {text[:300]}")
        return lines

    def summary(self):
        c, table = self.counts, rows.table_rows()
        called = sum(1 for name in table if self.rows[name])
        share = 100 * c["refused"] / max(1, c["lines"])
        return (
            f"{c['programs']} programs, {c['lines']} lines: {c['wrong']} wrong, "
            f"{c['refused']} lines refused ({share:.3f} %), {c['stale']} stale, {c['hang']} hang, "
            f"{c['crash']} crash, {c['undetermined']} undetermined values, "
            f"{c['invalid']} invalid; {called} of {len(table)} rows called"
        )
