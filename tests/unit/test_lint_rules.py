"""Each rule speaks on a minimal case, and is silent on the right one."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.lint import RULES, Case, Finding, Surroundings, lint, of_job, of_profile

from .builders import site, spec

H100 = {"model": "H100", "per_node": 8}
PYXIS = {"runtime": "pyxis"}
LIMITS: dict[str, Any] = {"gpu": H100, "default_partition": "gpu"}


def on(kind: str = "infiniband", *, job: dict[str, Any] | None = None, **changes: Any) -> Case:
    """Return the case of a profile, or of a job on it; `around` and `run_dir` go beside."""
    around = changes.pop("around", Surroundings())
    run_dir = changes.pop("run_dir", None)
    fabric = {"kind": kind, **changes.pop("fabric", {})}
    here = site(**{"fabric": fabric, **changes})
    if job is None:
        return of_profile(here, file="site.yaml", around=around)
    return of_job(
        spec(**job),
        here,
        file="job.yaml",
        site_file="site.yaml",
        run_dir=run_dir,
        around=around,
    )


def env(kind: str = "infiniband", **variables: str) -> Case:
    """Return the case of a profile that sets variables."""
    return on(kind, env=variables)


def given(kind: str = "infiniband", **variables: str) -> Case:
    """Return the case of a job on two nodes that sets variables."""
    return on(kind, job={"nodes": 2, "env": variables})


def contained(kind: str = "infiniband", mounts: tuple[str, ...] = (), **changes: Any) -> Case:
    """Return the case of a profile with pyxis."""
    return on(kind, **{"container": {**PYXIS, "mounts": mounts}, **changes})


def hcas(number: int) -> str:
    return "=" + ",".join(f"mlx5_{one}" for one in range(number))


def terms(**granted: Any) -> dict[str, Any]:
    return {**LIMITS, "partitions": {"gpu": granted}}


LOGIN = Surroundings(interfaces=("eth0", "lo"))
NODE = Surroundings(interfaces=("eth0", "ib0", "lo"), of_node=True)
OLD = Surroundings(version=(2, 20, 5))

# Rule, level, key, a case where it speaks, cases where it does not.
Row = tuple[str, str, str, Case, list[Case]]
ROWS: list[Row] = [
    # --- names
    ("not-an-nccl-var", "warn", "env.NCCL_TIMEOUT", env(NCCL_TIMEOUT="1800"),
     [env(NCCL_IB_TIMEOUT="22"), env(NCCL_FASTRAK_CTRL_DEV="eth0"), env(NCCL_VERSION="2.21")]),
    ("not-an-nccl-var", "info", "env.NCCL_NEW", on(env={"NCCL_NEW": "1"},
     around=Surroundings(version=(2, 31, 1))), []),
    ("not-in-this-nccl", "warn", "env.NCCL_IB_ADDR_FAMILY",
     on(env={"NCCL_IB_ADDR_FAMILY": "AF_INET"}, around=Surroundings(version=(2, 20, 5))),
     [env(NCCL_IB_ADDR_FAMILY="AF_INET"), on(env={"NCCL_DEBUG": "INFO"}, around=OLD)]),
    ("not-in-this-nccl", "warn", "env.NCCL_WORK_FIFO_DEPTH", env(NCCL_WORK_FIFO_DEPTH="1"),
     [on(env={"NCCL_WORK_FIFO_DEPTH": "1"}, around=OLD)]),
    ("torch-legacy-var", "info", "env.NCCL_BLOCKING_WAIT", env(NCCL_BLOCKING_WAIT="1"),
     [env(TORCH_NCCL_BLOCKING_WAIT="1")]),
    # --- GPUDirect
    ("gdr-level-int", "warn", "env.NCCL_NET_GDR_LEVEL", env(NCCL_NET_GDR_LEVEL="2"),
     [env(NCCL_NET_GDR_LEVEL="PXB")]),
    ("gdr-level-int", "warn", "env.NCCL_P2P_LEVEL", env(NCCL_P2P_LEVEL="5"),
     [env(NCCL_P2P_LEVEL="NVL")]),
    ("gdr-level-off", "error", "env.NCCL_NET_GDR_LEVEL", env(NCCL_NET_GDR_LEVEL="LOC"),
     [env(NCCL_NET_GDR_LEVEL="PHB"), env(NCCL_NET_GDR_LEVEL="1")]),
    ("gdr-level-off", "error", "env.NCCL_NET_GDR_LEVEL", env("slingshot", NCCL_NET_GDR_LEVEL="0"),
     []),
    ("gdr-level-off", "info", "env.NCCL_NET_GDR_LEVEL",
     on(env={"NCCL_NET_GDR_LEVEL": "0"}, fabric={"gdr": False}), []),
    ("level-unknown", "error", "env.NCCL_NET_GDR_LEVEL", env(NCCL_NET_GDR_LEVEL="ON"),
     [env(NCCL_NET_GDR_LEVEL="sys"), env(NCCL_P2P_LEVEL="3")]),
    ("p2p-shm-disable", "error", "env.NCCL_P2P_DISABLE", env(NCCL_P2P_DISABLE="1"),
     [env(NCCL_P2P_DISABLE="0"), env(NCCL_P2P_LEVEL="NVL")]),
    ("p2p-shm-disable", "error", "env.NCCL_SHM_DISABLE", env(NCCL_SHM_DISABLE="1"), []),
    ("p2p-shm-disable", "error", "env.NCCL_P2P_LEVEL", env(NCCL_P2P_LEVEL="LOC"), []),
    ("dmabuf-off", "warn", "env.NCCL_DMABUF_ENABLE", env(NCCL_DMABUF_ENABLE="0"),
     [env(NCCL_DMABUF_ENABLE="1")]),
    ("nvls-off", "warn", "env.NCCL_NVLS_ENABLE", env(NCCL_NVLS_ENABLE="0"),
     [env(NCCL_NVLS_ENABLE="2")]),
    ("nvls-forced", "info", "env.NCCL_NVLS_ENABLE", env(NCCL_NVLS_ENABLE="1"),
     [env(NCCL_NVLS_ENABLE="2")]),
    ("left-to-nccl", "info", "env.NCCL_CUMEM_ENABLE", env(NCCL_CUMEM_ENABLE="0"),
     [env(NCCL_IB_TC="41")]),
    ("algo-proto-forced", "warn", "env.NCCL_ALGO", env(NCCL_ALGO="Ring"), [env()]),
    ("ll128-forced", "error", "env.NCCL_PROTO", env(NCCL_PROTO="Simple,LL128"),
     [env(NCCL_PROTO="^LL128"), env(NCCL_PROTO="Simple")]),
    # --- InfiniBand and RoCE
    ("gid-index-on-ib", "warn", "env.NCCL_IB_GID_INDEX", env(NCCL_IB_GID_INDEX="3"),
     [env("roce", NCCL_IB_GID_INDEX="3")]),
    ("gid-index-forced", "warn", "env.NCCL_IB_GID_INDEX", env("roce", NCCL_IB_GID_INDEX="3"),
     [env(NCCL_IB_GID_INDEX="3"), env("roce", NCCL_IB_GID_INDEX="-1"),
      env("omnipath", NCCL_IB_GID_INDEX="3"),
      on("roce", env={"NCCL_IB_GID_INDEX": "3"}, around=OLD)]),
    ("hca-prefix", "warn", "env.NCCL_IB_HCA", env(NCCL_IB_HCA="mlx5_0,mlx5_1:1"),
     [env(NCCL_IB_HCA="=mlx5_1"), env(NCCL_IB_HCA="ibp"), env("omnipath", NCCL_IB_HCA="hfi1_0")]),
    ("hca-prefix", "warn", "env.NCCL_IB_HCA", env(NCCL_IB_HCA="^mlx5_2"),
     [env(NCCL_IB_HCA="^=mlx5_2")]),
    ("hca-malformed", "error", "env.NCCL_IB_HCA", env(NCCL_IB_HCA="=mlx5_0,=mlx5_1"),
     [env(NCCL_IB_HCA="=mlx5_0:1:2,mlx5_1")]),
    ("hca-malformed", "error", "env.NCCL_IB_HCA", env(NCCL_IB_HCA="=mlx5_0, mlx5_1"), []),
    ("hca-too-many", "error", "env.NCCL_IB_HCA", env(NCCL_IB_HCA=hcas(33)),
     [env(NCCL_IB_HCA=hcas(32))]),
    ("hca-twice", "warn", "env.NCCL_IB_HCA", env(NCCL_IB_HCA="=mlx5_0,mlx5_1,mlx5_0"),
     [env(NCCL_IB_HCA="=mlx5_0:1,mlx5_0:2")]),
    ("hca-count", "warn", "env.NCCL_IB_HCA",
     on(env={"NCCL_IB_HCA": hcas(4)}, fabric={"hcas_per_node": 8}),
     [on(env={"NCCL_IB_HCA": hcas(8)}, fabric={"hcas_per_node": 8}), env(NCCL_IB_HCA=hcas(4)),
      on(env={"NCCL_IB_HCA": "^=mlx5_2"}, fabric={"hcas_per_node": 8})]),
    ("ib-timeout-range", "error", "env.NCCL_IB_TIMEOUT", env(NCCL_IB_TIMEOUT="50"),
     [env(NCCL_IB_TIMEOUT="31"), env("omnipath", NCCL_IB_TIMEOUT="50")]),
    ("ib-timeout-range", "error", "env.NCCL_IB_TIMEOUT", env(NCCL_IB_TIMEOUT="0"), []),
    ("ib-timeout-unusual", "info", "env.NCCL_IB_TIMEOUT", env(NCCL_IB_TIMEOUT="28"),
     [env(NCCL_IB_TIMEOUT="22"), env(NCCL_IB_TIMEOUT="50")]),
    ("ib-retry-range", "error", "env.NCCL_IB_RETRY_CNT", env(NCCL_IB_RETRY_CNT="10"),
     [env(NCCL_IB_RETRY_CNT="7")]),
    ("number-range", "error", "env.NCCL_IB_SL", env(NCCL_IB_SL="16"),
     [env(NCCL_IB_SL="-1"), env(NCCL_IB_QPS_PER_CONNECTION="4")]),
    ("ib-disable", "error", "env.NCCL_IB_DISABLE", env(NCCL_IB_DISABLE="1"),
     [env("efa", NCCL_IB_DISABLE="1"), env(NCCL_IB_DISABLE="0")]),
    ("ib-disable-zero", "info", "env.NCCL_IB_DISABLE", env(NCCL_IB_DISABLE="0"),
     [env(NCCL_IB_DISABLE="1")]),
    # --- which network, which interfaces
    ("net-not-pinned", "info", "fabric.kind", env(),
     [env(NCCL_NET="IB"), env("ethernet"), on(modules=["brics/nccl"]), on(job={"nodes": 1}),
      on(scripts=[{"path": "/opt/nccl.sh"}])]),
    ("wrong-net", "error", "env.NCCL_NET", env(NCCL_NET="Socket"),
     [env(NCCL_NET="ib"), env(NCCL_NET="IBext_v8"), env("efa", NCCL_NET="AWS Libfabric"),
      env("omnipath", NCCL_NET="PSM2")]),
    ("wrong-net", "error", "env.NCCL_NET", env(NCCL_NET="IB*"), []),
    ("plugin-off", "error", "env.NCCL_NET_PLUGIN", env("efa", NCCL_NET_PLUGIN="none"),
     [env(NCCL_NET_PLUGIN="none")]),
    ("ofi-by-suffix", "warn", "env.NCCL_NET_PLUGIN", env("slingshot", NCCL_NET_PLUGIN="ofi"),
     [env("efa", NCCL_NET_PLUGIN="ofi")]),
    ("of-another-network", "info", "env.NCCL_IB_HCA", env("efa", NCCL_IB_HCA="=mlx5_0"),
     [env("roce", NCCL_IB_HCA="=mlx5_0"), env("efa", FI_EFA_USE_HUGE_PAGE="0")]),
    ("of-another-network", "warn", "env.FI_CXI_RDZV_PROTO", env(FI_CXI_RDZV_PROTO="alt_read"),
     [env("slingshot", FI_CXI_RDZV_PROTO="alt_read")]),
    ("ifname-of-one-node", "error", "env.NCCL_SOCKET_IFNAME", env(NCCL_SOCKET_IFNAME="lo"),
     [env(NCCL_SOCKET_IFNAME="^lo,docker"), env(NCCL_SOCKET_IFNAME="eth0"),
      env("none", GLOO_SOCKET_IFNAME="lo")]),
    ("ifname-malformed", "error", "env.NCCL_SOCKET_IFNAME", env(NCCL_SOCKET_IFNAME="eth0, eth1"),
     [env(NCCL_SOCKET_IFNAME="=eth0,eth1"), env(NCCL_SOCKET_IFNAME="^docker,lo")]),
    ("ifname-not-for-gloo", "error", "env.GLOO_SOCKET_IFNAME", env(GLOO_SOCKET_IFNAME="=ib0"),
     [env(GLOO_SOCKET_IFNAME="ib0"), env(NCCL_SOCKET_IFNAME="=ib0")]),
    ("ifname-matches-nothing", "warn", "env.NCCL_SOCKET_IFNAME",
     on(env={"NCCL_SOCKET_IFNAME": "ens"}, around=NODE),
     [on(env={"NCCL_SOCKET_IFNAME": "ib"}, around=NODE), env(NCCL_SOCKET_IFNAME="ens")]),
    ("ifname-matches-nothing", "warn", "env.GLOO_SOCKET_IFNAME",
     on(env={"GLOO_SOCKET_IFNAME": "ib"}, around=NODE),
     [on(env={"GLOO_SOCKET_IFNAME": "ib0"}, around=NODE)]),
    ("ifname-matches-nothing", "info", "env.NCCL_SOCKET_IFNAME",
     on(env={"NCCL_SOCKET_IFNAME": "ib"}, around=LOGIN), []),
    ("cross-nic-range", "error", "env.NCCL_CROSS_NIC", env(NCCL_CROSS_NIC="3"),
     [env(NCCL_CROSS_NIC="1")]),
    # --- libfabric
    ("rdmav", "error", "env.RDMAV_FORK_SAFE", env("efa", RDMAV_FORK_SAFE="1"), [env("efa")]),
    ("rdmav", "warn", "env.RDMAV_FORK_SAFE", env(RDMAV_FORK_SAFE="1"), []),
    ("efa-stale", "warn", "env.FI_EFA_USE_DEVICE_RDMA", env("efa", FI_EFA_USE_DEVICE_RDMA="1"),
     [env("efa", FI_EFA_USE_DEVICE_RDMA="0")]),
    ("efa-rdma-off", "error", "env.FI_EFA_USE_DEVICE_RDMA", env("efa", FI_EFA_USE_DEVICE_RDMA="0"),
     [env("efa", FI_EFA_USE_DEVICE_RDMA="1")]),
    ("efa-idle", "info", "env.FI_EFA_FORK_SAFE", env("efa", FI_EFA_FORK_SAFE="1"), [env("efa")]),
    ("efa-sync-memops", "info", "env.FI_EFA_SET_CUDA_SYNC_MEMOPS",
     env("efa", FI_EFA_SET_CUDA_SYNC_MEMOPS="0"), [env("efa")]),
    ("efa-huge-pages", "warn", "env.FI_EFA_USE_HUGE_PAGE", env("efa", FI_EFA_USE_HUGE_PAGE="1"),
     [env("efa", FI_EFA_USE_HUGE_PAGE="0"), env()]),
    ("efa-huge-pages", "info", "fabric.kind", env("efa"), []),
    ("efa-tuned-by-hand", "warn", "env.NCCL_BUFFSIZE", env("efa", NCCL_BUFFSIZE="8388608"),
     [env(NCCL_BUFFSIZE="8388608")]),
    ("wrong-provider", "error", "env.FI_PROVIDER", env("efa", FI_PROVIDER="tcp"),
     [env("efa", FI_PROVIDER="efa"), env("slingshot", FI_PROVIDER="cxi"), env(FI_PROVIDER="tcp"),
      env("efa", FI_PROVIDER="^tcp")]),
    ("wrong-provider", "error", "env.FI_PROVIDER", env("efa", FI_PROVIDER="^efa,tcp"), []),
    ("provider-needless", "info", "env.FI_PROVIDER", env("efa", FI_PROVIDER="efa"),
     [env("slingshot", FI_PROVIDER="cxi")]),
    ("mr-cache-monitor", "info", "fabric.kind", env("slingshot"),
     [env("slingshot", FI_MR_CACHE_MONITOR="userfaultfd"), env("efa")]),
    # --- torch, CUDA, the launcher
    ("launcher-var", "warn", "env.MASTER_ADDR", env(MASTER_ADDR="n1"), [env(OMP_NUM_THREADS="8")]),
    ("error-handling", "warn", "env.TORCH_NCCL_ASYNC_ERROR_HANDLING",
     env(TORCH_NCCL_ASYNC_ERROR_HANDLING="1"), [env(TORCH_NCCL_ASYNC_ERROR_HANDLING="3")]),
    ("torch-debugging", "info", "env.TORCH_NCCL_BLOCKING_WAIT", env(TORCH_NCCL_BLOCKING_WAIT="1"),
     [env(TORCH_NCCL_BLOCKING_WAIT="0")]),
    ("all-waits", "warn", "env.CUDA_LAUNCH_BLOCKING", env(CUDA_LAUNCH_BLOCKING="1"),
     [env(CUDA_LAUNCH_BLOCKING="0"), env(TORCH_DISTRIBUTED_DEBUG="INFO")]),
    ("all-waits", "warn", "env.TORCH_DISTRIBUTED_DEBUG", env(TORCH_DISTRIBUTED_DEBUG="DETAIL"), []),
    ("one-connection", "warn", "env.CUDA_DEVICE_MAX_CONNECTIONS",
     env(CUDA_DEVICE_MAX_CONNECTIONS="1"), [env(CUDA_DEVICE_MAX_CONNECTIONS="32")]),
    ("visible-devices", "error", "env.CUDA_VISIBLE_DEVICES",
     on(gpu=H100, env={"CUDA_VISIBLE_DEVICES": "0,1"}),
     [on(gpu=H100, env={"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}),
      on(gpu=H100, job={"gpus_per_node": 2, "env": {"CUDA_VISIBLE_DEVICES": "0,1"}})]),
    ("nccl-log-lost", "warn", "env.NCCL_DEBUG", env(NCCL_DEBUG="WARN"),
     [env(NCCL_DEBUG="INFO"), env(NCCL_DEBUG_SUBSYS="INIT,NET"), env(NCCL_DEBUG_SUBSYS="ALL"),
      env(NCCL_DEBUG_SUBSYS="^COLL")]),
    ("nccl-log-lost", "warn", "env.NCCL_DEBUG_SUBSYS", env(NCCL_DEBUG_SUBSYS="INIT,ENV"), []),
    ("nccl-log-huge", "warn", "env.NCCL_DEBUG", env(NCCL_DEBUG="TRACE"),
     [env(NCCL_DEBUG="INFO"), env(NCCL_DEBUG_SUBSYS="INIT,NET")]),
    ("nccl-log-elsewhere", "warn", "env.NCCL_DEBUG_FILE", env(NCCL_DEBUG_FILE="~/nccl.%h"),
     [env()]),
    ("against-the-site", "info", "env.NCCL_IB_TC",
     on(env={"NCCL_IB_TC": "41"}, job={"env": {"NCCL_IB_TC": "0"}}),
     [on(env={"NCCL_IB_TC": "41"}, job={"env": {"NCCL_IB_TC": "41"}}), given(NCCL_IB_TC="0")]),
    # --- what is asked of sbatch and srun
    ("two-gpu-requests", "error", "options.gres",
     on(gpu={**H100, "request": "gpus-per-node"}, options={"gres": "gpu:8"}),
     [on(gpu={**H100, "request": "none"}, options={"gres": "gpu:8"}),
      on(gpu={**H100, "request": "gpus-per-node"}, options={"gres": "nvme:1"})]),
    ("two-gpu-requests", "error", "sbatch.gpus-per-task",
     on(gpu={**H100, "request": "gres"}, job={"sbatch": {"gpus-per-task": 1}}),
     [on(gpu={**H100, "request": "gres"}, job={"sbatch": {"gpu-bind": "closest"}})]),
    ("gpu-request-replaced", "error", "options.gres",
     on(gpu={**H100, "request": "gres"}, options={"gres": "nvme:1"}),
     [on(gpu=H100, options={"gres": "nvme:1"})]),
    ("gpus-per-task", "warn", "srun.gpus-per-task", on(srun={"gpus-per-task": 1}),
     [on(srun={"gpu-bind": "none"})]),
    ("two-memory-requests", "error", "sbatch.mem-per-gpu",
     on(memory="all", job={"sbatch": {"mem-per-gpu": "60G"}}),
     [on(job={"sbatch": {"mem-per-gpu": "60G"}}), on(memory="all", job={})]),
    ("option-of-fsdpq", "warn", "options.time", on(options={"time": "60"}),
     [on(options={"exclusive": True, "gres": "nvme:1"})]),
    ("option-of-fsdpq", "error", "options.array", on(options={"array": "1-4"}), []),
    ("srun-of-fsdpq", "error", "srun.export", on(srun={"export": "NONE"}),
     [on(srun={"mpi": "pmix"})]),
    ("forbidden-directive", "error", "options.gres",
     on(options={"gres": "gpu:4"}, forbidden={"gres": "by the submit plugin"}),
     [on(options={"gres": "gpu:4"}, forbidden={"mem": "derived from cores"})]),
    ("forbidden-directive", "error", "gpu.request",
     on(gpu={**H100, "request": "gres"}, forbidden={"gres": "by the submit plugin"}),
     [on(gpu={**H100, "request": "forbidden"}, forbidden={"gres": "by the submit plugin"})]),
    ("forbidden-directive", "error", "mem_gib",
     on(forbidden={"mem": "derived from cores"}, job={"mem_gib": 4}),
     [on(forbidden={"mem": "derived from cores"}, job={})]),
    # --- partitions, QOS, quotas, time, preemption
    ("beyond-the-limits", "error", "nodes", on(**terms(max_nodes=2), job={"nodes": 3}),
     [on(**terms(max_nodes=2), job={"nodes": 2})]),
    ("beyond-the-limits", "error", "time_limit",
     on(**terms(min_time_limit="1:00:00"), job={"time_limit": "10"}),
     [on(**terms(min_time_limit="1:00:00"), job={"time_limit": "60"})]),
    ("beyond-the-limits", "error", "nodes",
     on(**LIMITS, quotas=[{"nodes_per_user": 2}], job={"nodes": 3}),
     [on(**LIMITS, quotas=[{"nodes_per_user": 2, "partitions": ["x"]}], job={"nodes": 3})]),
    ("beyond-the-limits", "error", "account", on(account_required=True, job={}),
     [on(account_required=True, job={"account": "lab"})]),
    ("beyond-the-limits", "error", "preemptible", on(job={"preemptible": True}), []),
    ("beyond-the-limits", "error", "gpus_per_node", on(**LIMITS, job={"gpus_per_node": 9}),
     [on(**LIMITS, job={"gpus_per_node": 8})]),
    ("no-time-limit", "warn", "time_limit", on(**terms(default_time_limit="10"), job={}),
     [on(**terms(default_time_limit="10"), job={"time_limit": "60"}),
      on(**terms(default_time_limit="10", time_limit="60"), job={})]),
    ("short-grace", "warn", "notice.lead_s",
     on(**terms(preempt="requeue", grace_s=30), job={"notice": {"lead_s": 120}}),
     [on(**terms(preempt="requeue", grace_s=300), job={}), on(**terms(preempt="requeue"), job={}),
      on(**terms(preempt="requeue", grace_s=30))]),
    ("short-grace", "info", "notice.lead_s", on(**terms(preempt="cancel", grace_s=30), job={}), []),
    ("short-grace", "info", "partitions.gpu.grace_s",
     on(**terms(preempt="requeue", grace_s=0)), []),
    ("times-contradict", "error", "partitions.gpu.default_time_limit",
     on(**terms(default_time_limit="60", time_limit="30")),
     [on(**terms(default_time_limit="30", time_limit="60"))]),
    ("grace-without-preemption", "warn", "partitions.gpu.grace_s", on(**terms(grace_s=30)),
     [on(**terms(grace_s=30, preempt="cancel"))]),
    ("name-of-nothing", "warn", "default_partition",
     on(default_partition="gpus", partitions={"gpu": {}}),
     [on(default_partition="gpu", partitions={"gpu": {}}), on(default_partition="gpu")]),
    ("name-of-nothing", "info", "partitions.gpu.qos",
     on(partitions={"gpu": {"qos": "long"}}, qos={"short": {}}), []),
    ("name-of-nothing", "info", "quotas.0.partitions",
     on(partitions={"gpu": {}}, quotas=[{"partitions": ["b"]}]),
     [on(partitions={"gpu": {}}, quotas=[{"partitions": ["gpu", "of-a-sibling"]}])]),
    ("qos-not-taken", "error", "partitions.gpu.qos", on(**terms(qos="a", allow_qos=["b"])),
     [on(**terms(qos="b", allow_qos=["b"])), on(**terms(qos="a", deny_qos=["b"])),
      on(**terms(qos="a", allow_qos=["a"], deny_qos=["a"]))]),
    ("qos-not-taken", "error", "default_qos", on(default_qos="a", **terms(deny_qos=["a"])),
     [on(default_qos="a", **terms(qos="b", deny_qos=["a"]))]),
    ("qos-not-taken", "error", "preemptible.qos",
     on(preemptible={"partition": "gpu", "qos": "a"}, **terms(allow_qos=["b"])),
     [on(preemptible={"partition": "gpu", "qos": "b"}, **terms(allow_qos=["b"])),
      on(preemptible={"qos": "a"}, partitions={"gpu": {"allow_qos": ["b"]}})]),
    ("beyond-the-limits", "error", "qos",
     on(**terms(allow_qos=["b"]), job={"partition": "gpu", "qos": "a"}),
     [on(**terms(allow_qos=["b"]), job={"partition": "gpu", "qos": "b"}),
      on(**terms(allow_qos=["b"]), job={"partition": "gpu"})]),
    ("more-than-there-are", "warn", "partitions.gpu.max_nodes", on(**terms(nodes=4, max_nodes=8)),
     [on(**terms(nodes=8, max_nodes=8))]),
    # --- where checkpoints go
    ("path-node-local", "error", "--runs", on(job={}, run_dir="/scratch/local/runs/x",
     storage={"/scratch/local": {"node_local": True}, "/scratch": {}}),
     [on(job={}, run_dir="/scratch/me/x", storage={"/scratch/local": {"node_local": True}}),
      on(job={}, run_dir="/tmp/x", storage={"/tmp": {"node_local": False}}),
      on("none", job={"site": "x"}, run_dir="/tmp/x", scheduler="local")]),
    ("path-node-local", "error", "--runs", on(job={}, run_dir="/tmp/runs/x"),
     [on(job={}, run_dir="/tmpfs/runs/x")]),
    ("path-node-local", "error", "args.1",
     on(job={"args": ["--checkpoint-dir", "$SLURM_TMPDIR/ckpt"]}),
     [on(job={"args": ["--data", "/tmp/data"]}), on(job={"args": ["--save", "/work/ckpt"]})]),
    ("path-purged", "warn", "--runs", on(job={}, run_dir="/scratch/alice/runs/x",
     storage={"/scratch/$USER": {"purge_days": 10}}),
     [on(job={}, run_dir="/work/x", storage={"/scratch": {"purge_days": 10}})]),
    ("path-purged", "info", "--runs", on(job={}, run_dir="/n/netscratch/my_lab/x",
     storage={"/n/netscratch/<lab>": {"purge_days": 90}}), []),
    ("memory-unknown", "info", "memory", on(gpu=H100),
     [on(gpu=H100, memory="all"), on(gpu=H100, memory_gib_per_gpu=9), on(),
      on(gpu={**H100, "request": "none"}), on(gpu=H100, forbidden={"mem": "whole nodes"})]),
    ("memory-unknown", "info", "mem_gib", on(gpu=H100, job={}),
     [on(gpu=H100, job={"mem_gib": 9}), on(gpu=H100, job={}, options={"mem-per-gpu": "9G"})]),
    # --- containers
    ("container-refused", "error", "container", on(job={"container": {"image": "/x.sif"}}),
     [on(job={"container": {"image": "/x.sif"}}, container={"runtime": "apptainer"}),
      on(job={}), on()]),
    ("plugin-not-mounted", "error", "container.mounts", contained("tcpxo", ("/var/tmp",)),
     [contained("tcpxo", ("/var/lib/tcpxo/lib64",)), env("tcpxo"), contained("roce")]),
    ("plugin-not-mounted", "error", "container.mounts",
     contained("roce", fabric={"networks": ["gIB"]}),
     [contained("roce", ("/usr/local/gib",), fabric={"networks": ["gIB"]})]),
    ("path-not-mounted", "warn", "env.NCCL_NET_PLUGIN",
     contained(env={"NCCL_NET_PLUGIN": "/opt/hpcx/libnccl-net.so"}),
     [contained(mounts=("/opt/hpcx",), env={"NCCL_NET_PLUGIN": "/opt/hpcx/libnccl-net.so"}),
      contained(env={"NCCL_NET_PLUGIN": "none"})]),
    ("environment-emptied", "warn", "container.options",
     on(env={"NCCL_IB_TC": "41"}, container={"runtime": "apptainer", "options": ["--cleanenv"]}),
     [on(env={"NCCL_IB_TC": "41"}, container={"runtime": "apptainer", "options": ["--nv"]}),
      on(env={"NCCL_IB_TC": "41"}, container={
          "runtime": "apptainer", "options": ["--cleanenv"], "pass_env": ["NCCL_*"]})]),
    # --- secrets
    ("secret-in-the-open", "error", "env.HTTPS_PROXY", env(HTTPS_PROXY="http://me:pass@proxy:1"),
     [env(HTTPS_PROXY="http://proxy:1")]),
    ("secret-in-the-open", "error", "args.1",
     on(job={"args": ["--hub", "hf_abcdefghijklmnopqrstuvwxyz"]}), [on(job={"args": ["hf_hub"]})]),
]  # fmt: skip


def said(case: Case, rule: str) -> list[Finding]:
    return [one for one in lint(case) if one.rule == rule]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{n}" for n, row in enumerate(ROWS)])
def test_a_rule_speaks_where_it_should_and_nowhere_else(row: Row) -> None:
    rule, level, key, bad, good = row
    assert [(one.level, one.key) for one in said(bad, rule)] == [(level, key)]
    for case in good:
        assert said(case, rule) == []


def test_every_rule_has_a_case_on_each_side() -> None:
    assert {row[0] for row in ROWS} == {rule.name for rule in RULES}
    assert {row[0] for row in ROWS if row[4]} == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_gives_its_reason_and_its_source(rule: Any) -> None:
    for text in (rule.why, rule.do, rule.source):
        assert text.strip()
        assert not text.endswith(".")
