# Boots one host of the lab. Runs as pid 1 of fresh net, mount, pid, uts and ipc namespaces; talks to the
# lab on stdin and stdout (one word a line) until the sshd answers, then becomes a plain init. With LAB_SYSTEMD, the path
# of systemd, this script becomes systemd, which starts the sshd.
set -eu

read -r pid _ </proc/self/stat # the outer /proc is still mounted here: this is our pid as the lab sees it
echo "$pid"
hostname "$LAB_HOST"

# The disk of the host: everything that is installed on this machine below, the host's own writes on top.
# The upper layer stays with the lab, which is how files live through a power loss.
mount -t overlay "$LAB_HOST" -o "lowerdir=/,upperdir=$LAB_DISK/upper,workdir=$LAB_DISK/work" "$LAB_DISK/root"
cd "$LAB_DISK/root"
mount -t proc proc proc
if [ -z "$LAB_SYSTEMD" ]; then
  mount -t sysfs sysfs sys
  mount --bind /dev dev
else # systemd sets the kernel up for its machine, and this kernel belongs to all hosts
  mount -t sysfs -o ro sysfs sys
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t tmpfs -o mode=755 tmpfs dev
  mkdir dev/pts dev/shm
  for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
  done
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
  for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "dev/${number#*:}"; done
fi
cgroup2=sys/fs/cgroup
if [ -n "$LAB_VERSION_1" ]; then # memory:memory systemd:none,name=systemd
  mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
  for hierarchy in $LAB_VERSION_1; do
    mkdir "sys/fs/cgroup/${hierarchy%%:*}"
    mount -t cgroup -o "${hierarchy#*:}" cgroup "sys/fs/cgroup/${hierarchy%%:*}"
  done
  cgroup2=sys/fs/cgroup/unified
  mkdir $cgroup2
fi
[ -z "$LAB_CGROUP" ] || mount -t cgroup2 cgroup2 $cgroup2
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777,size=4g tmpfs dev/shm
mount -t tmpfs -o mode=1777,size=4g tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/sshd run/lock
mkfifo -m 600 run/initctl
mount --bind "$LAB_DISK/boot_id" proc/sys/kernel/random/boot_id
for folder in $LAB_EXPOSE; do # what the host may see although it lies in a folder that is hidden or on another disk
  mkdir -p ".$folder"
  mount --bind "$folder" ".$folder"
  mount -o remount,bind,ro ".$folder"
done
if [ -n "$LAB_SHARED" ]; then
  mkdir -p ".$LAB_SHARED"
  mount --bind "$LAB_DISK/../shared" ".$LAB_SHARED"
fi
pivot_root . .
umount -l .

read -r _ # the cables are in
ip link set lo up
for address in $LAB_ADDRESSES; do # eth0=10.64.4.11/22
  case $address in *:*) nodad=nodad ;; *) nodad= ;; esac # an IPv6 address is ready at once without a search for duplicates
  ip address add "${address#*=}" dev "${address%%=*}" $nodad
  ip link set "${address%%=*}" up
done
wait_for_banner() { # ready is what a client would see
  for _ in $(seq "$1"); do
    if { exec 4<>/dev/tcp/127.0.0.1/22; } 2>/dev/null; then
      read -r -t 5 banner <&4 || banner=silence
      exec 4>&-
      case $banner in SSH-2.0-*) echo ready && break ;; esac
    fi
    sleep 0.01
  done
}

if [ -n "$LAB_SYSTEMD" ]; then
  wait_for_banner 6000 & # a child of systemd, which reaps it
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=ddpctl-lab \
    "$LAB_SYSTEMD" --system --unit=multi-user.target --show-status=0 </dev/null >/dev/null
fi
/usr/sbin/sshd -E /run/sshd.log
wait_for_banner 6000 # the lab gives up before

# Bash reaps whatever is orphaned here, as an init must, while it waits for a word that never comes.
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin bash --norc -c \
  'exec </dev/null >/dev/null 2>&1 3<>/run/initctl; while :; do read -r -u 3 _ || :; done'
