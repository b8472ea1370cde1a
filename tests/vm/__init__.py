"""Other kernels than this host's, to run tests in: User-mode Linux, and Debian's under qemu.

`machines` boots either on this host's own files, read-only, and runs one command in it;
`kernels` fetches Debian's kernel from its package; `python -m tests.vm` is both by hand.
"""
