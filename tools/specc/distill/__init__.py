"""`specc distill`: train a drafter for a target on text that the target itself wrote.

corpus -> features -> batches -> a drafter's module and its loss -> training -> export, one file each.
"""
