"""The module that runs inside each rank; see ``sitecustomize.py``."""
