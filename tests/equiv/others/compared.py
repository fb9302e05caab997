"""What all reproductions end with: equiv's report, and a line for promises/equiv/2-others."""

import intarsia as it
import torch.distributed as dist


def compare(serial, parallel):
    """COLLECTIVE: all ranks. The serial program runs on each rank by itself."""
    it.init()
    report = it.EquivReference(serial).compare(parallel)
    if dist.get_rank() == 0:
        print(report)
        print(f"equal {report.compared} {report.ratio:.2g}" if report.equal else f"parts '{report.module}' {report.first.key}")
