"""Readers of other tools' files with hosts: hostfiles, Ansible inventories, accelerate's configuration."""
