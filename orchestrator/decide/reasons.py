"""Why a job waits, in words that say what can be done about it. Pure.

The reasons are those of squeue(1), "JOB REASON CODES"; some of them never go away by themselves.
"""

# Each with the beginnings of the reasons that it is said for; the first that fits.
_SAID = (
    (
        ("PartitionNodeLimit", "PartitionConfig"),
        "the partition does not have or does not give what the job asks for, so it may wait for"
        " ever: compare `nodes` with `sinfo`, cancel the run and submit it with fewer",
    ),
    (
        ("PartitionTimeLimit",),
        "the partition does not give that much time: cancel the run and submit it with a shorter"
        " `time_limit`",
    ),
    (
        ("PartitionDown", "PartitionInactive"),
        "the partition starts no jobs for now: ask the site, or submit to another one",
    ),
    (
        ("AccountNotAllowed", "QOSNotAllowed", "InvalidAccount", "InvalidQOS"),
        "this account or QOS may not run there: see `sacctmgr show assoc user=$USER`",
    ),
    (
        (
            *("AssocGrpCPUMinutes", "AssocGrpBillingMinutes", "AssocGrpCPURunMinutes"),
            *("QOSGrpCPUMinutes", "QOSGrpBillingMinutes", "QOSUsageThreshold"),
        ),
        "the budget of the account or QOS is used up or promised to other jobs",
    ),
    (
        (
            *("AssocMaxNodePerJob", "AssocMaxGRESPerJob", "AssocMaxWallDurationPerJob"),
            *("QOSMaxNodePerJob", "QOSMaxGRESPerJob", "QOSMaxWallDurationPerJob", "QOSMinGRES"),
        ),
        "the job asks for more than the account or QOS ever gives to one job: cancel the run and"
        " submit a smaller one",
    ),
    (("Assoc", "QOS"), "a limit over several jobs of the account or QOS; it waits for them to end"),
    (("ReqNodeNotAvail",), "nodes are reserved, for maintenance perhaps: see `scontrol show res`"),
    (("Dependency",), "another job of the run still runs"),
)


def advice(reason: str) -> str:
    """Return what is to be known about a reason of squeue; "" where it speaks for itself.

    >>> advice("Dependency"), advice("Priority")
    ('another job of the run still runs', '')
    """
    return next((said for words, said in _SAID if reason.startswith(words)), "")
