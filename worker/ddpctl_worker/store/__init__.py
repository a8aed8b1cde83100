"""Files below base_dir: blobs by content, environments made from them, and their transfer between nodes.

Nouns: blob (a file named by its SHA-256), part (an unfinished blob), spread (one transfer to many nodes), peer, chain
(the order in which nodes pass files on), environment, lock, wheel.

``spread`` is the verb of a transfer: ``pull`` receives and ``relay`` serves the files of ``incoming``. Its threads read
the controller's orders, send the progress, and serve one peer each. ``install`` makes an environment, and ``build``
makes a wheel from a source distribution; both run uv as a child process. ``data`` makes the folders of pushed data.
``remove`` removes runs that are over.

Files of this package, below base_dir: ``store/`` (blobs and parts), ``envs/``, ``wheels/`` (hard links to blobs with
the names of wheels), ``uv-cache/``, ``tools/`` and ``data/``.
"""
