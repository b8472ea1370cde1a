"""`make fuzz`: millions of frames; exit 1 and the frame if a promise is broken."""

from __future__ import annotations

import argparse
import base64
import sys
import time
import traceback

from tests.fuzz.run import Broken, Fuzz, Report

REPORT_EVERY_S = 10.0


def _plain(pair: tuple[str, int]) -> tuple[str, int]:
    """Without the name of the enumeration."""
    return str(pair[0]), pair[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = shown = time.monotonic()

    def progress(report: Report) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= REPORT_EVERY_S:
            shown = now
            per_s = report.frames / (now - started)
            growth = report.rss_growth_bytes / 2**20
            print(  # noqa: T201
                f"{report.frames:>12,} of {options.frames:,} frames, {per_s:,.0f}/s,"
                f" RSS +{growth:.1f} MiB",
                file=sys.stderr,
                flush=True,
            )

    try:
        report = Fuzz(options.seed).run(options.frames, progress)
    except Broken as broken:
        traceback.print_exc()
        print(f"seed {options.seed}: {broken}: {base64.b64encode(broken.frame).decode()}")  # noqa: T201
        return 1
    taken, refused = report.taken.total(), report.refused.total()
    print(f"frames    {report.frames:,} in {time.monotonic() - started:,.0f} s")  # noqa: T201
    print(f"taken     {taken:,}: {dict(report.taken.most_common())}")  # noqa: T201
    print(f"refused   {refused:,}: {dict(map(_plain, report.refused.most_common()))}")  # noqa: T201
    print(f"oversized {report.oversized:,}")  # noqa: T201
    print(  # noqa: T201
        f"RSS       +{report.rss_growth_bytes / 2**20:.1f} MiB,"
        f" peak +{report.peak_growth_bytes / 2**20:.1f} MiB (at most +32)"
    )
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
