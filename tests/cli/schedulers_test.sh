#!/usr/bin/env bash
# The scripts of examples/cluster for batch systems: each is sound, and what it runs trains on the
# hosts that the system names. Those of Slurm run in slurm_test.sh.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset SLURM_JOB_ID PBS_NODEFILE LSB_DJOB_HOSTFILE OMPI_MCA_orte_default_hostfile
small_config
sed -i 's/"batch_size": 16/"batch_size": 16, "threads": 1/' small.json
cp "$root"/examples/cluster/* .
for script in lsf.sh pbs.sh slurm.sh slurm_srun.sh; do
  verify "docs/clusters.md leads to $script" grep -qF "(../examples/cluster/$script)" "$root/docs/clusters.md"
  verify "$script is a script of bash" bash -n $script
  if command -v shellcheck >/dev/null; then verify "and shellcheck has nothing to say" shellcheck $script; fi
done
# runs NAME SCRIPT VARIABLE...: what the script runs, on this machine's files, in two ranks.
runs() {
  local name=$1 script=$2
  shift 2
  sed "s|scripts/launch.sh|$root/&|; s|build/bin/starling-train|$train|; s|configs/[a-z0-9_]*.json|small.json|
    s|/shared/runs/one|$name|" "$script" >"job-$name"
  check "$name: two ranks" 0 "2 ranks on" env "$@" bash "job-$name"
  check "$name: goes on where it was" 0 "there is nothing to do|continuing after step 12" env "$@" bash "job-$name"
}
printf 'localhost\nlocalhost\n' >nodes
runs pbs pbs.sh PBS_NODEFILE="$work/nodes" PBS_O_WORKDIR="$work"
runs lsf lsf.sh LSB_DJOB_HOSTFILE="$work/nodes" LS_SUBCWD="$work"
check "a host's lines are its slots" 0 "--hostfile many -n 3" env PBS_NODEFILE=many bash -c 'printf "a\nb\na\n" >many; "$1" --dry-run true' _ "$root/scripts/launch.sh"
check "hosts that are given win" 0 "--host b:2 -n 2" env PBS_NODEFILE=many "$root/scripts/launch.sh" --dry-run --hosts b:2 true
check "a file that is not there" 2 "none: cannot be read" env LSB_DJOB_HOSTFILE=none "$root/scripts/launch.sh" --dry-run true

# The fields that the job has, each with its type as in the operator's schema
# (manifests/base/kubeflow.org_mpijobs.yaml, v2beta1): a name or a type that the API server would
# refuse or drop is one that is not here.
cat >fields.py <<'END'
import re, sys, yaml
POD = {"containers": [{"name": str, "image": str, "workingDir": str, "command": [str], "args": [str],
                       "volumeMounts": [{"name": str, "mountPath": str}],
                       "resources": {"limits": {"cpu": (int, str), "memory": str}}}],
       "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str},
                    "emptyDir": {"medium": str}}],
       "terminationGracePeriodSeconds": int}
REPLICAS = {"replicas": int, "restartPolicy": {"Never", "OnFailure", "Always"}, "template": {"spec": POD}}
JOB = {"apiVersion": {"kubeflow.org/v2beta1"}, "kind": {"MPIJob"}, "metadata": {"name": str},
       "spec": {"slotsPerWorker": int,
                "runPolicy": {"cleanPodPolicy": {"Running", "None", "All"}, "backoffLimit": int},
                "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS}}}

def compare(value, known, path):
    if isinstance(known, dict):
        assert isinstance(value, dict), f"{path}: no object"
        for key, part in value.items():
            assert key in known, f"{path}.{key}: no such field"
            compare(part, known[key], f"{path}.{key}")
    elif isinstance(known, list):
        assert isinstance(value, list), f"{path}: no list"
        for i, part in enumerate(value):
            compare(part, known[0], f"{path}[{i}]")
    elif isinstance(known, set):
        assert value in known, f"{path}: {value}"
    else:
        assert isinstance(value, known) and not isinstance(value, bool), f"{path}: {value!r}"

job = yaml.safe_load(open(sys.argv[1]))
compare(job, JOB, "job")
for name, replicas in job["spec"]["mpiReplicaSpecs"].items():
    pod = replicas["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, name
assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
print("\n".join(launcher["command"] + launcher["args"]))
END
if python3 -c 'import yaml' 2>/dev/null; then
  verify "the job of Kubernetes has fields that there are" bash -c 'python3 fields.py kubernetes.yaml >command'
  sed 's/replicas:/replica:/' kubernetes.yaml >wrong
  check "one that there is not is seen" 1 "Launcher.replica: no such field" python3 fields.py wrong
  { echo '#!/bin/bash' && echo "exec $(paste -sd ' ' command)"; } | sed 's|/runs/one|/shared/runs/one|' >launcher.sh
  printf 'localhost slots=2\n' >hosts # as the operator writes it
  runs kubernetes launcher.sh OMPI_MCA_orte_default_hostfile="$work/hosts"
fi
finish
