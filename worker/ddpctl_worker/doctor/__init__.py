"""What is wrong with a job that runs: judged from what its ranks record about their collectives."""
