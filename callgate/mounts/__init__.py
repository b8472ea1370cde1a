"""The gate inside agent runtimes: one module a runtime, imported by whoever uses it.

None of them is imported here or by anything else, so nobody pays for a runtime that they do
not have; a module whose package is missing names the extra that brings it.
"""
