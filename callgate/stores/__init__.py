"""Where state is kept beyond a process: IO, blocking, for a thread.

`sqlite` keeps quotas on one host.
"""
