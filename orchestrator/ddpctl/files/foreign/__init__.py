"""Files in which people have their hosts already: hostfiles, Ansible inventories, accelerate's configuration."""
