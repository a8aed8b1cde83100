"""Files as projects and manuals write them."""

from __future__ import annotations

# As in DeepSpeed's tutorials, and in the files that cluster templates generate.
DEEPSPEED = """\
# two workers of the vision team
worker-1 slots=4
worker-2 slots=4
"""

# As in the manual of Open MPI's mpirun: comments, both spellings of the limit, blanks around `=`.
OPEN_MPI = """\
# This is an example hostfile.  Comments begin with #
#
# The following node is a single processor machine:
foo.example.com

# The following node is a dual-processor machine:
bar.example.com slots=2

# A quad-processor machine, where over-subscribing is disallowed:
yow.example.com slots = 4 max-slots=4   # the big one
"""

# As in the pages about MPICH's Hydra.
MPICH = """\
donner:2     # first rack
foo:2
shakey:2
terra:2 user=alice
"""

# As PBS writes $PBS_NODEFILE: a line for every process.
PBS = "gpu07\ngpu07\ngpu07\ngpu07\ngpu08\ngpu08\ngpu08\ngpu08\n"

# As `accelerate config` writes ~/.cache/huggingface/accelerate/default_config.yaml.
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_process_ip: 192.168.20.1
main_process_port: 9898
main_training_function: main
mixed_precision: fp16
num_machines: 2
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
