"""Limits: may this call start, and if not, when could it?

`rate`, `slots` and `quota` each count one thing; `admission` asks all of a call's counters at
once; `queue` holds the calls that may wait; `counters` keeps what is counted per scope and per
caller; `deadlines` knows who has run out of time. All of them are pure: the caller passes the
time and acts on the answer.
"""
