"""A command that ends with its connection.

sshd signals nothing when a connection without a terminal ends: a command that neither reads nor writes would live on.
So a small shell stays beside it and reads its stdin, which is the connection. When that ends (Ctrl-C, a deadline,
ddpctl killed, its machine gone), the shell ends everything that the command started: what is in the session that sshd
made for it, and what carries its mark in the environment. First politely, then for good, until nothing is left.

It is POSIX sh (dash, bash, busybox) and needs no Python on the host.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

# A command has five looks, 0.2 s apart, to obey SIGTERM; two looks that find nothing are the proof. `up` are the shell
# itself and what it runs below (sudo, a login shell that stays, sshd): they end by themselves. An ordinary end is when
# nobody holds our output any more, as with ssh; a daemon that wrote its output elsewhere stays.
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
    """A line for any login shell (sh, bash, zsh, fish, tcsh) that runs ``argv`` as it is, byte for byte.

    Raises:
        ValueError: an argument holds a NUL byte, which no process can be given.
    """
    if any("\0" in word for word in argv):
        raise ValueError("a NUL byte cannot be passed to a process")
    script = _SCRIPT.replace("MARK", secrets.token_hex(8)).replace("COMMAND", shlex.join(argv))
    return f"/bin/sh -c 'eval \"$(printf %b \"$0\")\"' '{_encoded(script)}'"


def _encoded(text: str) -> str:
    r"""Whatever a login shell might look into within single quotes, as ``\0ooo`` for printf."""
    return _PLAIN.sub(lambda found: "".join(f"\\0{byte:03o}" for byte in _bytes(found[0])), text)


def _bytes(text: str) -> bytes:
    """As the command line gave it to us: bytes that are no UTF-8 come as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")
