"""What runs once on each node beside the workers: `python -m orchestrator.monitor`.

node.sh starts it before torchrun and ends it afterwards. It must be able to take nothing down with
it: standard library only, no torch, every duty in a thread of its own, time-outs on the network,
and an end as soon as its parent is gone.
"""
