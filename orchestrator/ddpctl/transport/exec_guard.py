"""A shell script around a user's command, which ends the command when its connection ends.

When a connection without a terminal ends, sshd sends no signal: a command that neither reads nor writes would live on.
So a small shell runs beside the command and reads stdin, which is the connection. The connection ends with Ctrl-C, a
deadline, or the death of ddpctl or its machine. The shell then ends all processes of the command: the processes in the
session that sshd made for it, and the processes with its mark in their environment. It sends SIGTERM first and SIGKILL
later, until no process is left.

The script is POSIX sh (dash, bash, busybox) and needs no Python on the host.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

# A command has five rounds of 0.2 s to obey SIGTERM. The loop ends after two rounds that find no process. `up` are the
# shell and its ancestors (sudo, a login shell that stays, sshd), which end by themselves. The command has ended in the
# ordinary way when no process holds its output, as with ssh; a daemon that writes elsewhere stays.
_SCRIPT = r"""
exec 3<&0 </dev/null
ended=; trap : HUP INT TERM; trap ended=1 USR1
up=' '; p=$$
while [ "${p:-0}" -gt 1 ]; do
  up="$up$p "; read -r stat <"/proc/$p/stat" || break; set -- ${stat##*) }; p=$2
done 2>/dev/null
(
  exec >/dev/null 2>&1
  trap '' HUP INT TERM PIPE
  read -r stat </proc/self/stat; me=${stat%% *}; set -- ${stat##*) }; session=$4
  case $session in $$|$PPID) ;; *) session=none ;; esac
  while read -r line <&3; do :; done
  kill -USR1 $$
  before=1
  for signal in TERM 0 0 0 0 0 KILL KILL KILL KILL KILL; do
    left=; marked=" $(echo $(grep -ls MARK /proc/[0-9]*/environ)) "
    for dir in /proc/[0-9]*; do
      read -r stat <"$dir/stat" || continue
      pid=${dir#/proc/}; set -- ${stat##*) }
      case $1 in Z|X) continue ;; esac
      case "$up$me " in *" $pid "*) continue ;; esac
      if [ "$4" = "$session" ]; then :; else case $marked in *" $dir/environ "*) ;; *) continue ;; esac; fi
      left=1; kill -$signal $pid
    done
    [ "$left$before" ] || break
    before=$left
    sleep 0.2 || sleep 1
  done
) &
watch=$!
[ "$ended" ] ||
DDPCTL_EXEC=MARK /bin/sh -c 'exec "$@"' sh COMMAND 3<&-
code=$?
held() {
  for dir in /proc/[0-9]*; do
    case "$up$watch " in *" ${dir#/proc/} "*) continue ;; esac
    [ "$dir/fd/1" -ef "/proc/$$/fd/1" ] || [ "$dir/fd/2" -ef "/proc/$$/fd/2" ] || continue
    { read -r stat <"$dir/stat"; } 2>/dev/null || continue
    set -- ${stat##*) }; [ "$1" = Z ] || return 0
  done
  return 1
}
while [ ! "$ended" ] && held; do sleep 0.2 || sleep 1; done
exec 2>/dev/null
if [ "$ended" ]; then wait $watch; else kill -9 $watch; fi
exit $code
"""
_PLAIN = re.compile(r"[^A-Za-z0-9 _./=:,@%+\[\]{}()<>|;&$\"*?#^~-]")


def guarded(argv: Sequence[str]) -> str:
    """Return a line for any login shell (sh, bash, zsh, fish, tcsh) that runs ``argv`` unchanged, byte for byte.

    Raises:
        ValueError: an argument holds a NUL byte, which cannot be passed to a process.
    """
    if any("\0" in word for word in argv):
        raise ValueError("a NUL byte cannot be passed to a process")
    script = _SCRIPT.replace("MARK", secrets.token_hex(8)).replace("COMMAND", shlex.join(argv))
    return f"/bin/sh -c 'eval \"$(printf %b \"$0\")\"' '{_encoded(script)}'"


def _encoded(text: str) -> str:
    r"""Write every character that a login shell might expand within single quotes as ``\0ooo`` for printf."""
    return _PLAIN.sub(lambda found: "".join(f"\\0{byte:03o}" for byte in _bytes(found[0])), text)


def _bytes(text: str) -> bytes:
    """Return the bytes of the command line: bytes that are not UTF-8 arrive as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")
