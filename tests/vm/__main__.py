"""Run one command in another kernel: `python -m tests.vm [--uml] [--uid 1000] -- CMD`.

Its output and exit code are the command's; 125 if the machine did not get that far. With
`--which`, boot each kind instead and print the first that works; if none does, print the one that
should have worked, for nothing that it needs is missing, or nothing. The reasons go to stderr.
"""

from __future__ import annotations

import argparse
import sys

from tests.vm import kernels
from tests.vm.machines import MEMORY_MIB, QEMU, RUN_S, UML, Machine, Qemu

CANNOT = 125


def which() -> str:
    for machine in (UML, QEMU):
        why = machine.why_not()
        if not why:
            return machine.name
        print(f"{machine.name}: {why}", file=sys.stderr)  # noqa: T201
    return "" if QEMU.lacks() else QEMU.name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    parser.add_argument("--which", action="store_true", help="print which kind works here")
    parser.add_argument("--uml", action="store_true", help="User-mode Linux instead of qemu")
    parser.add_argument("--kernel", default=kernels.PACKAGE, help="Debian package (%(default)s)")
    parser.add_argument("--memory", type=int, default=MEMORY_MIB, help="MiB (%(default)s)")
    parser.add_argument("--uid", type=int, default=0, help="run as this user (root)")
    parser.add_argument("--timeout", type=float, default=RUN_S, help="seconds (%(default)s)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if options.which:
        print(which())  # noqa: T201
        return 0
    if not options.command:
        parser.error("say which command")
    machine: Machine = UML if options.uml else Qemu(options.kernel, options.memory)
    lacking = machine.lacks()
    if lacking:
        print(lacking, file=sys.stderr)  # noqa: T201  # a script that prints
        return CANNOT
    env = dict(each.split("=", 1) for each in options.env)
    ended = machine.run(options.command, uid=options.uid, env=env, timeout_s=options.timeout)
    print(ended.output, end="")  # noqa: T201
    return CANNOT if ended.exit_code is None else ended.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
