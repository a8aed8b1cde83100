"""The declared shapes of a worker's answers, a module per subject. answers.py validates against them."""
