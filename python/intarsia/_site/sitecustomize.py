"""Python imports this at its start, in processes that `python -m intarsia run` began. It changes nothing until a program calls
torch.distributed.init_process_group: before that call it turns the watch on. In the runs of `python -m intarsia equiv` it records what is
trained, too."""

import functools
import importlib.machinery
import importlib.util
import os
import sys

NAME = "torch.distributed.distributed_c10d"
HERE = os.path.dirname(os.path.abspath(__file__))


class Finder:
    """Loads torch's module as it is, and then puts ourselves before init_process_group."""

    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            begin = module.init_process_group

            @functools.wraps(begin)
            def watch_and_begin(*args, **kwargs):
                import intarsia

                intarsia.watch()
                return begin(*args, **kwargs)

            module.init_process_group = watch_and_begin

        spec.loader.exec_module = exec_module
        return spec


def run_the_next():
    """There may be another sitecustomize, which this one hides."""
    others = [path for path in sys.path if os.path.abspath(path) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Finder())
run_the_next()
if "INTARSIA_EQUIV" in os.environ:
    import intarsia._equiv_command

    intarsia._equiv_command.begin()
