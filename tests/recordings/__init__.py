"""Terminal recordings for the documentation: real commands on the lab's hosts, as a person would type them.

`make recordings` plays the scenes of `scenes.py` and writes `docs/recordings/*.cast` (asciicast v2:
https://docs.asciinema.org/manual/asciicast/v2/). A scene fails where ddpctl does not show what it waits for, so no
recording shows a thing that ddpctl no longer does.
"""
