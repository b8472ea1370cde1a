"""`python -m callgate`."""

from __future__ import annotations

from callgate.cli import main

main()
