"""The slots of this host, shared by all its accounts. A claim is a lock that the kernel frees with its last holder.

    folder.py     the folder that all accounts can write, its locks, and /etc/ddpctl.conf
    devices.py    the slots: GPUs by UUID, or numbers on a host without a GPU
    claims.py     the holders of the slots; takes and releases them
    listing.py    the claims as ddpctl gets them, and the verb ``slots``: whether a run fits

Files in the folder (default /var/tmp/ddpctl-slots, mode 1777):

    lock               held while a start decides which slots it takes
    slot-ID            empty; locked by the run that has the slot
    run.RUN.HOST       the claim of a run: JSON, owned by its account, locked for the whole life of the run

Guardian, supervisor and agent of the run inherit the descriptors. The ranks do not. A claim whose file is not locked is
over: the host was rebooted, or all its holders were killed. rules/slots.py decides which run gets which slot.
"""
