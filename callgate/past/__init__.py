"""The past, told from the audit: which calls there were, what limits did, how runs ended.

Pure: `rows` (records as a reader of the past wants them, and questions to them), `tally` (what a
span of time adds up to), `runs` (the lives of processes). IO: `reading` (which segments to read,
and how much of what was read was verified), `follow` (what is being written now).

Everything is a generator over segments: a log of any size is read in the memory of one block and
of what the answer itself has to hold, which is bounded, too.
"""
