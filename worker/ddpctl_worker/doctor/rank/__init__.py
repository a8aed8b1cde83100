"""What runs inside a rank. It is copied into the run's folder, which is then first on the rank's PYTHONPATH."""
