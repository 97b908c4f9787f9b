"""conv1d on tensor cores by mma.sync in six steps, each a kernel in a file of its own: the way to `mma`, told by diffs.

README.md in this folder has the ladder as a table, fragments and bank conflicts.
"""
