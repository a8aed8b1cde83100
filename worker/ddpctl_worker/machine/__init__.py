"""This machine: files, processes, sockets, control groups, clocks, and helper processes of our own."""
