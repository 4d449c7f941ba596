"""Is this node fit to train? Asked by node.sh on each node before torchrun starts there.

    node.sh -> python -m orchestrator.preflight
        reads   $FSDPQ_RUN_DIR/preflight.json         which checks, and what to expect of the node
        writes  attempts/N/preflight/node-K.json      what was found
        exits   0 fit, 75 a notice came meanwhile, 76 unfit; all else: the check itself broke

A bad node that is named within seconds costs seconds. One that is found out by a hang costs half an
hour of all nodes, and fails the next attempt as well, because it is always free.

Nothing but the standard library, so that it starts in a moment under any Python that has fsdpq;
torch is imported by `collective` alone, in processes of its own. Every question that can hang (the
driver, a shared file system) is put by a child process, which can be left behind.
"""
