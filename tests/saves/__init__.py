"""The campaign that measures `ddpctl kill --save`: a training is stopped at random moments, and always continues there.

    python -m tests.saves --seed 1 --number 50             resnet_ddp with data loaders (make saves SEED=1 N=50)
    python -m tests.saves --seed 1 --number 50 --plain     a program without torch

One job on two nodes of this machine, started again and again: each round resumes from the save of the round before it.
What is checked, from files and /proc: data loaders ran, the checkpoint is complete and its bytes match its manifest,
the next run continues at that very step, and nothing is left of the previous run.
"""
